"""Observations as the users of a policy have them: one, or a batch, checked leaf by leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.envs.vector import quoted
from lrl.types import Column, Observation, whole_of

_MEANT = {
    "uint8": "uint8 (from 0 to 255, the network scales them itself)",
    "bool": "booleans, or 0 and 1",
    "float32": "floats, or integers other than uint8",
}


def read_observation(
    observation: Any, columns: Mapping[str, Column]
) -> tuple[Observation, int, bool]:
    """Return observations as a network takes them, how many there are, and whether it was one.

    Args:
        observation: One, or a batch of them: an array, or a dict (or tuple) of them, nested as in
            the environment or with the names of leaves as keys.
        columns: The observation's columns.

    Raises:
        ValueError: Leaves, shapes, types or values are others than the agent learnt with.

    Example:
        >>> read_observation([1, 2], {"": Column("float32", (2,))})
        (array([[1., 2.]], dtype=float32), 1, True)
    """
    leaves = _leaves(observation, columns)
    read = {name: _read(name, leaves[name], column) for name, column in columns.items()}
    sizes = {name: None if is_one else len(leaf) for name, (leaf, is_one) in read.items()}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{n!r} {'is one' if s is None else f'has {s}'}" for n, s in sizes.items())
        raise ValueError(f"the leaves of the observation differ in their number: {said}")
    first, is_one = next(iter(read.values()))
    if not len(first):
        raise ValueError("the batch of observations is empty")
    return whole_of({name: leaf for name, (leaf, _) in read.items()}), len(first), is_one


def _leaves(observation: Any, columns: Mapping[str, Column]) -> dict[str, Any]:
    if "" in columns:
        if isinstance(observation, (Mapping, tuple)):
            raise ValueError(
                f"the observation is a {type(observation).__name__}, but this agent takes one array"
            )
        return {"": observation}
    found = dict(_flat(observation, ()))
    if found.keys() != columns.keys():
        came = "one array" if "" in found else f"{sorted(found)}"
        raise ValueError(
            f"the observation has the leaves {came}, but this agent takes a dict of "
            f"{sorted(columns)}"
        )
    return found


def _flat(value: Any, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        entries = list(value.items())
    elif isinstance(value, tuple):
        entries = list(enumerate(value))
    else:
        return [(".".join(path), value)]
    return [leaf for key, entry in entries for leaf in _flat(entry, (*path, str(key)))]


def _read(name: str, value: Any, column: Column) -> tuple[npt.NDArray[np.generic], bool]:
    """Return a leaf as a batch, and whether it was of one observation."""
    whose = f"the observation{quoted(name)}"
    array, shape = np.asarray(value), column.stacked_shape
    is_one = array.shape == shape
    if not is_one and array.shape[1:] != shape:
        batch = ", ".join(map(str, ("n", *shape)))
        stack = f", of which the first axis is a stack of {column.stack} frames, newest last"
        raise ValueError(
            f"{whose} has the shape {array.shape}, but this agent takes {shape}, or a batch "
            f"({batch}){stack if column.stack > 1 else ''}: policy.make_env() gives such ones"
        )
    _check_type(whose, array, column)
    if not column.holds(array):
        raise ValueError(f"{whose} holds a category that there is not: they are numbered from 0")
    # A new array: torch takes neither read-only memory nor negative strides.
    with np.errstate(over="ignore"):
        leaf = np.array(array, column.type, order="C")
    if column.dtype == "float32" and not np.isfinite(leaf).all():
        raise ValueError(f"{whose} holds NaN or infinity, or more than float32 can")
    return (leaf[np.newaxis] if is_one else leaf), is_one


def _check_type(whose: str, array: npt.NDArray[Any], column: Column) -> None:
    is_bytes, kind = array.dtype == np.uint8, array.dtype.kind
    meant = "integers" if column.categories else _MEANT[column.dtype]
    fits = {
        "uint8": is_bytes,
        "bool": kind in "biu",
        "float32": kind in "fiu" and not is_bytes,
    }.get(column.dtype, kind in "iu")
    if not fits:
        raise ValueError(f"{whose} has the type {array.dtype}, but this agent takes {meant}")
    if column.dtype == "bool" and array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ValueError(f"{whose} holds numbers other than 0 and 1")
