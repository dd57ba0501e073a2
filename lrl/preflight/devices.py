"""Which devices the parts of a rank use."""

from __future__ import annotations

import torch

from lrl.types import ConfigError


def check_replay_device(name: str, learner: torch.device) -> None:
    """Check that batches are made where the learner is, or on the host.

    Args:
        name: `replay.device`.
        learner: Where the learner's networks are.

    Raises:
        ConfigError: It is no device, or of another kind than the learner's.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"replay.device is {name}: {error}; set it to cpu or cuda") from error
    if device.type not in ("cpu", learner.type):
        raise ConfigError(
            f"replay.device is {name}, but the learner is on {learner}, which would wait for every "
            "batch to come back: set it to cpu, or trainer.accelerator to gpu where there is one"
        )


def of_this_rank(name: str, learner: torch.device, local_rank: int) -> str:
    """Return a device with its number, where `cuda` leaves it to the rank.

    Args:
        name: As in the configuration: `cpu`, `cuda`, `cuda:1`.
        learner: Where the rank's networks are; if that is a GPU, it is the rank's.
        local_rank: Of the ranks on this machine, which GPUs are dealt out to otherwise.
    """
    device = torch.device(name)
    if device.type != "cuda" or device.index is not None:
        return name
    if learner.type == "cuda" and learner.index is not None:
        return str(learner)
    return f"cuda:{local_rank % max(1, torch.cuda.device_count())}"
