"""Several learner ranks: how they may be started, and what is said of them."""

from __future__ import annotations

import logging
import os
from typing import NoReturn

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ParallelStrategy

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
