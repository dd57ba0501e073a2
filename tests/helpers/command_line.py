"""A folder with configurations in which commands of the command line are run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.training_runs import environment_for_subprocess, quiet
from lrl.__main__ import main

quiet_commands = [
    *quiet,
    # How Lightning uses jsonargparse.
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BASE = """
name: small
trainer: {max_steps: 40, log_every_n_steps: 10, limit_train_batches: 20}
model:
  encoder: {class_path: lrl.networks.MLPEncoder, init_args: {hidden_sizes: [16]}}
  optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  env: {id: lrl/Identity-v0, kwargs: {length: 5}}
  actors: {num_actors: 2, envs_per_actor: 2}
  replay: {capacity: 2000, batch_size: 8}
  rate: {samples_per_insert: 4.0, warm_up_env_steps: 50}
  evaluation: {episodes: 3, test_episodes: 6}
actor_learner: {eval_period_learner_steps: 20}
"""
OVERLAY = """
model:
  bootstrap: {class_path: lrl.learner.DoubleBootstrap}
data:
  replay: {batch_size: 12}
"""


class Project:
    """A folder with two configurations, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "base.yaml").write_text(BASE)
        (folder / "overlay.yaml").write_text(OVERLAY)
        self.runs = folder / "runs" / "small"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own, as a shell does."""
        return subprocess.Popen(
            [sys.executable, "-m", "lrl", *arguments],
            cwd=self.folder,
            env=environment_for_subprocess(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
    ) -> tuple[object, str, str]:
        """Run a command in this process; return its exit code and what it printed."""
        monkeypatch.setattr(sys, "argv", ["lrl", *arguments])
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restores it
        code: object = None
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            main()
        except SystemExit as error:
            code = error.code
        finally:  # a command ends with its process, which signals end at once from then on
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = capsys.readouterr()
        return code, out, err

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=250)
        return process.returncode, out, err
