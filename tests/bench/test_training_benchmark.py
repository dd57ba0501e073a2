"""The benchmark of training by number of actors and environments."""

from __future__ import annotations

import json
import subprocess

import pytest

from lrl.bench import training


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("actors", [0, 2])
def test_a_run_is_measured(actors):
    run = training.run("cartpole", actors, envs=2, seconds=15.0)
    found = run.figures
    assert found.keys() == training.FIGURES.keys()
    ratio = found["speed/env_steps_per_second"] / found["speed/learner_steps_per_second"]
    assert ratio == pytest.approx(32, rel=0.5)  # one batch of 32 at a ratio of 1
    assert 0.0 <= found["speed/learner_wait_fraction"] <= 1.0
    assert 0.0 < found["sample"] + found["optimise"] + found["other"] <= 1.01
    assert "bound: " in run.verdict or "balanced" in run.verdict


@pytest.mark.slow
def test_what_a_run_said_is_shown_if_it_fails(monkeypatch):
    monkeypatch.setitem(training.WORKLOADS, "none", ["--data.env.id", "NoSuch-v0"])
    with pytest.raises(RuntimeError, match="NoSuch"):
        training.run("none", 0, 1, 5.0)


def test_the_table_has_every_figure_of_every_side(tmp_path, monkeypatch, capsys):
    speeds = iter(range(1, 100))

    def run(workload: str, actors: int, envs: int, seconds: float) -> training.Run:
        assert (workload, seconds) == ("pong", 7.0)
        speed = next(speeds) / 10
        return training.Run(dict.fromkeys(training.FIGURES, speed), f"bound by {speed}")

    monkeypatch.setattr(training, "run", run)
    path = tmp_path / "found.json"
    sides = ["--sides", "actors 1 x 1", "synchronous 8"]
    rounds = ["--seconds", "7", "--rounds", "2"]
    training.main(["--workloads", "pong", *sides, *rounds, "--json", str(path)])
    written = json.loads(path.read_text())
    found = written["measurements"]
    assert written["remarks"][-1] == "pong, synchronous 8: bound by 0.4"
    assert len(found) == 2 * len(training.FIGURES)
    first, other = found[:2]
    assert (first["values"], other["values"]) == ([0.1, 0.3], [0.2, 0.4])
    assert other["ratio"] == pytest.approx((2.0 + 4 / 3) / 2)
    said = capsys.readouterr().out
    assert "% of time actors waited" in said
    assert "pong, synchronous 8: bound by 0.4" in said


@pytest.mark.parametrize(("seconds", "clock"), [(0.4, "00:00:00:01"), (75.0, "00:00:01:15")])
def test_a_run_is_as_long_as_asked_for(monkeypatch, seconds, clock):
    def answer(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[command.index("--trainer.max_time") + 1] == clock
        return subprocess.CompletedProcess(command, 1, "on purpose")

    monkeypatch.setattr(training.subprocess, "run", answer)
    with pytest.raises(RuntimeError, match="on purpose"):
        training.run("pong", 1, 8, seconds)
