"""`lrl bench`: training by number of actors and environments, its file, and what it refuses."""

from __future__ import annotations

import functools
import json
import subprocess

import pytest
from helpers.command_line import Project, quiet_commands

from lrl.bench import ladder, training
from lrl.bench.measure import Measurement
from lrl.types import ConfigError

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys, "bench")


@pytest.mark.slow
@pytest.mark.parametrize(("actors", "seconds"), [(0, 20.0), (2, 25.0)])
def test_a_run_is_measured(actors, seconds):
    run = training.run("cartpole", actors, envs=2, seconds=seconds)
    found = run.figures
    assert found.keys() == training.FIGURES.keys()
    ratio = found["speed/env_steps_per_second"] / found["speed/learner_steps_per_second"]
    assert ratio == pytest.approx(32, rel=0.5)  # one batch of 32 at a ratio of 1
    assert 0.0 <= found["speed/learner_wait_fraction"] <= 1.0
    assert 0.0 < found["sample"] + found["optimise"] + found["other"] <= 1.01
    assert "bound: " in run.verdict or "balanced" in run.verdict


@pytest.mark.slow
def test_what_a_run_said_is_shown_if_its_settings_are_refused(monkeypatch):
    monkeypatch.setitem(training.WORKLOADS, "none", ["--data.env.id", "NoSuch-v0"])
    with pytest.raises(ConfigError, match=r"^none, 0 actors of 1: env.id is 'NoSuch-v0'"):
        training.run("none", 0, 1, 5.0)


def test_a_run_that_fails_leaves_the_rounds_before_it(monkeypatch):
    made: list[int] = []

    def run(*how: object) -> training.Run:
        made.append(1)
        if len(made) in fails:
            raise ConfigError("it had hardly begun")
        return training.Run(dict.fromkeys(training.FIGURES, 1.0), "balanced")

    monkeypatch.setattr(training, "run", run)
    sides, fails = ("synchronous 8", "actors 1 x 8"), {4}
    found, remarks = training.measure("pong", sides, 15.0, 3)
    assert {len(each.values) for each in found} == {1}
    assert remarks[-1] == "pong: round 2 of 3 is left out: it had hardly begun"
    fails = {5}
    with pytest.raises(ConfigError, match="hardly begun"):
        training.measure("pong", sides, 15.0, 3)


@pytest.fixture
def instant(monkeypatch):
    """Stands for the runs, whose figures grow; notes what is asked."""
    asked: list[tuple[object, ...]] = []

    def run(*how: object) -> training.Run:
        assert how[-1] == "cpu"
        asked.append(how[:-1])
        speed = len(asked) / 10
        return training.Run(dict.fromkeys(training.FIGURES, speed), f"bound by {speed}")

    monkeypatch.setattr(training, "run", run)
    return asked


def test_the_table_has_every_figure_of_every_side(command, project, instant):
    sides = ["--sides", '["actors 1 x 1", "synchronous 8"]']
    rounds = ["--seconds", "7", "--rounds", "2"]
    code, said, err = command("--workloads", '["pong"]', *sides, *rounds, "--json", "found.json")
    assert (code, err) == (0, "")
    assert instant == 2 * [("pong", 1, 1, 7.0), ("pong", 0, 8, 7.0)]
    written = json.loads((project.folder / "found.json").read_text())
    found = written["measurements"]
    assert written["remarks"][-1] == "pong, synchronous 8: bound by 0.4"
    assert (written["rounds"], written["seconds"]) == (2, 7.0)
    assert len(found) == 2 * len(training.FIGURES)
    first, other = found[:2]
    assert (first["values"], other["values"]) == ([0.1, 0.3], [0.2, 0.4])
    assert other["ratio"] == pytest.approx((2.0 + 4 / 3) / 2)
    assert written["machine"]["processor"] in said.splitlines()[0]
    assert "rounds 2, seconds 7" in said.splitlines()[0]
    assert "% of time actors waited" in said
    assert "pong, synchronous 8: bound by 0.4" in said


def test_both_workloads_are_trained_in_both_modes_unless_others_are_named(command, instant):
    code, said, _ = command("--rounds", "1")
    assert code == 0
    assert instant == [(name, *how, 15.0) for name in ("cartpole", "pong")
                       for how in ((0, 8), (1, 8), (2, 8))]  # fmt: skip
    lines = [line for line in said.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 * (2 + 3 * len(training.FIGURES))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds must be a finite number above 0, got 0"),
        (["--seconds", "-1"], "--seconds must be a finite number above 0, got -1.0"),
        (["--workloads", '["chess"]'], "--workloads has 'chess': name some of cartpole, pong"),
        (["--workloads", "[]"], "--workloads is empty: name some of cartpole, pong"),
        (
            ["--sides", '["synchronous 0"]'],
            "--sides has 'synchronous 0': name some such as 'actors",
        ),
        (["--sides", "[synchronous 8, synchronous 8]"], "--sides has a side twice"),
        (["--updates", '["dqn"]'], "--updates has 'dqn': name some of mlp, nature"),
        (["--device", "cuda"], "--device is cuda, but torch finds no GPU here"),
        (["--sections", '["learner"]'], "sections"),
        (["--json", ""], "is a folder: name a file in it"),
        (["--json", "nowhere/bench.json"], "--json nowhere/bench.json: there is no folder nowhere"),
        (["--ckpt_path", "last"], "ckpt_path"),
    ],
)
def test_a_mistake_measures_nothing(command, instant, arguments, words):
    code, _, err = command(*arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not instant


def test_a_run_that_is_too_short_to_measure_is_told_so_in_a_line(command, monkeypatch):
    def ended(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(training.subprocess, "run", ended)
    code, _, err = command("--seconds", "3", "--workloads", "[cartpole]")
    assert code == 2
    assert "--seconds is 3, in which cartpole with 0 actors of 8 environments had hardly" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("seconds", "clock"), [(0.4, "00:00:00:01"), (75.0, "00:00:01:15")])
def test_a_run_is_as_long_as_asked_for(monkeypatch, seconds, clock):
    def answer(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[command.index("--trainer.max_time") + 1] == clock
        return subprocess.CompletedProcess(command, 1, "on purpose")

    monkeypatch.setattr(training.subprocess, "run", answer)
    with pytest.raises(RuntimeError, match="on purpose"):
        training.run("pong", 1, 8, seconds)


def test_updates_are_measured_with_one_setting_more_at_a_time(monkeypatch):
    sides = {
        name: ladder.LADDER[name] for name in ("fused optimizer", "captured, 8 updates a step")
    }
    broken = ladder.Side(updates_per_step=0)
    found, remarks = ladder.measure("mlp", {**sides, "none": broken}, "cpu", updates=16, rounds=2)
    assert [(each.name, each.unit, len(each.values)) for each in found] == [
        (name, "ms", 2) for name in sides
    ]
    assert found[1].ratio is not None
    assert remarks == ["mlp, none: model.updates_per_step must be at least 1, got 0"]


def test_updates_come_before_runs(command, instant, monkeypatch):
    def measure(name: str, **settings: object) -> tuple[list[Measurement], list[str]]:
        return [Measurement(name, "captured", "ms", (0.5,))], [f"{name}: {settings}"]

    monkeypatch.setattr(ladder, "measure", measure)
    code, said, _ = command(
        "--updates", "[mlp]", "--workloads", "[pong]", "--sides", "[actors 3 x 5]", "--rounds", "1"
    )
    assert code == 0
    assert said.index("| mlp | captured | 0.50 ms") < said.index("| training, pong | actors 3 x 5")
    assert "mlp: {'device': 'cpu', 'rounds': 1}" in said
    assert instant == [("pong", 3, 5, 15.0)]
