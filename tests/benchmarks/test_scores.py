"""The benchmark of scores: what it runs, keeps and prints."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from benchmark.scores import curves, measure, runs
from benchmark.scores.records import read_rows
from benchmark.scores.tasks import TASKS, Task

CONFIGS = Path(__file__).parents[2] / "configs"


def fake_row(task: Task, seed: int) -> dict[str, object]:
    values = {"task": task.name, "seed": seed, "score": 480.0 + seed, "seconds": 20.0 + 30 * seed}
    return {**dict.fromkeys(runs.FIELDS, 1), **values, "digest": task.digest}


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    ran = []
    (tmp_path / "configs").symlink_to(CONFIGS)
    monkeypatch.chdir(tmp_path)

    def run(task: Task, seed: int, kept: Path | None) -> dict[str, object]:
        assert kept is None
        ran.append((task.name, seed))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return fake_row(task, seed)

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["scores", *arguments, "--csv", str(tmp_path / "a.csv")])
        measure.main()
        return capsys.readouterr().out

    monkeypatch.setattr(measure, "run", run)
    return call, ran


def test_runs_that_are_done_are_not_done_again(command):
    call, ran = command
    with pytest.raises(KeyboardInterrupt):
        call("cartpole")
    assert ran == [("cartpole", 0), ("cartpole", 1), ("cartpole", 2)]  # the third came to nothing
    out = call("cartpole")
    assert ran[3:] == [("cartpole", 2), ("cartpole", 3), ("cartpole", 4)]
    # 80, 110 and 140 s are more than the 60 s allowed.
    line = (
        "| `cartpole` | 480.0, 481.0, 482.0, 483.0, 484.0 | 482.0 | 475 in 60 s | 2 of 5 | 80 | 1 |"
    )
    assert line in out
    assert call("--table").count("`cartpole`") == 1
    assert len(ran) == 6


def test_a_changed_recipe_is_run_again(command, tmp_path):
    call, ran = command
    ran += [("", 0)] * 3  # nothing is interrupted
    call("cartpole")
    (tmp_path / "configs").unlink()
    (tmp_path / "configs").mkdir()
    for path in CONFIGS.rglob("*.yaml"):
        copy = tmp_path / "configs" / path.relative_to(CONFIGS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text("# another header\n" + path.read_text())
    assert call("cartpole").count("`cartpole`") == 1
    assert len(ran) == 8
    recipe = tmp_path / "configs/cartpole.yaml"
    recipe.write_text(recipe.read_text().replace("batch_size: 512", "batch_size: 256"))
    assert "`cartpole`" not in call("--table")
    call("cartpole")
    assert len(ran) == 13


def test_an_unknown_task_names_the_known_ones(command, capsys):
    call, _ = command
    with pytest.raises(SystemExit):
        call("cartpol")
    assert "unknown tasks cartpol: choose from cartpole, " in capsys.readouterr().err


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_task_has_its_recipe(task: Task):
    assert (CONFIGS / f"{task.recipe}.yaml").exists()


@pytest.mark.slow
def test_a_run_is_what_its_row_says(monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    settings = ("--trainer.max_steps", "20", "--data.evaluation.test_episodes", "3")
    evaluated = ("--actor_learner.eval_period_learner_steps", "10")
    row = runs.run(Task("short", "cartpole", 0, 60, settings=(*settings, *evaluated)), 7)
    assert set(row) == {*runs.FIELDS, "gpu"}
    assert (row["task"], row["seed"], row["learner_steps"]) == ("short", 7, 20)
    assert float(str(row["score"])) >= 8.0
    assert 1.0 < float(str(row["seconds"])) < 170.0
    assert (row["environment"], row["protocol"], row["epsilon"]) == (
        "CartPole-v1",
        "gymnasium",
        0.0,
    )
    assert (row["episodes"], row["frames"]) == ("3", row["env_steps"])


def test_the_curve_of_a_kept_run_is_read_and_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    version = tmp_path / "kept/pong_laptop_4/pong_laptop/version_0"
    with SummaryWriter(str(version)) as writer:
        for step, env_steps, score, second in (
            (5, 40, None, 3),
            (10, 80, -20.5, 60),
            (15, 120, None, 70),
        ):
            writer.add_scalar("count/env_steps", env_steps, step, walltime=1000 + second)
            if score is not None:
                writer.add_scalar("eval/return_mean", score, step, walltime=1000 + second)
                writer.add_scalar("eval/return_std", 0.5, step, walltime=1000 + second)
        writer.add_scalar("eval/return_mean", 3.0, 17, walltime=1100)
        writer.add_scalar("eval/return_std", 1.5, 17, walltime=1100)
    (tmp_path / "docs/images").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves", "kept", "pong_laptop"])
    monkeypatch.setattr(EventAccumulator, "FirstEventTimestamp", lambda self: 1000.0)
    curves.main()
    assert Path("docs/curves_pong_laptop.csv").read_text().splitlines() == [
        "seed,learner_steps,env_steps,seconds,return_mean,return_std",
        "4,10,80,60,-20.5,0.5",
        "4,17,120,100,3.0,1.5",
    ]
    assert Path("docs/images/pong_laptop.png").read_bytes().startswith(b"\x89PNG")


def test_the_newest_of_kept_runs_counts(tmp_path):
    for number in (0, 2, 10):
        (tmp_path / f"pong/version_{number}").mkdir(parents=True)
    assert runs.newest_version(tmp_path) == tmp_path / "pong/version_10"


def test_curves_of_runs_that_were_not_kept_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["curves", str(tmp_path), "pong_laptop"])
    with pytest.raises(SystemExit, match="2"):
        curves.main()
    assert f"{tmp_path} has no runs of pong_laptop" in capsys.readouterr().err


def test_the_recorded_runs_of_pong_are_of_its_recipe_and_reach_18_within_the_hour(monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    (task,) = (task for task in TASKS if task.name == "pong_laptop")
    rows = [row for row in read_rows(Path("docs/scores.csv")) if row["task"] == task.name]
    with Path("docs/curves_pong_laptop.csv").open() as file:
        curves_of_all = list(csv.DictReader(file))
    assert [int(row["seed"]) for row in rows] == list(task.seeds)
    for row in rows:
        curve = [c for c in curves_of_all if c["seed"] == row["seed"]]
        assert row["digest"] == task.digest
        assert row["episodes"] == "20"
        assert float(row["score"]) >= 18.0
        assert float(row["seconds"]) <= 3600.0
        assert float(curve[0]["return_mean"]) < -18.0
        assert max(float(c["return_mean"]) for c in curve) == float(row["validation"])
