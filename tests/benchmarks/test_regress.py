"""The check of recipes against recorded scores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmark.scores import regress
from benchmark.scores.runs import Failed
from benchmark.scores.tasks import TASKS, Task

ROOT = Path(__file__).parents[2]
CARTPOLE = Task("cartpole", "cartpole", bar=475, seconds=60)


@pytest.mark.parametrize(
    ("scores", "least"),
    [
        ([500.0, 500.0, 500.0], 475.0),  # the bar
        ([500.0, 470.0] * 10, 423.44),  # mean 485 - 4 x 15.39
        ([470.0, 500.0, 500.0, 500.0], 432.5),  # mean 492.5 - 4 x 15
        ([500.0], None),
    ],
)
def test_the_least_score_is_the_lowest_of_three(scores, least):
    found = regress.least_score(CARTPOLE, scores)
    assert found == (least if least is None else pytest.approx(least, abs=0.01))


def test_every_task_of_the_set_has_recorded_scores(monkeypatch):
    monkeypatch.chdir(ROOT)
    by_name = {task.name: task for task in TASKS}
    for name in regress.NAMES:
        scores = regress.recorded_scores(by_name[name])
        assert len(scores) >= 3, name
        least = regress.least_score(by_name[name], scores)
        assert least is not None
        assert least <= min(scores)
        assert regress.SEED not in by_name[name].seeds


def test_it_fails_where_a_score_is_below_or_a_run_failed(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    scores = {"cartpole": 500.0, "cartpole_sync": 300.0}

    def run(task: Task, seed: int) -> dict[str, object]:
        if task.name not in scores:
            raise Failed("no memory")
        return {"score": scores[task.name]}

    monkeypatch.setattr(regress.runs, "run", run)
    monkeypatch.setattr(sys, "argv", ["regress", "cartpole"])
    regress.main()
    monkeypatch.setattr(sys, "argv", ["regress", "cartpole", "cartpole_sync", "dials"])
    with pytest.raises(SystemExit, match="1"):
        regress.main()
    said = capsys.readouterr()
    assert said.out.count("REGRESSION") == 2
    assert "dials: no memory" in said.err
