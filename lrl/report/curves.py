"""Learning curves of a group: those of its seeds on one grid, and what lies in their middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lrl.report.groups import Group
from lrl.report.runs import AXES
from lrl.report.statistics import Floats, interquartile_means_along, interval

Middle = Literal["iqm", "median", "mean"]
_POINTS = 100
_RESAMPLES = 500
_MOST_POINTS = 200


@dataclass(frozen=True)
class Curve:
    """A group's values along an axis.

    Attributes:
        seeds: Of each run where it is on the axis, and its values, `[points]`.
        at: Where all runs have values, `[points]`; empty if nowhere.
        middle: Middle of the runs there.
        low: Lower end of its 95 % interval; None of a single run, and where seeds repeat.
        high: Upper end.
    """

    seeds: tuple[tuple[Floats, Floats], ...]
    at: Floats
    middle: Floats
    low: Floats | None
    high: Floats | None

    def scaled(self, factor: float) -> Curve:
        """Return the curve with its axis in another unit."""
        seeds = tuple((at * factor, values) for at, values in self.seeds)
        return replace(self, seeds=seeds, at=self.at * factor)


def curves(
    groups: Sequence[Group], task: str, metric: str, axis: str, middle: Middle
) -> dict[str, Curve]:
    """Return the curves of the groups that have any, by label.

    Args:
        groups: Groups of runs.
        task: Id of the environment whose runs count.
        metric: Name of the metric.
        axis: Name of the axis, from `AXES`.
        middle: What is computed of the runs at each place.
    """
    found: dict[str, Curve] = {}
    for group in groups:
        runs = [run for run in group.runs if run.task == task]
        seeds = [run.curve(metric, axis) for run in runs]
        known = [seed for seed in seeds if seed is not None]
        if known and len(known) == len(seeds):
            is_independent = len({run.seed for run in runs}) == len(runs)
            found[group.label] = aggregated(known, middle, is_independent)
    return found


def curves_by_axis(
    groups: Sequence[Group], task: str, metric: str, middle: Middle
) -> dict[str, dict[str, Curve]]:
    """Return the curves against each axis, by what to write at it.

    Frames are left out where each environment step is one. `curves` says what the arguments are.
    """
    found = {axis: curves(groups, task, metric, axis, middle) for axis in AXES}
    titles = dict(AXES)
    if all(
        _last(found["env_steps"], group) == _last(found["frames"], group)
        for group in found["frames"]
    ):
        found["frames"] = {}
        titles["env_steps"] = "environment steps (= frames)"
    clocks = found["seconds"]
    divisor, titles["seconds"] = time_unit(max((_last(clocks, g) for g in clocks), default=0.0))
    found["seconds"] = {group: curve.scaled(1.0 / divisor) for group, curve in clocks.items()}
    return {titles[axis]: found[axis] for axis in AXES if found[axis]}


def _last(found: Mapping[str, Curve], group: str) -> float:
    return max((float(at[-1]) for at, _ in found[group].seeds), default=0.0)


def time_unit(longest: float) -> tuple[float, str]:
    """Return by what to divide seconds for an axis, and what to write there.

    Example:
        >>> time_unit(90.0), time_unit(9000.0)
        ((1.0, 'wall time (seconds)'), (60.0, 'wall time (minutes)'))
    """
    for most, divisor, name in ((180.0, 1.0, "seconds"), (10_800.0, 60.0, "minutes")):
        if longest <= most:
            return divisor, f"wall time ({name})"
    return 3600.0, "wall time (hours)"


def aggregated(
    seeds: Sequence[tuple[Floats, Floats]], middle: Middle, is_independent: bool = True
) -> Curve:
    """Return the curve of runs, on their own points if those are equal, else in between.

    It reaches from where the last run has begun to where the first one ends: beyond, the middle
    would be one of fewer runs. Runs that are not independent, of one seed, have no interval.
    """
    first = max(at[0] for at, _ in seeds)
    last = min(at[-1] for at, _ in seeds)
    shortest = min((at for at, _ in seeds), key=len)
    are_equal = all(np.array_equal(at, shortest) for at, _ in seeds)
    grid = shortest if are_equal else np.linspace(first, last, min(_POINTS, len(shortest)))
    grid = _thinned(grid)
    if first > last:
        grid = np.empty(0)
    values = np.stack([np.interp(grid, at, value) for at, value in seeds])  # [runs, points]
    low = high = None
    if len(seeds) > 1 and grid.size and is_independent:
        low, high = _band(values, middle)
    thin = tuple((_thinned(at), _thinned(value)) for at, value in seeds)
    return Curve(thin, grid, _middle(values, middle), low, high)


def _middle(values: Floats, middle: Middle) -> Floats:
    """Return the middle along the last axis but one, `[..., runs, points]` to `[..., points]`."""
    if middle == "mean":
        return values.mean(axis=-2)
    if middle == "median":
        return np.median(values, axis=-2)
    return interquartile_means_along(np.moveaxis(values, -2, -1))


def _band(values: Floats, middle: Middle) -> tuple[Floats, Floats]:
    """Return the 95 % percentile bootstrap at each point; a resample draws whole runs."""

    def statistic(draws: Sequence[Floats]) -> Floats:
        return _middle(values[draws[0].astype(np.int64)], middle)

    return interval([np.arange(len(values))], statistic, resamples=_RESAMPLES)


def _thinned(values: Floats) -> Floats:
    stride = -(-len(values) // _MOST_POINTS) if len(values) else 1
    return values if stride == 1 else np.append(values[:-1:stride], values[-1])
