"""Several ranks, one of which dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from helpers.command_line import Project
from helpers.training_runs import (
    environment_for_subprocess,
    kill_group,
    process_group,
    rank_processes,
)
from helpers.waiting import wait_for

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


@pytest.mark.parametrize("lost", [0, 1])
def test_when_a_rank_is_killed_everything_ends(tmp_path, lost):
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.endless_run", str(tmp_path), "2"],
        env=environment_for_subprocess(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for((tmp_path / "ready").exists, "the first steps", seconds=200.0)
        found = rank_processes(process.pid)
        assert set(found) == {0, 1}
        os.kill(found[lost], signal.SIGKILL)
        wait_for(lambda: not process_group(process.pid), "the end of all", seconds=65.0)
    finally:
        kill_group(process.pid)
        process.wait()
    assert process.returncode != 0


ENDLESS = """
trainer: {max_steps: 1000000000, limit_train_batches: null, accelerator: cpu, devices: 2}
data: {actors: {num_actors: 0}, evaluation: {episodes: 4, test_episodes: 4}}
actor_learner: {eval_period_learner_steps: 0, save_period_learner_steps: 5}
"""


def test_the_command_line_says_that_a_rank_was_lost_and_how_to_go_on(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    process = project.start("fit", "--config", "base.yaml", "--config", "endless.yaml")
    try:
        last = project.runs / "version_0" / "checkpoints" / "last.ckpt"
        wait_for(last.exists, "the first checkpoint", seconds=200.0)
        os.kill(rank_processes(process.pid, b"endless.yaml")[1], signal.SIGKILL)
        _, err = process.communicate(timeout=65.0)
    finally:
        kill_group(process.pid)
        process.wait()
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "total of 2 ranks (2 times that of rank 0, since the others could not be asked)" in err
    (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
    assert "another rank ended" in line
    assert line.endswith("(rank 1 was killed by SIGKILL)")
    assert f"--ckpt_path {last.relative_to(tmp_path)}" in line


def test_ranks_that_do_not_find_each_other_leave_nothing_behind(tmp_path, monkeypatch):
    project = Project(tmp_path)
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        process = project.start("fit", "--config", "base.yaml", "--config", "endless.yaml")
        try:
            _, err = process.communicate(timeout=120.0)
        finally:
            kill_group(process.pid)
            process.wait()
    assert process.returncode == 1
    assert "lrl: error: the ranks did not find each other: MASTER_ADDR and MASTER_PORT" in err
    assert [*project.runs.glob("version_*")] == []
