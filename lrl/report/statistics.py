"""Statistics of scores, with numpy alone: pure functions.

Reference: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", https://arxiv.org/abs/2108.13264, sections 4.1 (intervals) and 4.3 (interquartile mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    low, high = interquartile_mean_interval(groups) if is_known else (None, None)
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


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Return the mean without the lowest and the highest quarter of the scores, `[n]`.

    Of n scores the n // 4 lowest and as many of the highest are left out.

    Example:
        >>> interquartile_mean([-1000.0, 4.0, 5.0, 6.0, 1000.0])
        5.0
    """
    return float(_interquartile_means(np.asarray(scores, np.float64)[None])[0])


def interquartile_mean_interval(
    groups: Sequence[npt.ArrayLike],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the interquartile mean's interval by the stratified percentile bootstrap.

    Args:
        groups: Scores, `[n]` each: each resample draws n of each group, with replacement.
        confidence: Probability that the interval shall have.
        resamples: Number of resamples.
        seed: Of the draws: equal arguments give equal intervals.
    """
    strata = [np.asarray(group, np.float64) for group in groups]
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_VALUES // sum(len(scores) for scores in strata))
    means = []
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        draws = [s[rng.integers(len(s), size=(rows, len(s)))] for s in strata]
        means.append(_interquartile_means(np.concatenate(draws, axis=1)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return float(low), float(high)


def _interquartile_means(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the interquartile mean of every row of `[rows, n]`."""
    n = scores.shape[1]
    cut = n // 4
    # All between the two is between them in the result, whatever its order.
    return np.partition(scores, (cut, n - cut - 1), axis=1)[:, cut : n - cut].mean(axis=1)
