"""How many threads of torch the learner takes beside its actors."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch

from lrl.processes.memory import control_groups

MOST_THREADS = 1024
"""More threads than cores never help, and the system may refuse very many."""


def share_cores(threads: int | None, ranks: int, busy: int) -> int:
    """Set the learner's threads and return how many there were before.

    Args:
        threads: Number asked for; None leaves each actor, inference server and evaluator a core.
        ranks: Learners on this machine.
        busy: Threads that the actors, inference servers and evaluator of each of them keep busy.
    """
    threads = threads or default_learner_threads(available_cores() // ranks, busy)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    return before


def available_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: of its affinity, and as control groups ration.

    Args:
        root: Where /proc and /sys are found; tests pass a folder of their own.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    groups = root / "sys/fs/cgroup"
    rations = [
        *((folder / "cpu.max",) for folder in control_groups(root, groups, "")),
        *(
            (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
            for folder in control_groups(root, groups / "cpu", "cpu")
        ),
    ]
    return max(1, min([cores or 1, *(_ration(*files) for files in rations)]))


def _ration(*files: Path) -> int:
    """Return the cores, rounded up, of a quota and its period in microseconds."""
    try:
        quota, period = map(int, " ".join(file.read_text() for file in files).split())
    except (OSError, ValueError):  # no such group, or its quota is "max"
        return sys.maxsize
    return math.ceil(quota / period) if quota > 0 else sys.maxsize


def default_learner_threads(cpus: int, busy: int) -> int:
    """Return the torch threads of a learner beside busy ones: what they leave, at least one.

    Two threads beside one busy process made an update 3 to 27 times slower than on an idle
    machine, because each barrier waits for the descheduled thread (docs/architecture.md).

    Example:
        >>> [default_learner_threads(8, busy) for busy in (0, 2, 16)]
        [8, 6, 1]
    """
    return max(1, cpus - busy)
