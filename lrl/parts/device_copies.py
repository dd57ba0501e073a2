"""Copies between host and GPU for which nobody waits; between hosts nothing is copied."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_ALIGNMENT = 16
"""Bytes; every type may begin at a multiple."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Start to copy a tensor of the host; what the device does next with the copy sees it whole.

    From pageable memory torch would wait for the copy; torch keeps the page-locked memory used
    here until the copy is there.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_device_together(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Start to copy tensors of the host, as `to_device` does, but to a GPU in one copy.

    Those that are there already stay as they are.

    Example:
        >>> numbers = {"action": torch.tensor([1, 2]), "reward": torch.tensor(0.5)}
        >>> to_device_together(numbers, torch.device("cpu"))["reward"]
        tensor(0.5000)
    """
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    here = {name: tensor for name, tensor in tensors.items() if not tensor.is_cuda}
    if not here:
        return dict(tensors)
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in here.values()]
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    for tensor, part in zip(here.values(), block.split(sizes), strict=True):
        _laid_out(part, tensor).copy_(tensor)
    parts = block.to(device, non_blocking=True).split(sizes)
    sent = {n: _laid_out(part, here[n]) for n, part in zip(here, parts, strict=True)}
    return {**tensors, **sent}


def _laid_out(block: Tensor, like: Tensor) -> Tensor:
    """Return the beginning of a block of bytes as a tensor of that type and shape."""
    return block[: like.nbytes].view(like.dtype).view(like.shape)


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


def on_host(content: Any) -> Any:
    """Return nested dicts and lists with their tensors of a GPU on the host, in one copy."""
    found = {id(leaf): leaf for leaf in tree_leaves(content) if isinstance(leaf, Tensor)}
    there = {key: leaf.detach() for key, leaf in found.items() if leaf.is_cuda}
    if not there:
        return content
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in there.values()]
    copied = torch.cat(parts).cpu().split([tensor.nbytes for tensor in there.values()])
    here = {
        key: part.clone().view(tensor.dtype).view(tensor.shape)  # clones begin at whole numbers
        for (key, tensor), part in zip(there.items(), copied, strict=True)
    }
    return _replaced(content, here)


def _replaced(content: Any, leaves: Mapping[int, Tensor]) -> Any:
    """Return nested dicts and lists of these leaves; state dicts keep what else they know."""
    if isinstance(content, dict):
        found = copy.copy(content)
        for name, value in content.items():
            found[name] = _replaced(value, leaves)
        return found
    if type(content) in (list, tuple):
        return type(content)([_replaced(value, leaves) for value in content])
    return leaves.get(id(content), content)


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
