"""An asynchronous run that was stopped half way plays on as well as before, on the command line."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STOP, END = 2000, 3000


def fit(runs: Path, max_steps: int, *arguments: str) -> list[dict[str, str]]:
    """Train by the recipe and return the metrics of the session."""
    command = [
        sys.executable, "-m", "lrl", "fit", "--config", "configs/cartpole.yaml",
        "--runs", str(runs), "--trainer.max_steps", str(max_steps),
        "--actor_learner.checkpoint_replay", "true", "--trainer.enable_progress_bar", "false",
        *arguments,
    ]  # fmt: skip
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr
    newest = max((runs / "cartpole").iterdir(), key=lambda folder: int(folder.name.split("_")[1]))
    with (newest / "metrics.csv").open() as file:
        return [
            {name: value for name, value in row.items() if value} for row in csv.DictReader(file)
        ]


def scores(rows: list[dict[str, str]]) -> list[float]:
    return [float(row["eval/return_mean"]) for row in rows if "eval/return_mean" in row]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    runs = tmp_path_factory.mktemp("stopped")
    return runs, fit(runs, STOP)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("with_replay", [True, False])
def test_the_score_does_not_fall(tmp_path, stopped, with_replay):
    folder, before = stopped
    runs = tmp_path / "runs"
    shutil.copytree(folder, runs)
    if not with_replay:
        for saved in runs.glob("cartpole/*/checkpoints/replay"):
            shutil.rmtree(saved)
    after = fit(runs, END, "--ckpt_path", "last")

    last, first = (next(r for r in rows if "train/epsilon" in r) for rows in (before[::-1], after))
    steps = int(first["step"]) - STOP
    refill = 0 if with_replay else 1000
    env_steps = float(first["count/env_steps"]) - float(last["count/env_steps"])
    assert env_steps >= 0.9 * (64 * steps + refill)  # neither a burst of updates, nor of steps
    assert env_steps <= 1.1 * (64 * steps + refill) + 2 * 64 * 4  # what waits in the actors' rings
    assert float(first["train/epsilon"]) <= float(last["train/epsilon"])

    assert len(scores(after)) == (END - STOP) // 250
    assert np.mean(scores(after)) >= 0.8 * min(scores(before)[-4:])  # a dip is no loss
