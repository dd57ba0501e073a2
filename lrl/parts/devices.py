"""Devices as settings name them."""

from __future__ import annotations

import torch

from lrl.types import ConfigError


def usable_device(setting: str, name: str) -> torch.device:
    """Return the device of that name, which is there; a GPU is not opened, since that takes memory.

    Args:
        setting: The setting that names it.
        name: As `cpu`, `cuda` or `cuda:1`.

    Raises:
        ConfigError: There is no such device here.
    """
    try:
        device = torch.device(name)
        if device.type != "cuda":
            torch.empty(0, device=device)
        elif (device.index or 0) >= (there := torch.cuda.device_count()):
            raise RuntimeError(f"torch sees {there} GPUs")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{setting} {name!r} cannot be used here, 'cpu' can: {reason}") from error
    return device


def of_this_rank(name: str, learner: torch.device, local_rank: int) -> str:
    """Return a device with its number, where `cuda` leaves it to the rank.

    Args:
        name: As in the configuration: `cpu`, `cuda`, `cuda:1`.
        learner: Where the rank's networks are; if that is a GPU, it is the rank's.
        local_rank: Number of the rank on this machine; the GPUs are dealt out to ranks otherwise.
    """
    device = torch.device(name)
    if device.type != "cuda" or device.index is not None:
        return name
    if learner.type == "cuda" and learner.index is not None:
        return str(learner)
    return f"cuda:{local_rank % max(1, torch.cuda.device_count())}"
