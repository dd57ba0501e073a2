"""How learner ranks ask each other, and how they part."""

from __future__ import annotations

import atexit
import json
import time
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from torch import distributed

from lrl.ranks.watch import LostRankError, started_ranks

_PATIENCE = timedelta(days=30)
"""A rank may wait for its actors; a rank that is gone is found otherwise (`rank_watch`)."""


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether an error says that another rank could not be reached any more."""
    if not torch.distributed.is_available():
        return False
    is_of_torch = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
    return is_of_torch or isinstance(error, LostRankError)


def end_ranks_that_wait(trainer: L.Trainer) -> None:
    """Let ranks that this one started end with it, if it failed before it met them."""
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    for process in started_ranks(trainer):
        # Not now: Lightning kills this process within 5 s of that, and it still has to say why.
        atexit.register(process.terminate)


def leave_ranks_at_exit() -> None:
    """Let go of the other ranks when this process ends, after a run that succeeded.

    With gloo, torch may abort a process that still holds on to them; Lightning lets go of NCCL's.
    """
    is_one = distributed.is_available() and distributed.is_initialized()
    if is_one and distributed.get_backend() == "gloo":
        atexit.unregister(_leave_ranks)
        atexit.register(_leave_ranks)


def _leave_ranks() -> None:
    if distributed.is_initialized():  # the script may have done it
        distributed.destroy_process_group()


class Ranks:
    """All learner ranks of a run, which ask each other from host to host.

    Through NCCL a question would wait for all work of the GPUs. Every rank has to ask the same
    questions in the same order; while it waits for the others, it answers signals.

    Args:
        count: How many there are; one alone asks nobody.

    Attributes:
        count: How many there are.
        stopped_together: Whether all of them have agreed to stop, so that they can still save.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.stopped_together = False
        self._over_hosts: Any = None
        if count > 1:
            self._over_hosts = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def minimum(self, number: float) -> float:
        """Return the smallest of all ranks' numbers."""
        return self._reduced(number, distributed.ReduceOp.MIN)

    def maximum(self, number: float) -> float:
        """Return the largest of all ranks' numbers."""
        return self._reduced(number, distributed.ReduceOp.MAX)

    def gathered(self, mine: Any) -> list[Any]:
        """Return what all ranks gave, plain data, in their order."""
        if self.count == 1:
            return [mine]
        text = json.dumps(mine).encode()
        sent = torch.full([int(self.maximum(len(text)))], ord(" "), dtype=torch.uint8)
        sent[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.count)]
        _finish(distributed.all_gather(received, sent, self._over_hosts, async_op=True))
        return [json.loads(bytes(text.tolist())) for text in received]

    def _reduced(self, number: float, operation: Any) -> float:
        if self.count == 1:
            return number
        mine = torch.tensor(number, dtype=torch.float64)
        _finish(distributed.all_reduce(mine, operation, self._over_hosts, async_op=True))
        return float(mine)


def _finish(work: Any) -> None:
    """Wait for the other ranks, in Python: in torch's own wait no signal would be answered."""
    started = time.perf_counter()
    while not work.is_completed():
        time.sleep(min(0.05, (time.perf_counter() - started) / 8))
    work.wait()  # raises what went wrong
