"""CUDA graphs on a pretended GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_leaves, tree_map

from lrl.doctor.pretended_tensor import PretendedTensor, host_of, written_by


class PretendedGraph:
    """A CUDA graph: what was queued while it was captured, in the memory that it had then."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._operations: list[tuple[Any, Any, Any, list[Any]]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Capture: nothing is computed, so that what was changed is put back."""
        generator, self._gpu._capturing = torch.get_rng_state(), self
        try:
            yield
        finally:
            self._gpu._capturing = None
            torch.set_rng_state(generator)
            for host, numbers in self._before.values():
                host.copy_(numbers)

    def replay(self) -> None:
        """Do all of it again."""
        self._gpu._note("kernel", "graph")
        for func, args, kwargs, made in self._operations:
            found = func(*args, **kwargs)
            for own, new in zip(made, tree_leaves(found), strict=True):
                if own is not None:
                    own.copy_(new)

    def before(self, func: Any, args: Sequence[Any]) -> None:
        """Keep what an operation will change, unless it was made here."""
        for tensor in written_by(func, args, {}):
            place = tensor.host.untyped_storage().data_ptr()
            if place not in self._made and place not in self._before:
                whole = tensor.host.new_empty(0).set_(tensor.host.untyped_storage())
                self._before[place] = whole, whole.clone()

    def after(self, func: Any, args: Any, kwargs: Any, found: Any, is_new: bool = True) -> None:
        """Take note of an operation and of the memory that it wrote its results to.

        Args:
            func: The operation.
            args: Its arguments.
            kwargs: Those that were given by name.
            found: What it returned.
            is_new: Whether that has memory of its own, where it is none of the arguments.
        """
        inputs = {id(leaf) for leaf in tree_iter((args, kwargs))}
        made = [
            r.host if is_new and isinstance(r, PretendedTensor) and id(r) not in inputs else None
            for r in tree_leaves(found)
        ]
        self._made |= {host.untyped_storage().data_ptr() for host in made if host is not None}
        hosts = tree_map(host_of, args), tree_map(host_of, dict(kwargs))
        self._operations.append((func, *hosts, made))
