"""A GPU that is pretended on the CPU, and takes note of what a learner would wait for.

What it computes is right; how long it takes says nothing. It has one queue of work, CUDA graphs of
plain operations, no NCCL and no autocast. A function that makes constants of its own in C++, such
as `quantile`, is refused as if those were yours and on the host.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_iter, tree_map

from lrl.doctor import pretended_functions, pretended_tensor
from lrl.doctor.pretended_functions import PretendedFunctions
from lrl.doctor.pretended_graph import PretendedGraph
from lrl.doctor.pretended_tensor import CUDA, PretendedTensor, host_of, is_view, written_by
from lrl.parts.tape import INDEXING, reads

_CPU = torch.device("cpu")
_aten = torch.ops.aten
_TAKING_NO_NUMBERS = {_aten.cat.default, _aten.stack.default}
"""Operations whose tensors are all on one device; most take numbers of the host along."""

Kind = Literal["read", "wait", "to_host", "to_device", "kernel", "fault"]
"""What is noted.

- `read`: the host waits for all work queued: `.item()`, a blocking copy, a boolean index.
- `wait`: the host waits for an event; `age` is how many kernels were queued since it was recorded.
- `to_host`, `to_device`: a copy for which nobody waits, from or to page-locked memory.
- `kernel`: an operation, or a graph of them; views are none.
- `fault`: a copy's page-locked source changed before the copy had surely been made.
"""


@dataclass(frozen=True)
class Note:
    """Something that happened.

    Attributes:
        kind: What it was.
        what: The operation.
        where: The innermost line outside torch, as file:line.
        age: Of a wait: kernels that were queued since its event.
    """

    kind: Kind
    what: str
    where: str
    age: int = 0


class MixedDevicesError(RuntimeError):
    """An operation was given tensors of two devices."""


class PretendedGpu:
    """Pretends to have a GPU `cuda:0` while it is entered.

    Only the thread that entered it can move tensors there. But `torch.cuda`,
    `torch.inference_mode` (which becomes `no_grad`) and parts of optimizers are replaced for the
    whole process: other threads are told of this GPU, too, and no real one can be used beside it.

    Example:
        >>> with PretendedGpu() as gpu:
        ...     there = torch.ones(3, pin_memory=True).to("cuda", non_blocking=True)
        ...     total = (2 * there).sum()
        ...     total.device.type, total.item()
        ('cuda', 6.0)
        >>> [note.kind for note in gpu.notes]
        ['to_device', 'kernel', 'kernel', 'read']

    Attributes:
        notes: What happened, in order.
    """

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._kernels = 0
        self._coming: list[_Copy] = []
        self._begun = 0  # copies ever queued
        self._pinned: dict[int, Tensor] = {}
        self._capturing: PretendedGraph | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PretendedGpu:
        for module, name, value in self._replaced():
            self._stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        foreach = sys.modules["torch.optim.optimizer"]._foreach_supported_types
        foreach.append(PretendedTensor)
        self._stack.callback(foreach.remove, PretendedTensor)
        self._stack.enter_context(PretendedFunctions(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish()
        self._stack.close()

    def count(self, kind: Kind) -> int:
        """Return how many notes there are of a kind."""
        return sum(note.kind == kind for note in self.notes)

    def summary(self, kind: Kind) -> Counter[str]:
        """Return the notes of a kind, by operation and line."""
        return Counter(f"{n.what} at {n.where}" for n in self.notes if n.kind == kind)

    # What torch calls.

    def _replaced(self) -> Iterator[tuple[Any, str, Any]]:
        gpu = self
        cuda: Any = torch.cuda
        # Views of wrapped tensors do not work in inference mode.
        yield torch.inference_mode, "__enter__", torch.no_grad.__enter__
        yield torch.inference_mode, "__exit__", torch.no_grad.__exit__
        yield torch, "_has_compatible_shallow_copy_type", _are_of_one_device
        group = torch._C._group_tensors_by_device_and_dtype
        yield torch._C, group.__name__, lambda *args: _grouped(group, *args)
        yield cuda, "_lazy_init", lambda: None
        yield cuda, "is_available", lambda: True
        yield cuda, "device_count", lambda: 1
        yield cuda, "current_device", lambda: 0
        yield cuda, "set_device", lambda device: None
        yield cuda, "current_stream", lambda device=None: _Stream(gpu)
        yield cuda, "synchronize", lambda device=None: gpu._read("synchronize")
        yield cuda, "mem_get_info", lambda device=None: (2**40, 2**40)
        yield cuda, "get_device_name", lambda device=None: "a pretended GPU"
        yield cuda, "empty_cache", lambda: None
        yield cuda, "Event", lambda *args, **kwargs: _Event(gpu)
        yield cuda, "CUDAGraph", lambda: PretendedGraph(gpu)
        yield cuda, "graph", lambda graph, **kwargs: graph.captured()

    def _dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is _aten.copy_.default:
            return self._copy(*args, **kwargs)
        if func is _aten._to_copy.default and kwargs.get("device") not in (None, _CPU):
            kwargs = {**kwargs, "device": _CPU}
        inputs = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        self._look_at_devices(func, args, kwargs, inputs)
        self._look_for_reads(func, args, kwargs)
        if self._capturing is not None:
            self._capturing.before(func, args)
        found = func(*tree_map(host_of, args), **tree_map(host_of, dict(kwargs)))
        if func is _aten._local_scalar_dense.default:
            return found
        if torch.Tag.inplace_view in func.tags:  # such as transpose_: the wrapper has a shape, too
            with no_dispatch():
                func(*args, **kwargs)
        elif not is_view(func):
            self._note("kernel", str(func))
        own = {id(x.host): x for x in inputs if isinstance(x, PretendedTensor)}

        def there(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return own[id(value)] if id(value) in own else PretendedTensor(value, self)

        wrapped = tree_map(there, found)
        if self._capturing is not None:
            self._capturing.after(func, args, kwargs, wrapped, is_new=not is_view(func))
        return wrapped

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if not isinstance(target, PretendedTensor):
            assert isinstance(source, PretendedTensor)
            self._fetch(source.host, target, non_blocking)
        elif isinstance(source, PretendedTensor):
            self._note("kernel", "copy_")
            if self._capturing is not None:
                self._capturing.before(_aten.copy_.default, (target,))
                self._capturing.after(_aten.copy_.default, (target, source), {}, target)
            target.host.copy_(source.host)
        else:
            self._send(source, target.host, non_blocking)
        return target

    def _send(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Copy to the device; from pageable memory the host waits."""
        target.copy_(source)
        if not source.dim():
            self._note("kernel", "fill_")  # the number is part of the launch
        elif non_blocking and self._is_pinned(source):
            self._note("to_device", "copy_")
            self._queue(_Copy(source, None, source.detach().clone()))
        else:
            self._read("copy_ from the host")

    def _fetch(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Copy to the host, where rubbish stands until somebody has waited for it."""
        if non_blocking and self._is_pinned(target):
            self._note("to_host", "copy_")
            self._queue(_Copy(target, source.detach().to(target.dtype, copy=True), None))
            target.fill_(torch.nan if target.is_floating_point() else -77)
        else:
            self._read("copy_ to the host")
            target.copy_(source)

    @staticmethod
    def _look_at_devices(
        func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Sequence[Tensor]
    ) -> None:
        """Refuse tensors of two devices, but for numbers of the host that are read alone."""
        if func in INDEXING:  # whose indices may be on the host
            inputs = [args[0], *args[2:3]]
            strict = inputs[:1]
        else:
            strict = inputs if func in _TAKING_NO_NUMBERS else written_by(func, args, kwargs)
        here = [x for x in inputs if x.dim()] + [x for x in strict if isinstance(x, Tensor)]
        if not all(isinstance(x, PretendedTensor) for x in here):
            raise MixedDevicesError(
                f"{func} at {_where()}: some tensors are on {CUDA} and some on {_CPU}"
            )

    def _look_for_reads(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if reads(func, kwargs) or func is _aten.multinomial.default:  # which checks its weights
            self._read(str(func))
        if _waits_for_flags(func, args):
            self._read(f"{func} by flags")
        for index in args[1] if func in INDEXING else ():
            if index is not None and not isinstance(index, PretendedTensor):
                self._read(f"{func} by indices of the host")

    # Time.

    def _note(self, kind: Kind, what: str, age: int = 0) -> None:
        if self._capturing is not None:
            if kind != "kernel":
                raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
            return  # nothing runs
        self._kernels += kind == "kernel"
        self.notes.append(Note(kind, what, _where(), age))

    def _read(self, what: str) -> None:
        self._note("read", what)
        self._finish()

    def _queue(self, copy: _Copy) -> None:
        self._coming.append(copy)
        self._begun += 1

    def _finish(self, until: int | None = None) -> None:
        """Make the copies that were queued, all of them or as many as were until then."""
        done = self._begun - len(self._coming)
        count = len(self._coming) if until is None else max(0, until - done)
        for copy in self._coming[:count]:
            if copy.numbers is not None:
                copy.tensor.copy_(copy.numbers)
            elif not copy.tensor.equal(copy.before):
                self._note("fault", "the source of a copy was changed too early")
        del self._coming[:count]

    def _pin(self, tensor: Tensor) -> Tensor:
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned


@dataclass(frozen=True)
class _Copy:
    """A copy in the queue: what `tensor` will hold, or what it held when it was asked for."""

    tensor: Tensor
    numbers: Tensor | None
    before: Any


class _Stream:
    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu._read("synchronize")

    def wait_stream(self, other: Any) -> None:
        """Do nothing: there is one queue."""


class _Event:
    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu
        self._copies = self._kernels = 0

    def record(self, stream: Any = None) -> None:
        self._copies, self._kernels = self._gpu._begun, self._gpu._kernels

    def synchronize(self) -> None:
        gpu = self._gpu
        gpu._note("wait", "event", age=gpu._kernels - self._kernels)
        gpu._finish(self._copies)


_NOT_NAMED = (
    __file__, pretended_functions.__file__, pretended_tensor.__file__, "/torch/", "/lightning/"
)  # fmt: skip


def _are_of_one_device(tensor: Tensor, other: Tensor) -> bool:
    return isinstance(tensor, PretendedTensor) == isinstance(other, PretendedTensor)


def _grouped(group: Callable[..., dict[Any, Any]], tensors: Any, *args: Any) -> dict[Any, Any]:
    """Have an optimizer find its tensors on the device that they say."""
    there = isinstance(next(iter(tree_iter(tensors)), None), PretendedTensor)
    found = group(tensors, *args)
    return {(CUDA if there else device, kind): g for (device, kind), g in found.items()}


def _where() -> str:
    """Return the innermost line outside torch, Lightning and what pretends."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _NOT_NAMED):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _waits_for_flags(func: Any, args: Sequence[Any]) -> bool:
    """Return whether indexing waits for how many flags are set.

    A number of the host is written where flags are set without it: torch fills by the mask.
    """
    indices = [index for index in args[1] if index is not None] if func in INDEXING else []
    if not any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return False
    is_added = bool(args[3:] and args[3])
    is_number = len(args) > 2 and args[2].numel() == 1 and not isinstance(args[2], PretendedTensor)
    return is_added or not is_number or len(indices) > 1
