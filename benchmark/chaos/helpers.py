"""Runs in which one of multiprocessing's own processes is stopped, as by a debugger (Linux).

They are the fork server, from which actors come, and the resource tracker. Each has to let the run
go on and end; what it leaves is looked for in /proc and in a temporary folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.chaos.figures import Figure, Sizes
from benchmark.chaos.signals import Phases, end_group, environment, listen, processes_of

_HELPERS = ("forkserver", "resource_tracker")
_MOMENTS = ("start", "training")
_ACTORS = 2
_PATIENCE_SECONDS = 120.0
_CONFIG = """
name: stopped
trainer:
  enable_progress_bar: false
  callbacks:
    - {{class_path: {module}.Phases, init_args: {{file: {file}}}}}
model:
  encoder: {{class_path: lrl.networks.MLPEncoder, init_args: {{hidden_sizes: [64]}}}}
data:
  env: {{id: lrl/Ledger-v0}}
  actors: {{num_actors: {actors}, envs_per_actor: 2}}
  replay: {{capacity: 20000}}
  rate: {{samples_per_insert: 4.0, warm_up_env_steps: 500}}
  learner_threads: 1
actor_learner:
  sync_period_learner_steps: 10
  eval_period_learner_steps: 0
"""


@dataclass
class Stopped:
    """What became of runs whose helpers were stopped.

    Attributes:
        runs: How many there were.
        replaced: Actors that were killed meanwhile, and replaced.
        seconds: The longest time from the signal until all processes were gone.
        wrong: Wrong exit codes, tracebacks, and what was left after a minute, in words.
    """

    runs: int = 0
    replaced: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def helpers(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Stop the fork server and the resource tracker of runs, and end the runs."""
    for number, code, name in (
        (signal.SIGINT, 130, "Ctrl-C"),
        (signal.SIGKILL, -signal.SIGKILL, "SIGKILL to the group"),
    ):
        stopped = stop_helpers(sizes.count, folder, number, code)
        for problem in stopped.wrong:
            print(problem, file=sys.stderr)
        yield Figure(
            f"SIGSTOP to the fork server or the resource tracker of {stopped.runs} runs, at their "
            f"start or with a SIGKILL to an actor, and again before {name}",
            "the run begins, actors are replaced and learning goes on; then all are gone within 5 "
            f"s, with exit code {code}, no traceback, and nothing in the temporary folder",
            f"{stopped.replaced} actors replaced; gone within {stopped.seconds:.2f} s, "
            f"{len(stopped.wrong)} otherwise",
            stopped.seconds <= 5.0 and not stopped.wrong,
        )


def stop_helpers(count: int, folder: Path, number: signal.Signals, code: int) -> Stopped:
    """Stop each helper in turn, at the run's start and while it trains; end the runs.

    Args:
        count: Number of runs.
        folder: Takes their files.
        number: The signal that ends them.
        code: The exit code that it has to give.
    """
    listen()
    stopped = Stopped()
    for index in range(count):
        helper = _HELPERS[index % 2]
        moment = _MOMENTS[index // 2 % 2]
        place = folder / f"{number.name}-{index}"
        place.mkdir()
        try:
            with tempfile.TemporaryDirectory() as temporary:  # names of sockets have to be short
                _run(place, Path(temporary), helper, moment, number, code, stopped)
                left = [str(path) for path in sorted(Path(temporary).iterdir())]
                stopped.wrong += [f"{helper}, {moment}: {path}" for path in left]
        except (RuntimeError, TimeoutError) as error:
            said = (place / "output").read_text()[-2000:]
            stopped.wrong.append(f"{helper}, {moment}: {error}\n{said}")
        stopped.runs += 1
    return stopped


def _run(
    folder: Path,
    temporary: Path,
    helper: str,
    moment: str,
    number: signal.Signals,
    code: int,
    stopped: Stopped,
) -> None:
    run = _Run(folder, temporary)
    try:
        if moment == "start":
            run.stop(helper)
        run.wait_for(lambda: run.learner_step() > 0, "the first learner step")
        if moment == "training":
            run.stop(helper)
            run.replace_an_actor()
            stopped.replaced += 1
        before = run.learner_step()
        run.wait_for(lambda: run.learner_step() > before + 20, "more learner steps")
        run.stop(helper)
        since = time.monotonic()
        os.killpg(run.process.pid, number)
        run.wait_for(run.is_gone, "its end", ended=True)
        stopped.seconds = max(stopped.seconds, time.monotonic() - since)
    finally:
        end_group(run.process)
    said = (folder / "output").read_text()
    if run.process.returncode != code or "Traceback" in said:
        end = f"exit code {run.process.returncode}"
        stopped.wrong.append(f"{helper}, {moment}: {end}: {said[-2000:]}")


class _Run:
    """A run of `lrl fit`, from outside.

    Args:
        folder: Takes its files.
        temporary: Its temporary folder.
    """

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._file, config = folder / "phase", folder / "config.yaml"
        config.write_text(_CONFIG.format(module=Phases.__module__, file=self._file, actors=_ACTORS))
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lrl", "fit", "--config", str(config)], cwd=folder,
                stdout=output, stderr=output, start_new_session=True,
                env={**environment(), "TMPDIR": str(temporary)},
            )  # fmt: skip

    def is_gone(self) -> bool:
        """Return whether all its processes have ended."""
        return self.process.poll() is not None and not processes_of(self.process.pid)

    def stop(self, helper: str) -> None:
        """Stop a helper, as soon as there is one."""
        os.kill(self.helper(helper), signal.SIGSTOP)

    def wait_for(self, condition: Callable[[], object], what: str, ended: bool = False) -> None:
        """Wait for something; raise if it does not come."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{_PATIENCE_SECONDS:g} s without {what}: {self.members()}")
            if not ended and self.process.poll() is not None:
                raise RuntimeError(f"the run ended before {what}")
            time.sleep(0.005)

    def learner_step(self) -> int:
        """Return the last learner step that was told; 0 before the first."""
        phase, _, learner_step = (self._file.read_text() if self._file.exists() else "").partition(
            " "
        )
        return int(learner_step) if phase == "training" else 0

    def members(self) -> dict[int, str]:
        """Return the living processes, and which command each was started with."""
        found = {}
        for pid in processes_of(self.process.pid):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return found

    def helper(self, name: str) -> int:
        """Wait for a helper; return its process id."""
        found: list[int] = []

        def look() -> bool:
            children = self._children(self.process.pid)
            members = self.members()
            found[:] = [
                pid for pid in children if f"multiprocessing.{name}" in members.get(pid, "")
            ]
            return bool(found)

        self.wait_for(look, f"the {name}")
        return found[0]

    def replace_an_actor(self) -> None:
        """Kill an actor and wait for its successor."""
        server = self.helper("forkserver")
        before = self._children(server)
        os.kill(min(before), signal.SIGKILL)
        self.wait_for(
            lambda: len(now := self._children(server)) == _ACTORS and now != before, "a new actor"
        )

    def _children(self, parent: int) -> set[int]:
        found = set()
        for pid in processes_of(self.process.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.add(pid)
        return found
