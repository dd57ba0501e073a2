"""A tensor of the CPU that says it is on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter
from typing_extensions import override

CUDA = torch.device("cuda", 0)


class PretendedTensor(Tensor):
    """A tensor that says it is on a GPU; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, gpu: Any) -> PretendedTensor:
        """Wrap a tensor of the host."""
        return Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
        )

    def __init__(self, host: Tensor, gpu: Any) -> None:
        self.host = host
        self._gpu = gpu

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # the mode sees everything

    @classmethod
    @override
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        gpu = next(x for x in tree_iter((args, kwargs)) if isinstance(x, PretendedTensor))._gpu
        return gpu._dispatch(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Copy the numbers on the device."""
        if id(self) not in memo:
            copy: Tensor = PretendedTensor(self.host.detach().clone(), self._gpu)
            self._gpu._note("kernel", "clone")
            is_parameter = isinstance(self, nn.Parameter)
            memo[id(self)] = nn.Parameter(copy, self.requires_grad) if is_parameter else copy
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the numbers, as torch does: a copy of each tensor."""
        self._gpu._note("read", "saved")
        return self.host.detach().clone().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Name the device; who prints numbers waits for them."""
        self._gpu._read("repr")
        return f"{self.host!r} on {CUDA}"

    def __format__(self, format_spec: str) -> str:
        """Write a number as told."""
        self._gpu._read("format")
        return format(self.host.detach(), format_spec)


def host_of(value: Any) -> Any:
    """Return the numbers of a pretended tensor; anything else as it is."""
    return value.host if isinstance(value, PretendedTensor) else value


def is_view(func: Any) -> bool:
    """Return whether an operation returns its arguments' memory, and computes nothing."""
    aliases = [each.alias_info for each in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what an operation writes to; of most there is nothing."""
    if func._schema.is_mutable:
        for place, declared in enumerate(func._schema.arguments):
            if declared.alias_info is not None and declared.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(declared.name)
                yield from tree_iter(value)
