"""Two ranks that a signal stops: together, saved, and with one set of numbers."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from helpers.command_line import Project
from helpers.training_runs import kill_group, process_group, rank_processes
from helpers.waiting import wait_for

from lrl.checkpoints.files import read_checkpoint

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

# Nothing is saved but at the end. Rows are written often: the first tells that it trains.
ENDLESS = """
trainer:
  max_steps: 1000000000
  limit_train_batches: 1000
  log_every_n_steps: 5
  accelerator: cpu
  devices: 2
data: {actors: {num_actors: 1}, evaluation: {episodes: 4, test_episodes: 4}}
actor_learner: {eval_period_learner_steps: 0, save_period_learner_steps: 0}
"""


def stop(project: Project, kind: str) -> tuple[int, str, Path]:
    """Let a run be stopped once it trains; return exit code, standard error and its folder."""
    rows = project.runs / "version_0/metrics.csv"
    process = project.start("fit", "--config", "base.yaml", "--config", "endless.yaml")
    try:
        wait_for(lambda: rows.exists() and rows.stat().st_size, "the first row", seconds=150.0)
        if kind == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(rank_processes(process.pid, b"endless.yaml")[0], signal.SIGTERM)
        _, err = process.communicate(timeout=60.0)
        wait_for(lambda: not process_group(process.pid), "the end of all", seconds=10.0)
    finally:
        kill_group(process.pid)
        process.wait()
    return process.returncode, err, rows.parent


@pytest.mark.parametrize(
    ("kind", "code", "word"), [("ctrl-c", 130, "Ctrl-C"), ("term", 143, "SIGTERM")]
)
def test_a_signal_stops_all_ranks_saved_and_the_run_goes_on_from_there(tmp_path, kind, code, word):
    project = Project(tmp_path)
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    returned, err, folder = stop(project, kind)
    assert returned == code, err
    assert "Traceback" not in err
    assert err.count(f"lrl: stopped by {word}") == 1  # and not once for each rank
    saved = read_checkpoint(folder / "checkpoints/last.ckpt")["global_step"]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["ranks"], summary["ranks_counted"]) == (2, 2)
    assert summary["learner_steps"] == saved > 0
    assert summary["env_steps"] == sum(actor["env_steps"] for actor in summary["actors"])
    assert {actor["rank"] for actor in summary["actors"]} == {0, 1}
    assert f"total of 2 ranks: {summary['env_steps']:,} env steps" in err
    with (folder / "metrics.csv").open() as file:
        *_, row = csv.DictReader(file)
    assert float(row["count/env_steps"]) <= summary["env_steps"]
    assert f"2 ranks: {float(row['count/env_steps']):,.0f} env steps" in err  # the bar's last line
    if kind == "term":
        return
    last = project.start(
        "fit", "--config", "base.yaml", "--config", "endless.yaml", "--ckpt_path", "last",
        "--trainer.max_steps", str(saved + 5),
    )  # fmt: skip
    _, err = last.communicate(timeout=100.0)
    assert last.returncode == 0, err
    (resumed,) = {*project.runs.glob("version_*")} - {folder}
    assert read_checkpoint(resumed / "checkpoints/last.ckpt")["global_step"] == saved + 5
