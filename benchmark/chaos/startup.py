"""Commands that are ended while they start: at even intervals of their first seconds (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.chaos.signals import end_group, environment, listen, wait_until_gone
from benchmark.leftovers import named_segments, segments_since

SECONDS = 5.0
"""How long a start is attacked: all imports, set-up, and actors that start."""
_WORDS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
_CONFIG = """
name: started
trainer: {enable_progress_bar: false}
model:
  encoder: {class_path: lrl.networks.MLPEncoder, init_args: {hidden_sizes: [16]}}
data:
  env: {id: lrl/Ledger-v0, kwargs: {end_probability: 0.01}}
  actors: {num_actors: 2, chunk_rows: 16}
  replay: {capacity: 20000}
  rate: {samples_per_insert: 4.0, warm_up_env_steps: 200}
  learner_threads: 1
"""


@dataclass
class Started:
    """What became of commands that were ended while they started.

    Attributes:
        runs: How many there were.
        seconds: The longest time until all processes were gone.
        wrong: Other exit codes and words than promised, tracebacks, and what was left, in words.
    """

    runs: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def save_checkpoint(folder: Path) -> None:
    """Leave a folder with `config.yaml` and a checkpoint of the run `dqn`, the default's name."""
    (folder / "config.yaml").write_text(_CONFIG)
    arguments = ("fit", "--config", "config.yaml", "--name", "dqn", "--trainer.max_steps", "5")
    command = [sys.executable, "-m", "lrl", *arguments]
    subprocess.run(command, cwd=folder, env=environment(), capture_output=True, check=True)


def end_starts(
    folder: Path, arguments: Sequence[str], number: signal.Signals, moments: int
) -> Started:
    """End a command by a signal to its process group, at even intervals of its start.

    Args:
        folder: What `save_checkpoint` left; the current folder of the command.
        arguments: Of `lrl`.
        number: The signal.
        moments: Number of commands that are started.
    """
    listen()
    ended = Started()
    for index in range(moments):
        _end_start(folder, arguments, number, index * SECONDS / moments, ended)
    return ended


def _end_start(
    folder: Path, arguments: Sequence[str], number: signal.Signals, after: float, ended: Started
) -> None:
    before, output = named_segments(), folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lrl", *arguments], cwd=folder, stdout=file, stderr=file,
            start_new_session=True, env=environment(),
        )  # fmt: skip
    try:
        _wait_until_it_listens(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        has_ended, since = process.poll() is not None, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        left = [f"process {pid}" for pid in wait_until_gone(process)]
        ended.seconds = max(ended.seconds, time.monotonic() - since)
    finally:
        end_group(process)
    ended.runs += 1
    left += [f"/dev/shm/{name}" for name in segments_since(before)]
    left += [str(path) for path in unused_versions(folder / "runs")]
    said = output.read_text()
    is_told = said.count(f"lrl: stopped by {_WORDS[number]}\n") == 1
    is_right = has_ended or (process.returncode == 128 + number and is_told)
    if arguments[0] != "fit":  # in Python's own last moments, with all done
        is_right |= process.returncode == -number
    if left or not is_right or "Traceback" in said or "Exception ignored" in said:
        ended.wrong.append(f"after {after:.2f} s: {process.returncode}, {left}: {said[-2000:]}")


def unused_versions(runs: Path) -> list[Path]:
    """Return the folders of runs that hold no checkpoint."""
    return [path for path in runs.glob("*/version_*") if not any(path.glob("checkpoints/*.ckpt"))]


def _wait_until_it_listens(process: subprocess.Popen[bytes]) -> None:
    """Wait for lrl's first instructions: Python itself leaves SIGHUP alone."""
    status, bit = Path(f"/proc/{process.pid}/status"), 1 << signal.SIGHUP - 1
    deadline = time.monotonic() + 60.0
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, StopIteration):
            lines = status.read_text().splitlines()
            caught = next(line for line in lines if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) & bit:
                return
        time.sleep(0.001)
