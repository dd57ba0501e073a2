"""Ctrl-C and SIGTERM, again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
import torch
from helpers.command_line import Project
from helpers.training_runs import kill_group, process_group
from helpers.waiting import wait_for


@pytest.mark.slow
def test_three_times_ctrl_c_ends_at_once_with_a_whole_checkpoint(tmp_path):
    """They come while a checkpoint may be on its way to the disk: one is saved at each step."""
    project = Project(tmp_path)
    often = ["--trainer.max_steps", "1000000", "--actor_learner.save_period_learner_steps", "1"]
    process = project.start("fit", "--config", "base.yaml", *often)
    last = project.runs / "version_0" / "checkpoints" / "last.ckpt"
    try:
        wait_for(last.exists, "a checkpoint", seconds=200.0)
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
        process.wait(100)
        wait_for(lambda: not process_group(process.pid), "all processes gone", seconds=10.0)
    finally:
        kill_group(process.pid)
        error = process.communicate()[1]
    assert process.returncode in (130, -signal.SIGINT), error  # the same to a shell
    assert torch.load(last, weights_only=True)["global_step"] > 0


HANGING = """
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 20:
            Path("hangs").touch()
            time.sleep(1000)
        return super().step(action)

gymnasium.register("Hanging-v0", Hanging)
"""


@pytest.mark.slow
def test_a_second_sigterm_ends_a_learner_whose_own_environment_hangs(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "hanging.py").write_text(HANGING)
    environment = ["--data.env.id", "hanging:Hanging-v0", "--data.env.kwargs", "{}"]
    process = project.start(
        "fit", "--config", "base.yaml", *environment, "--data.actors.num_actors", "0"
    )
    try:
        wait_for((tmp_path / "hangs").exists, "the environment to hang", seconds=200.0)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3.0)  # it waits for the end of the step
        process.send_signal(signal.SIGTERM)
        process.wait(100)
    finally:
        kill_group(process.pid)
        error = process.communicate()[1]
    assert process.returncode == 143, error
    assert "lrl: stopped by SIGTERM" in error
