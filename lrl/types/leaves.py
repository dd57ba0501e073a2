"""Nested values: an observation or a memory with one array for each leaf, or one array alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

Observation: TypeAlias = Any
"""An array or a tensor; for Dict spaces a dict with one for each leaf."""
Memory: TypeAlias = Mapping[str, Any]
"""What a recurrent policy carries from step to step: arrays or tensors, one row an environment."""


def has_leaves(value: Any) -> TypeGuard[dict[str, Any]]:
    """Tell whether a value is one of several leaves; an array is none itself."""
    return isinstance(value, dict)


def leaves_of(value: Any) -> dict[str, Any]:
    """Return the leaves of an observation by name; what is no dict is the leaf "".

    Example:
        >>> leaves_of(3.0), leaves_of({"position": 3.0})
        ({'': 3.0}, {'position': 3.0})
    """
    return value if has_leaves(value) else {"": value}


def named(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Name leaves as columns: "frame", or "frame.position"."""
    return {f"{prefix}.{name}" if name else prefix: leaf for name, leaf in leaves.items()}


def leaves_from(prefix: str, columns: Mapping[str, Any]) -> Any:
    """Undo `named`: return the column of that name, or a dict of those whose names begin so.

    Example:
        >>> leaves_from("frame", {"frame": 1}), leaves_from("frame", {"frame.a": 1, "kind": 2})
        (1, {'a': 1})
    """
    if prefix in columns:
        return columns[prefix]
    start = prefix + "."
    return {n.removeprefix(start): c for n, c in columns.items() if n.startswith(start)}


def whole_of(leaves: Mapping[str, Any]) -> Any:
    """Undo `leaves_of`.

    Example:
        >>> whole_of({"": 3.0}), whole_of({"position": 3.0})
        (3.0, {'position': 3.0})
    """
    return leaves[""] if "" in leaves else dict(leaves)


def map_leaves(function: Callable[..., Any], *values: Any) -> Any:
    """Return a function of one value or several, taken of each leaf where they have leaves.

    None stays None.

    Example:
        >>> map_leaves(max, 1, 2), map_leaves(max, {"a": 1, "b": 4}, {"a": 2, "b": 3})
        (2, {'a': 2, 'b': 4})
    """
    first = values[0]
    if has_leaves(first):
        return {name: function(*(value[name] for value in values)) for name in first}
    return None if first is None else function(*values)


def columns_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what rows or batches hold for each row, by field, or by field and leaf."""
    columns: dict[str, Any] = {}
    for name, value in fields.items():
        if has_leaves(value):
            columns |= named(name, value)
        elif value is not None and not isinstance(value, (int, float)):
            columns[name] = value
    return columns
