"""Training runs whose standard output and error go away (Linux).

Their actors print at every step, and may not fail a single time.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from benchmark.chaos.limits import can_mount, on_tmpfs
from benchmark.chaos.signals import end_group, environment, listen, wait_until_gone
from lrl.checkpoints.files import CheckpointError, read_checkpoint
from lrl.checkpoints.runs import resolve_checkpoint
from lrl.testing.ledger_env import LedgerEnv
from lrl.types import ConfigError

_LEARNER_STEPS = 200
_SECONDS = 120.0
_FIT = ("-m", "lrl", "fit", "--config", "config.yaml")
_CONFIG = f"""
name: told
trainer: {{max_steps: {_LEARNER_STEPS}}}
model:
  encoder: {{class_path: lrl.networks.MLPEncoder, init_args: {{hidden_sizes: [16]}}}}
data:
  env: {{id: "{__name__}:lrl/Talking-v0"}}
  actors: {{num_actors: 2, chunk_rows: 16, max_restarts: 0}}
  replay: {{capacity: 20000}}
  rate: {{samples_per_insert: 4.0, warm_up_env_steps: 200}}
  learner_threads: 1
"""


class Talking(LedgerEnv):
    """Prints at every step, in the process of its actor."""

    def step(self, action: int) -> Any:
        """Say it on both streams."""
        for stream in (sys.stdout, sys.stderr):
            stream.write("a step was made\n")
            stream.flush()
        return super().step(action)


if "lrl/Talking-v0" not in gymnasium.registry:
    gymnasium.register("lrl/Talking-v0", f"{__name__}:Talking")


@dataclass
class Told:
    """What became of runs that lost their output.

    Attributes:
        runs: How many there were.
        wrong: Wrong ends, checkpoints and words.
    """

    runs: int = 0
    wrong: list[str] = field(default_factory=list)


def lose_outputs(folder: Path, names: Sequence[str] = ()) -> Told:
    """Train once with each kind of output that goes away, full disks where they can be mounted.

    Args:
        folder: Takes the files of the runs.
        names: Of the kinds; all, if there are none.
    """
    listen()
    (folder / "config.yaml").write_text(_CONFIG)
    told = Told()
    attacks = {
        "a pipe that is closed": _close_pipe,
        "a pipe that is closed, then Ctrl-C": _close_pipe_and_interrupt,
        "a terminal that is closed": _close_terminal,
        "/dev/full": _full_device,
        "/dev/full for standard output alone": _full_standard_output,
        "no streams at all": _no_streams,
        **({"a disk that fills up": _full_disk} if can_mount() else {}),
    }
    for name in names or attacks:
        attack = attacks[name]
        code, said = attack(folder)
        interrupted = attack is _close_pipe_and_interrupt
        told.runs += 1
        is_right = code == (130 if interrupted else 0) and _is_saved(folder, interrupted)
        if not is_right or "Traceback" in said or "Exception ignored" in said:
            told.wrong.append(f"{name}: exit code {code}: {said[-2000:]}")
    return told


def _is_saved(folder: Path, interrupted: bool) -> bool:
    try:
        path = resolve_checkpoint("last", folder / "runs", "told")
        learner_step = read_checkpoint(Path(str(path)))["global_step"]
    except (ConfigError, CheckpointError):
        return False
    for file in folder.glob("runs/told/*/checkpoints/*"):
        file.unlink()
    return learner_step > 0 if interrupted else learner_step == _LEARNER_STEPS


def _start(folder: Path, *more: str, **streams: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, *_FIT, *more], cwd=folder, env=environment(), start_new_session=True,
        **streams,
    )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end; return the exit code, or -1 if it does not come or leaves processes."""
    try:
        code = process.wait(_SECONDS)
        return -1 if wait_until_gone(process) else code
    except subprocess.TimeoutExpired:
        return -1
    finally:
        end_group(process)


def _close_pipe(folder: Path) -> tuple[int, str]:
    """`lrl fit 2>&1 | head -1`."""
    reading, writing = os.pipe()
    process = _start(folder, stdout=writing, stderr=writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.readline()
    return _end(process), said


def _close_pipe_and_interrupt(folder: Path) -> tuple[int, str]:
    """Ctrl-C in `lrl fit 2>&1 | tee log`, which ends the other program first."""
    reading, writing = os.pipe()
    endless = ("--trainer.max_steps", "1000000", "--actor_learner.save_period_learner_steps", "9")
    process = _start(folder, *endless, stdout=writing, stderr=writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.readline()
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if any(folder.glob("runs/told/*/checkpoints/last.ckpt")):
            os.killpg(process.pid, signal.SIGINT)
            break
        time.sleep(0.05)
    return _end(process), said


def _close_terminal(folder: Path) -> tuple[int, str]:
    """Without the SIGHUP that a shell would pass on: the terminal does not control the run."""
    keyboard, screen = pty.openpty()
    process = _start(folder, stdin=screen, stdout=screen, stderr=screen)
    os.close(screen)
    said = os.read(keyboard, 1000).decode()
    os.close(keyboard)
    return _end(process), said


def _full_device(folder: Path) -> tuple[int, str]:
    with Path("/dev/full").open("w") as full:
        return _end(_start(folder, stdout=full, stderr=full)), ""


def _full_standard_output(folder: Path) -> tuple[int, str]:
    output = folder / "output"
    with Path("/dev/full").open("w") as full, output.open("w") as file:
        code = _end(_start(folder, stdout=full, stderr=file))
    said = output.read_text()
    told = said.count("lrl: warning: standard output cannot be written (No space left on device)")
    return (code, said) if told == 1 else (-1, said)


def _no_streams(folder: Path) -> tuple[int, str]:
    """`lrl fit >&- 2>&-`."""
    command = ["sh", "-c", 'exec "$0" "$@" >&- 2>&-', sys.executable, *_FIT]
    process = subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True)
    return _end(process), ""


def _full_disk(folder: Path) -> tuple[int, str]:
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    into_log = f' >"{disk}/log" 2>&1; code=$?; cat "{disk}/log"; exit $code'
    result = on_tmpfs(str(disk), folder, _FIT, into_log, size="64k")
    return result.returncode, result.stdout
