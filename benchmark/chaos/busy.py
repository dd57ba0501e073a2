"""Runs that get hardly any processor time, as beside somebody else's work (Linux).

`lrl fit` runs in the idle scheduling class, which takes what others leave. Beside as many ordinary
loops it would get a thousandth of a core, and import torch for half an hour; these are nice (19),
and leave it a tenth. `actors.timeout_seconds` is lowered so that a start takes several times as
long. All processes share one terminal session: Linux may divide the cores by session first.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TextIO

from benchmark.chaos.figures import Figure, Sizes
from benchmark.chaos.signals import Phases, end_group, environment

_BUSY = 4
_LEARNER_STEPS = 100
_PATIENCE_SECONDS = 600.0
_IN_IDLE_CLASS = (
    "import os, sys; os.setpgid(0, 0); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_LOOP = "import os; os.nice(19)\nwhile True: pass"
_CONFIG = """
name: busy
trainer:
  max_steps: {steps}
  enable_progress_bar: false
  callbacks:
    - {{class_path: {module}.Phases, init_args: {{file: {file}}}}}
model:
  encoder: {{class_path: lrl.networks.MLPEncoder, init_args: {{hidden_sizes: [32]}}}}
data:
  env: {{id: CartPole-v1}}
  actors: {{num_actors: 2, envs_per_actor: 4, timeout_seconds: {timeout}}}
  replay: {{capacity: 10000}}
  rate: {{samples_per_insert: 8.0, warm_up_env_steps: 200}}
  learner_threads: 1
actor_learner:
  sync_period_learner_steps: 10
  eval_period_learner_steps: 0
"""


@dataclass(frozen=True)
class BusyRun:
    """What became of one run.

    Attributes:
        code: Exit code; None if it did not end.
        first_step_seconds: From the start of the process to its first learner step; infinite if
            there was none.
        learner_steps: The last one, as far as it was told.
        said: Its output.
    """

    code: int | None
    first_step_seconds: float
    learner_steps: int
    said: str

    @property
    def restarts(self) -> int:
        """Processes that were taken for hung, or died."""
        return self.said.count("; restart ")

    @property
    def good(self) -> bool:
        """Whether all actors started, and it learned."""
        return self.code == 0 and self.learner_steps == _LEARNER_STEPS and not self.restarts


def busy(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Run in the idle scheduling class beside four busy processes."""
    with _loops(folder):
        torch_seconds = _idle_import(folder)
        runs = []
        for index in range(sizes.count):
            runs.append(run_in_idle_class(folder / f"run{index}", sizes.timeout))
            print(f"run {index}: {_in_words(runs[-1])}", file=sys.stderr, flush=True)
    yield figure_of(runs, torch_seconds, sizes.timeout)


def figure_of(runs: Sequence[BusyRun], torch_seconds: float, timeout_seconds: float) -> Figure:
    """Return what runs amount to.

    Args:
        runs: At least one.
        torch_seconds: How long it took to import torch under the same conditions.
        timeout_seconds: That of the actors.
    """
    good, starts = [run for run in runs if run.good], [run.first_step_seconds for run in runs]
    return Figure(
        f"{len(runs)} runs in the idle scheduling class beside {_BUSY} busy processes (nice 19), "
        f"`actors.timeout_seconds` {timeout_seconds:g}",
        f"each starts its actors, none of which is taken for hung, and learns {_LEARNER_STEPS} "
        "steps",
        f"{len(good)} of {len(runs)}, {sum(run.restarts for run in runs)} restarts; importing "
        f"torch took {torch_seconds:.0f} s, the first learner step came after "
        f"{median(starts):.0f} s (median), {max(starts):.0f} s (worst)",
        len(good) == len(runs),
    )


def run_in_idle_class(folder: Path, timeout_seconds: float) -> BusyRun:
    """Train a little, in the idle scheduling class."""
    folder.mkdir()
    file, config = folder / "phase", folder / "config.yaml"
    config.write_text(
        _CONFIG.format(
            module=Phases.__module__, file=file, steps=_LEARNER_STEPS, timeout=timeout_seconds
        )
    )
    began, first_step = time.monotonic(), float("inf")
    with (folder / "output").open("w") as output:
        process = _start_idle(["-m", "lrl", "fit", "--config", str(config)], folder, output)
    try:
        code = None
        while code is None and time.monotonic() < began + _PATIENCE_SECONDS:
            code = process.poll()
            if first_step == float("inf") and _has_learned(file):
                first_step = time.monotonic() - began
            time.sleep(0.2)
    finally:
        end_group(process)
    return BusyRun(code, first_step, _steps(folder), (folder / "output").read_text())


def _has_learned(file: Path) -> bool:
    return file.exists() and not file.read_text().startswith("warm-up")


def _steps(folder: Path) -> int:
    """Return the learner steps that a run's summary tells of."""
    for path in folder.glob("runs/*/*/summary.json"):
        return int(json.loads(path.read_text())["learner_steps"])
    return 0


def _in_words(run: BusyRun) -> str:
    said = "" if run.good else f"\n{run.said[-2000:]}"
    return (
        f"exit code {run.code}, first learner step after {run.first_step_seconds:.0f} s, "
        f"{run.learner_steps} learner steps, {run.restarts} restarts{said}"
    )


def _idle_import(folder: Path) -> float:
    began = time.monotonic()
    with (folder / "import").open("w") as output:
        process = _start_idle(["-c", "import torch"], folder, output)
    try:
        process.wait(_PATIENCE_SECONDS)
    finally:
        end_group(process)
    return time.monotonic() - began


@contextlib.contextmanager
def _loops(folder: Path) -> Iterator[None]:
    """Keep the processor busy."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP], cwd=folder) for _ in range(_BUSY)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _start_idle(arguments: list[str], folder: Path, output: TextIO) -> subprocess.Popen[bytes]:
    """Start Python in the idle scheduling class and a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _IN_IDLE_CLASS, *arguments], cwd=folder, stdout=output,
        stderr=output, env=environment(),
    )  # fmt: skip
