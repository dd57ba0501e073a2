"""Sides that take turns, since a machine's speed drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def by_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Ask every side for its figure in each round, after a first round that does not count.

    Example:
        >>> numbers = iter(range(6))
        >>> by_turns({"a": lambda: next(numbers), "b": lambda: next(numbers)}, rounds=2)
        {'a': [2, 4], 'b': [3, 5]}
    """
    for measure in sides.values():
        measure()
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            values[name].append(measure())
    return values
