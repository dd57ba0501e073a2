"""A GPU that is pretended on the CPU, and takes note of what a learner would wait for.

What it computes is right; how long it takes says nothing. It has one queue of work, CUDA graphs of
plain operations, no NCCL and no autocast.
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
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_iter, tree_map
from typing_extensions import override

from lrl.doctor import pretended_tensor
from lrl.doctor.pretended_graph import PretendedGraph
from lrl.doctor.pretended_tensor import CUDA, PretendedTensor, host_of, is_view
from lrl.parts.tape import INDEXING, READS

_CPU = torch.device("cpu")
_aten = torch.ops.aten
_parse_to: Any = vars(torch._C)["_nn"]._parse_to

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


class PretendedGpu:
    """Pretends to have a GPU `cuda:0` while it is entered, in this thread.

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
        self._stack.enter_context(_Functions(self))
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
        yield cuda, "graph", lambda graph: graph.captured()

    def _dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is _aten.copy_.default:
            return self._copy(*args, **kwargs)
        if func is _aten._to_copy.default and kwargs.get("device") not in (None, _CPU):
            kwargs = {**kwargs, "device": _CPU}
        inputs = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        self._look_at_inputs(func, args, inputs)
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

    def _look_at_inputs(self, func: Any, args: Sequence[Any], inputs: Sequence[Tensor]) -> None:
        """Note whether an operation waits; refuse tensors of two devices."""
        if func in READS:
            self._read(str(func))
        elif func in INDEXING:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    self._read(f"{func} by flags")
                elif index is not None and not isinstance(index, PretendedTensor):
                    self._read(f"{func} by indices of the host")
        elif any(not isinstance(x, PretendedTensor) and x.dim() for x in inputs):
            raise RuntimeError(f"{func}: some tensors are on {CUDA} and some on {_CPU}")

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


class _Functions(TorchFunctionMode):
    """Answers what is asked of devices before torch looks for one."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu
        of_tensors: Any = Tensor
        self._answers: dict[Any, Callable[..., Any]] = {
            of_tensors.device.__get__: self._device,
            of_tensors.is_cuda.__get__: lambda tensor: isinstance(tensor, PretendedTensor),
            of_tensors.is_cpu.__get__: lambda tensor: not isinstance(tensor, PretendedTensor),
            Tensor.get_device: lambda tensor: 0 if isinstance(tensor, PretendedTensor) else -1,
            Tensor.to: self._to,
            Tensor.cuda: lambda tensor, *args, **kwargs: self._to(tensor, "cuda"),
            Tensor.cpu: lambda tensor, *args, **kwargs: self._to(tensor, "cpu"),
            Tensor.pin_memory: lambda tensor, *args: gpu._pin(tensor.clone()),
            Tensor.is_pinned: lambda tensor, *args: gpu._is_pinned(tensor),
            Tensor.tolist: self._list,
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._numpy,
        }

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._answers:
            return self._answers[func](*args, **kwargs)
        is_pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return self._made_there(func, args, {**kwargs, "device": _CPU})
        if device is None and func in _LIKE and isinstance(args[0], PretendedTensor):
            return func(*args, **kwargs)
        found = func(*args, **kwargs)
        return self._gpu._pin(found) if is_pinned else found

    def _made_there(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        gpu = self._gpu
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            if isinstance(args[0], PretendedTensor):
                return self._to(args[0], kwargs.get("dtype") or args[0].dtype)
            gpu._read(f"{func.__name__} from the host")
        else:
            gpu._note("kernel", str(getattr(func, "__name__", func)))
        made = PretendedTensor(func(*tree_map(host_of, args), **kwargs), gpu)
        if gpu._capturing is not None:
            gpu._capturing.after(func, args, kwargs, made)
        return made

    @staticmethod
    def _device(tensor: Tensor) -> torch.device:
        with torch._C.DisableTorchFunction():
            return CUDA if isinstance(tensor, PretendedTensor) else tensor.device

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copies = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, memory_format = _parse_to(*args, **kwargs)
        dtype = dtype or tensor.dtype
        here = isinstance(tensor, PretendedTensor)
        there = here if device is None else device.type == "cuda"
        change: dict[str, Any] = {"dtype": dtype, "copy": copies}
        if memory_format is not None:
            change["memory_format"] = memory_format
        with torch._C.DisableTorchFunction():
            if here == there or (device is not None and device.type == "meta"):
                return tensor.to(**change)
            gpu = self._gpu
            if there:
                found = PretendedTensor(torch.empty_like(tensor, requires_grad=False), gpu)
                gpu._send(tensor.detach(), found.host, non_blocking)
                return found.to(**{**change, "copy": False})
            source: Any = tensor
            host = torch.empty_like(source.host, requires_grad=False)
            if non_blocking:  # torch takes page-locked memory
                gpu._pin(host)
            gpu._fetch(source.host.detach(), host, non_blocking)
            return host.to(**{**change, "copy": False})

    def _list(self, tensor: Tensor) -> Any:
        if isinstance(tensor, PretendedTensor):
            self._gpu._read("tolist")
            tensor = tensor.host
        return tensor.tolist()

    @staticmethod
    def _numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, PretendedTensor):
            raise TypeError(f"can't convert a tensor on {CUDA} to numpy: use Tensor.cpu() first")
        return tensor.numpy(*args, **kwargs)


_NOT_NAMED = (__file__, pretended_tensor.__file__, "/torch/", "/lightning/")
_LIKE = {torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like}


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
