"""Operations of torch that were run once, to be run again: what a CUDA graph is, without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from typing_extensions import override

_aten = torch.ops.aten
_UNKNOWN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEXING = frozenset({_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default})
"""Operations whose shape depends on numbers if an index is one of flags."""
_FLAGS = (torch.bool, torch.uint8)


def reads(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether the host waits for an operation's result, or for its shape.

    Indexing is left out: it depends on the index.
    """
    return (
        any(tag in func.tags for tag in _UNKNOWN)
        and func not in INDEXING
        and kwargs.get("output_size") is None  # of repeat_interleave
    )


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
        # Another object each: one tensor may be two inputs now, and another one each later.
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
        recorder = _Recorder(inputs)
        with _NoNumbers(), recorder:
            self.outputs = tuple(function(*inputs))
        self._steps = recorder.steps
        self._returned = recorder.end(self.outputs)
        self._values = recorder.values
        self._values[: len(inputs)] = [None] * len(inputs)
        self.num_operations = len(self._steps)

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Do the same with other inputs, in the same types: autocast is part of what was done."""
        if not torch.is_autocast_enabled("cpu"):
            return self._run(inputs)
        with torch.autocast("cpu", enabled=False):
            return self._run(inputs)

    def _run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = self._values.copy()
        values[: len(inputs)] = inputs
        for function, take, result, results, dead in self._steps:
            found = function(*take(values))
            if result >= 0:
                values[result] = found
            elif results:
                for place, value in zip(results, found, strict=True):
                    if place >= 0:
                        values[place] = value
            for place in dead:
                values[place] = None
        return tuple(values[place] for place in self._returned)


class _NoNumbers(TorchFunctionMode):
    """Refuses to give away numbers, which on a CPU no operation is needed for."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            raise TapeError(f"Tensor.{func.__name__} gives numbers away that are computed")
        return func(*args, **(kwargs or {}))


class _Step(NamedTuple):
    """An operation: where its arguments are among the values, and where its results go.

    Attributes:
        function: The operation.
        take: Takes its arguments out of the values.
        result: Place of its result, if that is new; else -1.
        results: Places of its results, if it returns several.
        dead: Places of what nobody uses any more: room for what follows.
    """

    function: Callable[..., Any]
    take: Callable[[list[Any]], tuple[Any, ...]]
    result: int
    results: tuple[int, ...]
    dead: tuple[int, ...] = ()


class _Recorder(TorchDispatchMode):
    """Writes down the operations that pass."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.values: list[Any] = list(inputs)
        """Inputs, what is not made by operations, and room for results."""
        self._places = {id(tensor): place for place, tensor in enumerate(inputs)}
        self._alive: list[Tensor] = []  # an id is of one tensor while that is there
        self._last_use: dict[int, int] = {}

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        flags = args[1] if func in INDEXING else ()
        if reads(func, kwargs) or any(i is not None and i.dtype in _FLAGS for i in flags):
            raise TapeError(f"{func} waits for numbers that are computed")
        if func is _aten.lift_fresh.default:  # else a new constant would be the same tensor again
            func = _aten.clone.default
        take = _taker([self._place(arg) for arg in (*args, *kwargs.values())])
        function = func._op
        if any(isinstance(each, Tensor) for each in tree_iter(kwargs)):
            function = _naming(function, len(args), tuple(kwargs))
        elif kwargs:
            take = _taker([self._place(arg) for arg in args])
            function = functools.partial(function, **kwargs)
        found = func(*args, **kwargs)
        several = isinstance(found, (list, tuple))
        results = tuple(self._new_place(each) for each in found) if several else ()
        result = -1 if several else self._new_place(found)
        self.steps.append(_Step(function, take, result, results))
        return found

    def end(self, outputs: Sequence[Tensor]) -> list[int]:
        """Return the places of the outputs, and have what is dead be let go."""
        returned = [self._place_of_tensor(tensor) for tensor in outputs]  # used behind the end
        dead: dict[int, list[int]] = {}
        for place, step in self._last_use.items():
            dead.setdefault(step, []).append(place)
        for number, places in dead.items():
            if number < len(self.steps):
                self.steps[number] = self.steps[number]._replace(dead=tuple(places))
        self._alive.clear()
        return returned

    def _place(self, value: Any) -> Any:
        """Return the place of a value; of a list that holds tensors those of all its values."""
        if isinstance(value, Tensor):
            return self._place_of_tensor(value)
        if isinstance(value, (list, tuple)) and any(
            isinstance(x, Tensor) for x in tree_iter(value)
        ):
            return [self._place(each) for each in value]
        self.values.append(value)
        return len(self.values) - 1

    def _place_of_tensor(self, tensor: Tensor) -> int:
        place = self._places.get(id(tensor))
        if place is None:  # not made here: a weight, say
            place = self._places[id(tensor)] = len(self.values)
            self.values.append(tensor)
        elif place in self._last_use:
            self._last_use[place] = len(self.steps)
        return place

    def _new_place(self, value: Any) -> int:
        """Return a place for a tensor that is new; -1 for one changed in place, or no tensor."""
        if isinstance(value, (list, tuple)):
            raise TapeError("an operation returned lists in lists")
        if not isinstance(value, Tensor) or id(value) in self._places:
            return -1
        place = self._places[id(value)] = len(self.values)
        self.values.append(None)
        self._alive.append(value)
        self._last_use[place] = len(self.steps)
        return place


def _taker(places: list[Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return what takes the values of these places, in lists where places are."""
    if len(places) > 1 and all(isinstance(place, int) for place in places):
        return itemgetter(*places)  # a loop in C

    def take(values: list[Any]) -> tuple[Any, ...]:
        return tuple([_taken(place, values) for place in places])

    return take


def _naming(function: Callable[..., Any], count: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function whose arguments behind the first ones are given on by name."""

    def call(*args: Any) -> Any:
        return function(*args[:count], **dict(zip(names, args[count:], strict=True)))

    return call


def _taken(place: Any, values: list[Any]) -> Any:
    return values[place] if isinstance(place, int) else [_taken(each, values) for each in place]
