"""Copies between host and GPU for which nobody waits; between hosts nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Start to copy a tensor of the host; what the device does next with the copy sees it whole.

    From pageable memory torch would wait for the copy; torch keeps the page-locked memory used
    here until the copy is there.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def floats_of(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Return scalars as numbers of the host; those of a GPU come in one copy.

    Example:
        >>> floats_of({"loss": torch.tensor(0.5), "epsilon": 1})
        {'loss': 0.5, 'epsilon': 1.0}
    """
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    there = [name for name, tensor in tensors.items() if tensor.is_cuda]
    copied: dict[str, float] = {}
    if there:
        stacked = torch.stack([tensors[name].detach().float().reshape(()) for name in there])
        copied = dict(zip(there, stacked.tolist(), strict=True))
    return {n: copied[n] if n in copied else float(value) for n, value in values.items()}


@dataclass(frozen=True)
class HostCopy:
    """A tensor's numbers on the host, which arrive some time after they were asked for."""

    _tensor: Tensor
    _arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, tensor: Tensor) -> HostCopy:
        """Start to copy a tensor; one of the host is taken as it is."""
        tensor = tensor.detach()
        if not tensor.is_cuda:
            return cls(tensor.cpu(), None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(tensor.device))
        return cls(host, arrived)

    def get(self) -> Tensor:
        """Return the numbers, when they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor
