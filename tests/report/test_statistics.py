"""Statistics of scores: by hand, beside naive twins, and against all resamples there are."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrl.report.statistics import (
    improvement,
    interquartile_mean,
    interquartile_means,
    interval,
    summarise,
)

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


def naive_interquartile_mean(values) -> float:
    ordered, cut = sorted(values), math.floor(0.25 * len(values))
    return fmean(ordered[cut : len(ordered) - cut])


def naive_quantile(values, share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # 3 // 4 is none to leave out
        ([100.0, 3.0, 1.0, -100.0], 2.0),
        ([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, -90.0, 0.0], 2.5),  # 1, 2, 3, 4
        (range(100), 49.5),
        ([0.0] * 25 + [1.0] * 75, 1.0),  # the failures are the lowest quarter
        ([0.0] * 26 + [1.0] * 74, 49 / 50),
    ],
)
def test_interquartile_means_by_hand(values, expected: float):
    assert interquartile_mean(list(values)) == pytest.approx(expected)


@given(scores)
def test_the_interquartile_mean_is_its_naive_twin(values):
    assert interquartile_mean(values) == pytest.approx(naive_interquartile_mean(values), abs=1e-6)


@given(scores, st.randoms())
def test_the_interquartile_mean_depends_on_no_order_and_lies_between_the_scores(values, random):
    mean = interquartile_mean(values)
    assert min(values) - 1e-6 <= mean <= max(values) + 1e-6
    random.shuffle(values)
    assert interquartile_mean(values) == pytest.approx(mean, abs=1e-6)


def test_the_interquartile_mean_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for count in (1, 3, 4, 7, 10, 99, 100, 101):
        values = rng.normal(size=count)
        assert interquartile_mean(values) == pytest.approx(float(stats.trim_mean(values, 0.25)))


@given(st.lists(scores, min_size=1, max_size=3), st.integers(0, 5))
def test_the_interval_is_its_naive_twin(groups, seed):
    resamples = 40
    found = interval(groups, interquartile_means, confidence=0.9, resamples=resamples, seed=seed)
    rng = np.random.default_rng(seed)
    draws = [rng.integers(len(group), size=(resamples, len(group))).tolist() for group in groups]
    means = []
    for resample in range(resamples):
        often = math.lcm(*map(len, groups))
        drawn = [
            group[index]
            for group, chosen in zip(groups, draws, strict=True)
            for index in chosen[resample] * (often // len(group))
        ]
        means.append(naive_interquartile_mean(drawn))
    expected = naive_quantile(means, 0.05), naive_quantile(means, 0.95)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_interval_is_near_that_of_all_resamples():
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    every = [naive_interquartile_mean(drawn) for drawn in itertools.product(values, repeat=5)]
    low, high = interval([values], interquartile_means)
    # A quantile that is off by half a percent of the resamples is still near enough.
    assert naive_quantile(every, 0.02) <= low <= naive_quantile(every, 0.03)
    assert naive_quantile(every, 0.97) <= high <= naive_quantile(every, 0.98)


def test_resamples_drawn_in_pieces_cover_as_much(monkeypatch: pytest.MonkeyPatch):
    values = np.random.default_rng(1).normal(10.0, 2.0, size=100)
    whole = interval([values], interquartile_means)
    monkeypatch.setattr("lrl.report.statistics._CHUNK_VALUES", 100 * 999)
    pieces = interval([values], interquartile_means)
    assert pieces == pytest.approx(whole, abs=0.05)
    assert pieces[0] < interquartile_mean(values) < pieces[1]
    assert interval([values], interquartile_means) == pieces  # of one seed
    assert interval([values], interquartile_means, seed=1) != pieces


def test_a_group_is_drawn_within_itself():
    """Every resample has all four of each group, so that their difference costs no certainty."""
    apart = [[0.0] * 4, [100.0] * 4]
    assert interval(apart, interquartile_means) == (50.0, 50.0)
    low, high = interval([[*apart[0], *apart[1]]], interquartile_means)
    assert low < 30
    assert high > 70


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for trial in range(200):
        low, high = interval([rng.normal(size=50)], interquartile_means, resamples=500, seed=trial)
        hits += low <= 0.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_summary_by_hand():
    summary = summarise([[3.0, -1.0], [4.0, 10.0]])
    assert (summary.count, summary.mean, summary.median) == (4, 4.0, 3.5)
    assert summary.std == pytest.approx(math.sqrt((1 + 25 + 0 + 36) / 4))
    assert (summary.iqm, summary.min, summary.max) == (3.5, -1.0, 10.0)
    assert summary.iqm_low is not None
    assert summary.iqm_high is not None
    assert -1.0 <= summary.iqm_low < 3.5 < summary.iqm_high <= 10.0


@pytest.mark.parametrize("groups", [[[5.0]], [[5.0], [7.0, 8.0]]])
def test_a_single_score_says_nothing_of_its_variation(groups):
    summary = summarise(groups)
    assert (summary.iqm_low, summary.iqm_high) == (None, None)


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match=r"scores must be finite numbers, got \[ 1\. nan\]"):
        summarise([[1.0, float("nan")]])


def test_the_probability_of_improvement_is_its_naive_twin_and_takes_no_memory_for_pairs():
    rng = np.random.default_rng(3)
    x, y = rng.integers(4, size=(50, 7)) / 3.0, rng.integers(4, size=(50, 5)) / 3.0
    naive = [np.mean([(a > b) + 0.5 * (a == b) for a in xs for b in ys])
             for xs, ys in zip(x, y, strict=True)]  # fmt: skip
    assert improvement([x, y]) == pytest.approx(np.array(naive))
    many = [rng.normal(size=(100, 500)) for _ in range(2)]
    tracemalloc.start()
    improvement(many)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6  # all pairs at once are 200 MB
