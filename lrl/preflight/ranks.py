"""Several learner ranks: how they may be started, and what they have to agree upon."""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ParallelStrategy
from torch import distributed

from lrl.preflight.rank_watch import LostRankError, started_ranks
from lrl.types import ConfigError

_log = logging.getLogger(__name__)


def check_strategy(trainer: L.Trainer) -> None:
    """Check that the ranks, if there are several, are processes of their own with whole networks.

    Raises:
        ConfigError: The strategy splits networks, or starts ranks by fork.
    """
    strategy = trainer.strategy
    is_ddp = isinstance(strategy, DDPStrategy) and not isinstance(strategy, DeepSpeedStrategy)
    if isinstance(strategy, ParallelStrategy) and not is_ddp:
        refuse_strategy(type(strategy).__name__)
    if getattr(strategy, "_start_method", "") == "fork":
        raise ConfigError(
            "trainer.strategy starts ranks by fork, after which environments and actors may hang: "
            "set it to ddp, or to ddp_spawn in a script"
        )


def refuse_strategy(name: str) -> NoReturn:
    """Say that a strategy splits networks, or runs them in other ways that lrl does not know.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"trainer.strategy is {name}, which lrl is not made for: a Q-network fits on every "
        "device, so set it to ddp, or to auto with trainer.devices 1"
    )


def default_devices() -> int | str:
    """Return the devices of the command line where nobody says how many: one.

    Under torchrun and srun the number of processes says it, and Lightning checks that it fits.
    """
    processes = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
    return 1 if processes == "1" else "auto"


def announce_ranks(trainer: L.Trainer, batch_size: int, samples: str = "transitions") -> None:
    """Say what several ranks multiply, or which GPUs stay idle.

    A script's Trainer takes all GPUs unless it is told not to, hence a warning.

    Args:
        trainer: The Trainer.
        batch_size: Samples in the batch of one rank.
        samples: What they are.
    """
    ranks = trainer.world_size
    if ranks > 1:
        _log.warning(
            "%d ranks train, each with its own actors and rows, so a learner step learns from %d "
            "%s (%d batches of %d). To train with one, set trainer.devices to 1 "
            "(in a script: Trainer(devices=1)).",
            ranks, ranks * batch_size, samples, ranks, batch_size,
        )  # fmt: skip
        return
    there = trainer.accelerator.auto_device_count()
    if there > 1:
        _log.info(
            "learning on %s; %d devices are available (trainer.devices: %d uses them all, one rank "
            "each)",
            trainer.strategy.root_device, there, there,
        )  # fmt: skip


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
        if count > 1 and distributed.get_backend() != "gloo":
            self._over_hosts = distributed.new_group(backend="gloo")

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
