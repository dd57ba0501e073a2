"""Statistics of scores, with numpy alone: pure functions.

Reference: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", https://arxiv.org/abs/2108.13264, sections 4.1 (intervals), 4.2 (performance profiles)
and 4.3 (interquartile mean, optimality gap, probability of improvement).

What is computed of resamples takes one array `[resamples, n]` per task and returns an array
`[resamples]`, or `[resamples, points]`; what was measured is one such resample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Statistic: TypeAlias = Callable[[Sequence[Floats]], Floats]

_CHUNK_VALUES = 2**22  # drawn at once: 64 MB with their indices


@dataclass(frozen=True)
class Summary:
    """Statistics of a set of scores, all but `count` in the scores' own unit."""

    count: int
    mean: float
    std: float  # of the scores themselves: divided by the count, as in `eval/return_std`
    median: float
    iqm: float
    iqm_low: float | None  # of its 95 % interval; None where the scores tell of none
    iqm_high: float | None
    min: float
    max: float

    @property
    def digits(self) -> int:
        """Decimals that tell scores apart, at least one."""
        return max(1, digits_for([self.min, self.max]))


def summarise(groups: Sequence[npt.ArrayLike], independent: bool = True) -> Summary:
    """Return the statistics of all groups' scores together.

    Args:
        groups: Scores, `[n]` each, that the bootstrap draws anew within each group. One group
            holds what varies by the same chance: a checkpoint's episodes, or a game's runs.
        independent: Whether they are drawn independently; if not, there is no interval, as where a
            group is a single score.

    Example:
        >>> summary = summarise([[1.0, 2.0, 3.0, 94.0]])
        >>> summary.mean, summary.median, summary.iqm
        (25.0, 2.5, 2.5)
    """
    scores = np.concatenate([np.asarray(group, np.float64) for group in groups])
    if not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite numbers, got {scores}")
    # Drawn from a single score, a group would pretend that it never varies.
    is_known = independent and all(np.size(group) > 1 for group in groups)
    low, high = map(float, interval(groups, _pooled)) if is_known else (None, None)
    return Summary(
        count=len(scores),
        mean=float(scores.mean()),
        std=float(scores.std()),
        median=float(np.median(scores)),
        iqm=interquartile_mean(scores),
        iqm_low=low,
        iqm_high=high,
        min=float(scores.min()),
        max=float(scores.max()),
    )


def digits_for(values: Sequence[float]) -> int:
    """Return how many decimals tell values apart: four digits of the largest, none to three.

    Example:
        >>> digits_for([1250.0]), digits_for([-21.0, 3.0]), digits_for([0.25])
        (0, 2, 3)
    """
    largest = max(map(abs, values), default=0.0)
    return next((d for limit, d in ((1000, 0), (100, 1), (10, 2)) if largest >= limit), 3)


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Return the mean without the lowest and the highest quarter of the scores, `[n]`.

    Of n scores the n // 4 lowest and as many of the highest are left out.

    Example:
        >>> interquartile_mean([-1000.0, 4.0, 5.0, 6.0, 1000.0])
        5.0
    """
    return float(interquartile_means_along(np.asarray(scores, np.float64)[None])[0])


def interval(
    groups: Sequence[npt.ArrayLike],
    statistic: Statistic,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return the ends of a statistic's interval by the stratified percentile bootstrap.

    Args:
        groups: Scores, `[n]` each: each resample draws n of each group, with replacement.
        statistic: What is computed of each resample.
        confidence: Probability that the interval shall have.
        resamples: Number of resamples.
        seed: Of the draws: equal arguments give equal intervals.

    Returns:
        Scalars, or arrays `[points]` if the statistic has several.
    """
    strata = [np.asarray(group, np.float64) for group in groups]
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_VALUES // sum(len(scores) for scores in strata))
    found = []
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        found.append(statistic([s[rng.integers(len(s), size=(rows, len(s)))] for s in strata]))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(found), [tail, 1.0 - tail], axis=0)
    return low, high


@dataclass(frozen=True)
class Estimate:
    """A statistic, and its 95 % interval where the scores tell of one.

    Attributes:
        value: Of the scores as they were measured.
        low: Lower end; None if there is no interval.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


def estimate(
    tasks: Sequence[npt.ArrayLike], statistic: Statistic, independent: bool = True
) -> Estimate:
    """Return a statistic of a group's scores, with its interval by 2,000 resamples.

    Args:
        tasks: Scores of the runs of each task, `[n]` each.
        statistic: What is computed.
        independent: As in `summarise`.

    Example:
        >>> estimate([[1.0], [3.0]], means)
        Estimate(value=2.0, low=None, high=None)
    """
    value = float(statistic(measured(tasks))[0])
    if not independent or any(np.size(scores) < 2 for scores in tasks):
        return Estimate(value)
    low, high = interval(tasks, statistic, resamples=RESAMPLES)
    return Estimate(value, float(low), float(high))


RESAMPLES = 2_000
"""Of an estimate: the page has hundreds, and a percentile of so many is steady to a few percent of
the interval's width."""


def measured(tasks: Sequence[npt.ArrayLike]) -> list[Floats]:
    """Return what was measured as the only resample, `[1, n]` per task."""
    return [np.asarray(scores, np.float64)[None] for scores in tasks]


def interquartile_means(draws: Sequence[Floats]) -> Floats:
    """Return the interquartile mean of all tasks' scores together (section 4.3).

    Where tasks have unequal numbers of runs, each run is there as often as makes tasks count alike.

    Example:
        >>> interquartile_means(measured([[0.0, 10.0], [4.0]]))  # that of 0, 10, 4 and 4
        array([4.])
    """
    counts = np.array([scores.shape[1] for scores in draws])
    scores, often = np.concatenate(draws, axis=1), np.lcm.reduce(counts)
    if (counts == counts[0]).all():
        return interquartile_means_along(scores)
    order = np.argsort(scores, axis=1)
    copies = np.repeat(often // counts, counts)[order]
    ends, total = np.cumsum(copies, axis=1), often * len(counts)
    cut = total // 4
    kept = np.minimum(ends, total - cut) - np.maximum(ends - copies, cut)
    middle = np.take_along_axis(scores, order, axis=1) * np.maximum(kept, 0)
    return middle.sum(axis=1) / (total - 2 * cut)


def _pooled(draws: Sequence[Floats]) -> Floats:
    return interquartile_means_along(np.concatenate(draws, axis=1))


def means(draws: Sequence[Floats]) -> Floats:
    """Return the mean of the tasks' means (section 2): one task of huge scores decides it.

    Example:
        >>> means(measured([[0.0, 1.0], [4.0]]))
        array([2.25])
    """
    return np.mean(_task_means(draws), axis=0)


def medians(draws: Sequence[Floats]) -> Floats:
    """Return the median of the tasks' means (section 2); of a single task, of its runs.

    Example:
        >>> medians(measured([[0.0, 1.0], [4.0], [9.0]])), medians(measured([[0.0, 1.0, 8.0]]))
        (array([4.]), array([1.]))
    """
    if len(draws) == 1:
        return np.median(draws[0], axis=1)
    return np.median(_task_means(draws), axis=0)


def optimality_gaps(draws: Sequence[Floats]) -> Floats:
    """Return by how much normalised scores fall short of 1, mean of the tasks (section 4.3).

    A score above 1 counts as 1: mean of max(0, 1 - score). Lower is better.

    Example:
        >>> optimality_gaps(measured([[0.5, 3.0], [0.0]]))
        array([0.625])
    """
    return np.mean(_task_means([np.maximum(0.0, 1.0 - scores) for scores in draws]), axis=0)


def profiles(thresholds: npt.ArrayLike) -> Statistic:
    """Return the statistic of a performance profile: the share of runs above each threshold.

    Section 4.2, equation 2: the mean over tasks of the share of runs with score > threshold.

    Args:
        thresholds: Scores, `[points]`.

    Example:
        >>> profiles([0.0, 1.0, 2.0])(measured([[1.0, 2.0], [3.0]]))
        array([[1.  , 0.75, 0.5 ]])
    """
    at = np.asarray(thresholds, np.float64)

    def statistic(draws: Sequence[Floats]) -> Floats:
        # One threshold at a time: all at once would take a hundred times the memory.
        columns = [means([(scores > threshold) * 1.0 for scores in draws]) for threshold in at]
        return np.stack(columns, axis=1)

    return statistic


def improvement(draws: Sequence[Floats]) -> Floats:
    """Return the probability that a run of one group scores higher than one of another.

    Section 4.3: the mean over tasks of the share of pairs (x, y) with x > y, where a tie counts
    one half, as in the Mann-Whitney U statistic.

    Args:
        draws: The tasks of the one group, then those of the other in the same order.

    Example:
        >>> improvement(measured([[1.0, 2.0], [1.0, 0.0]]))
        array([0.875])
    """
    half = len(draws) // 2
    shares = [_shares_won(x, y) for x, y in zip(draws[:half], draws[half:], strict=True)]
    return np.mean(shares, axis=0)


def _shares_won(x: Floats, y: Floats) -> Floats:
    """Return in each row of `[rows, n]` and `[rows, m]` the share of pairs that x wins."""
    rows, m = y.shape
    values, ranks = np.unique(np.concatenate([x, y], axis=1), return_inverse=True)
    # A row's ranks lie above those of the row before it, so that one search serves all rows.
    ranks = ranks.reshape(rows, -1) + len(values) * np.arange(rows)[:, None]
    won, other = ranks[:, : x.shape[1]], np.sort(ranks[:, x.shape[1] :], axis=1).ravel()
    below = np.searchsorted(other, won, "left") + np.searchsorted(other, won, "right")
    return (below - 2 * m * np.arange(rows)[:, None]).mean(axis=1) / (2 * m)


def _task_means(draws: Sequence[Floats]) -> Floats:
    return np.stack([scores.mean(axis=1) for scores in draws])


def interquartile_means_along(scores: Floats) -> Floats:
    """Return the interquartile means along the last axis, `[..., n]` to `[...]`."""
    n = scores.shape[-1]
    cut = n // 4
    # All between the two is between them in the result, whatever its order.
    return np.partition(scores, (cut, n - cut - 1), axis=-1)[..., cut : n - cut].mean(axis=-1)
