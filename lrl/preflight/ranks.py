"""Several learner ranks: how they may be started, and what they have to agree upon."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ParallelStrategy
from torch import distributed

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
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def end_ranks_that_wait(trainer: L.Trainer) -> None:
    """Let ranks that this one started end with it, if it failed before it met them."""
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    for process in getattr(trainer.strategy.launcher, "procs", []):
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


def minimum_of_ranks() -> Callable[[float], float]:
    """Return what finds the smallest of all ranks' numbers; all of them have to ask.

    The question goes from host to host: through NCCL it would wait for all work of the GPUs.
    """
    over_hosts = (
        None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")
    )

    def minimum(number: float) -> float:
        mine = torch.tensor(number, dtype=torch.float64)
        distributed.all_reduce(mine, distributed.ReduceOp.MIN, over_hosts)
        return float(mine)

    return minimum


def sum_of_ranks(trainer: L.Trainer, numbers: Sequence[float]) -> list[float]:
    """Return the sums of all ranks' numbers; all of them have to ask."""
    if trainer.world_size == 1:  # whose device may know no float64
        return [float(number) for number in numbers]
    mine = torch.tensor(numbers, dtype=torch.float64, device=trainer.strategy.root_device)
    return torch.as_tensor(trainer.strategy.reduce(mine, reduce_op="sum")).tolist()
