"""A window of a training run: environment steps and seconds, once it runs at its own pace."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark.leftovers import descendants


@dataclass(frozen=True)
class Pace:
    """What a side did in its window.

    Attributes:
        env_steps_per_second: Environment steps, agents' own, not frames.
        updates_per_second: Optimizer steps.
        peak_bytes: Memory of the process and its descendants, each at its peak; what they share
            counts for each.
    """

    env_steps_per_second: float
    updates_per_second: float
    peak_bytes: int


class Window:
    """Counts what happens between a number of environment steps and some seconds later.

    Args:
        path: Takes the `Pace` as JSON.
        first_env_step: Where the window begins; learning has begun by then.
        seconds: Length.
    """

    def __init__(self, path: Path, first_env_step: int, seconds: float) -> None:
        self.path, self.first_env_step, self.seconds = path, first_env_step, seconds
        self._began: tuple[float, int, int] | None = None

    def is_over(self, env_steps: int, updates: int) -> bool:
        """Take the counts as they are now; return whether the window has ended."""
        now = time.perf_counter()
        if self._began is None:
            if env_steps >= self.first_env_step:
                self._began = now, env_steps, updates
            return False
        began, first_env_steps, first_updates = self._began
        seconds = now - began
        if seconds < self.seconds:
            return False
        pace = Pace(
            (env_steps - first_env_steps) / seconds,
            (updates - first_updates) / seconds,
            sum(_peak_bytes(pid) for pid in (os.getpid(), *descendants(os.getpid()))),
        )
        self.path.write_text(json.dumps(asdict(pace)))
        return True


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    _, _, peak = status.partition("VmHWM:")
    return 1024 * int(peak.split()[0]) if peak else 0


class WindowOver(Exception):
    """Ends the training of a library that has no other way to be ended."""
