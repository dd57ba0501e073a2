"""How many threads of torch the learner takes beside its actors."""

from __future__ import annotations

import os

import torch

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


def available_cores() -> int:
    """Return the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


def default_learner_threads(cpus: int, busy: int) -> int:
    """Return the torch threads of a learner beside busy ones: what they leave, at least one.

    Two threads beside one busy process made an update 3 to 27 times slower than on an idle
    machine, because each barrier waits for the descheduled thread (docs/architecture.md).

    Example:
        >>> [default_learner_threads(8, busy) for busy in (0, 2, 16)]
        [8, 6, 1]
    """
    return max(1, cpus - busy)
