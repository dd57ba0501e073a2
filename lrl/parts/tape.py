"""Operations of torch that were run once, to be run again: what a CUDA graph is, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from typing_extensions import override

_aten = torch.ops.aten
READS = frozenset(
    {
        _aten._local_scalar_dense.default,
        _aten.equal.default,
        _aten.is_nonzero.default,
        _aten.nonzero.default,
        _aten.masked_select.default,
        _aten._unique.default,
        _aten._unique2.default,
        _aten.bincount.default,
        _aten.unique_dim.default,
        _aten.unique_consecutive.default,
        _aten.repeat_interleave.Tensor,
    }
)
"""Operations whose result, or its shape, the host waits for."""
INDEXING = frozenset({_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default})
"""Operations that are such if an index is one of flags."""
_FLAGS = (torch.bool, torch.uint8)


class TapeError(RuntimeError):
    """A function looks at numbers that it computes, and may do something else with others."""


class Tape:
    """What a function did with tensors, to be done again with others of the same shapes.

    Gradients and optimizers are taken along. As in a CUDA graph, numbers of Python are what they
    were, tensors that are not inputs are the same tensors, changed in place again, and random
    numbers are drawn anew. Running it takes less time than the function did: nothing is looked up,
    and no graph of gradients is made.

    Args:
        function: From tensors to tensors. It is called once.
        inputs: Its first arguments.

    Attributes:
        outputs: What it returned.

    Raises:
        TapeError: The function looks at numbers.

    Example:
        >>> total = torch.zeros(2)
        >>> tape = Tape(lambda x: (total.add_(x), 2 * x), [torch.ones(2)])
        >>> tape([torch.tensor([1.0, 3.0])])
        (tensor([2., 4.]), tensor([2., 6.]))
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        recorder = _Recorder(inputs)
        with _NoNumbers(), recorder:
            self.outputs = tuple(function(*inputs))
        self._replay = recorder.replay(self.outputs)
        self.num_operations = len(recorder.lines)

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Do the same with other inputs, in the same types: autocast is part of what was done."""
        if not torch.is_autocast_enabled("cpu"):
            return self._replay(*inputs)
        with torch.autocast("cpu", enabled=False):
            return self._replay(*inputs)


class _NoNumbers(TorchFunctionMode):
    """Refuses to give away numbers, which on a CPU no operation is needed for."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            raise TapeError(f"Tensor.{func.__name__} gives numbers away that are computed")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Writes a Python function of the operations that pass."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self._scope: dict[str, Any] = {}
        self._names = {id(tensor): f"x{index}" for index, tensor in enumerate(inputs)}
        self._num_inputs = len(inputs)
        self._alive = list(inputs)  # an id is of one tensor while that is there
        self._last_use: dict[str, int] = {}

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        flags = args[1] if func in INDEXING else ()
        if func in READS or any(i is not None and i.dtype in _FLAGS for i in flags):
            raise TapeError(f"{func} waits for numbers that are computed")
        if func is _aten.lift_fresh.default:  # else a new constant would be the same tensor again
            func = _aten.clone.default
        named = ", ".join(
            [self._written(arg) for arg in args]
            + [f"{name}={self._written(arg)}" for name, arg in kwargs.items()]
        )
        found = func(*args, **kwargs)
        self.lines.append([f"{self._results(found)}{self._constant(func._op)}({named})"])
        return found

    def replay(self, outputs: Sequence[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        """Return the function of all operations so far, which returns these tensors."""
        returned = self._written(tuple(outputs))
        dead: dict[int, list[str]] = {}
        for name, line in self._last_use.items():
            dead.setdefault(line, []).append(name)
        for line, names in dead.items():
            if line < len(self.lines):  # what nobody uses any more makes room for what follows
                self.lines[line].append(f"del {', '.join(names)}")
        body = [f"    {line}" for lines in self.lines for line in lines]
        inputs = ", ".join(f"x{index}" for index in range(self._num_inputs))
        text = "\n".join([f"def replay({inputs}):", *body, f"    return {returned}"])
        exec(compile(text, "<tape>", "exec"), self._scope)
        self._alive.clear()
        return self._scope["replay"]

    def _written(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._used(value)
        if isinstance(value, (list, tuple)) and any(
            isinstance(x, Tensor) for x in tree_iter(value)
        ):
            inner = ", ".join(self._written(each) for each in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
        return self._constant(value)

    def _used(self, tensor: Tensor) -> str:
        name = self._names.get(id(tensor))
        if name is None:  # not made here: a weight, say
            self._alive.append(tensor)
            name = self._names[id(tensor)] = self._constant(tensor)
        elif name.startswith("r"):
            self._last_use[name] = len(self.lines)
        return name

    def _results(self, found: Any) -> str:
        if found is None:
            return ""
        names = list[str]()
        for value in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(value, (list, tuple)):
                raise TapeError("an operation returned lists in lists")
            if isinstance(value, Tensor) and id(value) not in self._names:
                name = self._names[id(value)] = f"r{len(self._alive)}"
                self._alive.append(value)
                self._last_use[name] = len(self.lines)
                names.append(name)
            else:  # changed in place, or no tensor
                names.append("_")
        return f"({', '.join(names)},) = " if isinstance(found, (list, tuple)) else f"{names[0]} = "

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name
