"""Runs that are ended from outside, at random moments of each phase.

`lrl fit` runs in a process group of its own; what is left of it is looked for in /proc (Linux).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import lightning as L

from benchmark.leftovers import named_segments, segments_since
from lrl.checkpoints.files import CheckpointError, read_checkpoint
from lrl.checkpoints.runs import resolve_checkpoint
from lrl.types import ConfigError

Target = Literal["learner", "group"]
PHASES = ("start", "warm-up", "training", "evaluation", "saving")
_SECONDS = {"start": 3.0, "warm-up": 1.0, "training": 0.5, "evaluation": 0.05, "saving": 0.02}
"""Up to how long after its beginning a phase is interrupted."""
_AFTER_A_SAVE = ("evaluation", "saving")
"""Phases in which the run waits until `last.ckpt` is there: then it must stay, whatever happens."""
_PATIENCE_SECONDS = 120.0
_FIRST_SAVE = 50  # learner steps
_FIT = (sys.executable, "-m", "lrl", "fit", "--config")
_EXIT_CODES = {
    # As long as Python or Lightning have not begun to listen, the signal itself ends the process.
    signal.SIGINT: {"start": (130, -signal.SIGINT), "later": (130,)},
    signal.SIGTERM: {"start": (143, -signal.SIGTERM), "later": (143,)},
    signal.SIGHUP: {"start": (129, -signal.SIGHUP), "later": (129,)},
    signal.SIGKILL: {"start": (-signal.SIGKILL,), "later": (-signal.SIGKILL,)},
}
_CONFIG = """
name: ended
trainer:
  enable_progress_bar: false
  callbacks:
    - {{class_path: {module}.Phases, init_args: {{file: {file}}}}}
model:
  encoder: {{class_path: lrl.networks.MLPEncoder, init_args: {{hidden_sizes: [128, 128]}}}}
data:
  env: {{id: lrl/Ledger-v0, kwargs: {{end_probability: 0.01}}}}
  actors: {{num_actors: 2, envs_per_actor: 2, chunk_rows: 16}}
  replay: {{capacity: 20000}}
  rate: {{samples_per_insert: 4.0, warm_up_env_steps: 2000}}
  learner_threads: 1
actor_learner:
  sync_period_learner_steps: 10
  eval_period_learner_steps: 75
  save_period_learner_steps: {first_save}
  checkpoint_replay: true
"""


class Phases(L.Callback):
    """Write what the run is doing to a file, each phase when it begins.

    Args:
        file: The file.
    """

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def _write(self, phase: str, trainer: L.Trainer) -> None:
        temporary = self.file.with_suffix(".new")
        temporary.write_text(f"{phase} {trainer.global_step}")
        temporary.replace(self.file)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Actors start, and fill the replay."""
        self._write("warm-up", trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write it after the first step, from which on there is something to save."""
        if trainer.global_step in (1, 2) or trainer.global_step % 10 == 5:
            self._write("training", trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Episodes are played; `last.ckpt` is of an earlier step."""
        self._write("evaluation", trainer)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A file is about to be written, the second one at the earliest."""
        if trainer.global_step > _FIRST_SAVE:
            self._write("saving", trainer)


@dataclass
class Ended:
    """What became of runs that were ended by one signal.

    Attributes:
        runs: How many there were.
        seconds: The longest time until all processes were gone.
        left: Processes and names in /dev/shm that were still there after a minute, in words.
        wrong: Wrong exit codes, tracebacks, and checkpoints that were missing, unreadable or old.
        checkpoints: Checkpoints that were read.
        resumed: Runs that went on from them, with their replay.
        refilled: The same without, as they said: the replay was still being saved.
    """

    runs: int = 0
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    checkpoints: int = 0
    resumed: int = 0
    refilled: int = 0


def end_runs(number: signal.Signals, target: Target, moments: int, seed: int = 0) -> Ended:
    """End runs by a signal, at random moments of all phases in turn.

    Args:
        number: The signal.
        target: The learner alone, or its whole process group, as a terminal does on Ctrl-C.
        moments: Number of runs.
        seed: Of the moments.
    """
    listen()
    rng, ended = random.Random(seed), Ended()
    for index in range(moments):
        with tempfile.TemporaryDirectory() as name:
            _end_run(Path(name), number, target, PHASES[index % len(PHASES)], rng, ended)
    return ended


def listen() -> None:
    """Ignore no signal, as a shell's job in the background does: runs would ignore it too."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),  # after `nohup`
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def _end_run(
    folder: Path,
    number: signal.Signals,
    target: Target,
    phase: str,
    rng: random.Random,
    ended: Ended,
) -> None:
    file, config = folder / "phase", folder / "config.yaml"
    config.write_text(_CONFIG.format(module=Phases.__module__, file=file, first_save=_FIRST_SAVE))
    segments = named_segments()
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*_FIT, str(config)], cwd=folder, stdout=output, stderr=output, start_new_session=True,
            env=environment(),
        )  # fmt: skip
    try:
        learner_step = _wait_for(phase, file, process)
        time.sleep(rng.uniform(0.0, _SECONDS[phase]))
        since = time.monotonic()
        (os.killpg if target == "group" else os.kill)(process.pid, number)
        left = wait_until_gone(process)
        ended.seconds = max(ended.seconds, time.monotonic() - since)
        ended.left += [f"{phase}: process {pid}" for pid in left]
        ended.left += [f"{phase}: /dev/shm/{name}" for name in segments_since(segments)]
    finally:
        end_group(process)
    ended.runs += 1
    codes = _EXIT_CODES[number]["start" if phase == "start" else "later"]
    said = (folder / "output").read_text()
    if process.returncode not in codes:
        ended.wrong.append(f"{phase}: exit code {process.returncode}: {said[-2000:]}")
    if "Traceback" in said:
        ended.wrong.append(f"{phase}: {said[-2000:]}")
    _check_checkpoint(folder, number, phase, learner_step, ended)


def _check_checkpoint(
    folder: Path, number: signal.Signals, phase: str, learner_step: int, ended: Ended
) -> None:
    """Read what a resumed run would start from, where it was promised or is there.

    A signal that asks to stop saves what the run has come to; after a SIGKILL the save before
    is there.
    """
    saves = number != signal.SIGKILL and phase in ("training", *_AFTER_A_SAVE)
    promised = saves or phase in _AFTER_A_SAVE
    if not promised and not any(folder.glob("runs/ended/*/checkpoints/*.ckpt")):
        return
    try:
        path = resolve_checkpoint("last", folder / "runs", "ended")
        found = read_checkpoint(Path(str(path)))["global_step"]
    except (ConfigError, CheckpointError) as error:
        ended.wrong.append(f"{phase}: {error}")
        return
    ended.checkpoints += 1
    if number == signal.SIGKILL:
        _resume(folder, found, phase, ended)
    least = learner_step if saves else _FIRST_SAVE if phase in _AFTER_A_SAVE else 1
    if found < least:
        ended.wrong.append(f"{phase}: {path} is of learner step {found}, not of {least} or later")


def _resume(folder: Path, learner_step: int, phase: str, ended: Ended) -> None:
    """Go on with what was saved, for ten learner steps."""
    more = ["--ckpt_path", "last", "--trainer.max_steps", str(learner_step + 10)]
    result = subprocess.run(
        [*_FIT, str(folder / "config.yaml"), *more], cwd=folder, env=environment(),
        capture_output=True, text=True, timeout=_PATIENCE_SECONDS,
    )  # fmt: skip
    said = result.stderr + result.stdout
    if result.returncode == 0 and "is restored" in said:
        ended.resumed += 1
    elif result.returncode == 0 and "is left out, and filled" in said:
        ended.refilled += 1
    else:
        ended.wrong.append(f"{phase}, resumed: {result.returncode}: {result.stderr[-2000:]}")


def environment() -> dict[str, str]:
    """Return the variables with which a command finds what this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _wait_for(phase: str, file: Path, process: subprocess.Popen[bytes]) -> int:
    """Wait for a phase; return the learner step at which it began."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while phase != "start":
        now, _, learner_step = (file.read_text() if file.exists() else "").partition(" ")
        if now == phase:
            return int(learner_step)
        if process.poll() is not None or time.monotonic() > deadline:
            output = (file.parent / "output").read_text()
            raise RuntimeError(f"the run did not come to {phase}:\n{output}")
        time.sleep(0.001)
    return 0


def wait_until_gone(process: subprocess.Popen[bytes]) -> list[int]:
    """Wait for the end of a process and its group; return those that are left after a minute."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        if process.poll() is not None and not processes_of(process.pid):
            return []
        time.sleep(0.005)
    return processes_of(process.pid)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process and its group."""
    for pid in processes_of(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def processes_of(group: int) -> list[int]:
    """Return the processes of a group that are alive (Linux)."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                members.append(int(entry.name))
    return members
