"""Statistics over several environments, beside scipy and all resamples that there are."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from lrl.report.comparison import Panel, panels
from lrl.report.figures import draw_profiles, styles
from lrl.report.page import _failures
from lrl.report.results import Result, read_results
from lrl.report.tables import unsupported
from lrl.types import ConfigError

LEFT, RIGHT = "Left-v0", "Right-v0"
BOUNDS = {LEFT: (0.0, 10.0), RIGHT: (-100.0, 0.0)}
SCORES = {
    "a": {LEFT: [3.0, 9.0, 5.0], RIGHT: [-80.0, -20.0]},
    "b": {LEFT: [4.0, 3.0], RIGHT: [-50.0, -60.0, -10.0]},
}
"""Returns of two groups, of unequal scales and numbers of runs."""
NORMALISED = {
    "a": [[0.3, 0.9, 0.5], [0.2, 0.8]],
    "b": [[0.4, 0.3], [0.5, 0.4, 0.9]],
}


def results_of(scores: dict[str, dict[str, list[float]]]) -> list[Result]:
    return [
        Result(group, task, value, None, str(seed), {}, "")
        for group, tasks in scores.items()
        for task, values in tasks.items()
        for seed, value in enumerate(values)
    ]


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch) -> Panel:
    monkeypatch.setattr("lrl.report.statistics.RESAMPLES", 100_000)
    (found,), sentences = panels(results_of(SCORES), BOUNDS)
    assert not sentences
    assert found.tasks == (LEFT, RIGHT)
    return found


def resamples(tasks):
    """Return all resamples of a group, drawn within each environment."""
    return itertools.product(*(itertools.product(runs, repeat=len(runs)) for runs in tasks))


def check_interval(low: float | None, high: float | None, every: list[float]) -> None:
    """Check ends: so many draws miss a share of all resamples by less than 0.0025, five sigma."""
    assert low is not None
    assert high is not None
    lowest, most_low, least_high, highest = np.quantile(
        every, [0.0225, 0.0275, 0.9725, 0.9775], method="inverted_cdf"
    )
    assert lowest - 1e-9 <= low <= most_low + 1e-9
    assert least_high - 1e-9 <= high <= highest + 1e-9


@pytest.mark.parametrize("group", ["a", "b"])
def test_aggregates_over_environments_are_those_of_another_computation(panel: Panel, group: str):
    computed = {
        "IQM": lambda tasks: scipy.stats.trim_mean(  # of 3 runs and of 2: each counts twice, thrice
            np.concatenate([np.tile(runs, 6 // len(runs)) for runs in tasks]), 0.25
        ),
        "median": lambda tasks: np.median([np.mean(runs) for runs in tasks]),
        "mean": lambda tasks: np.mean([np.mean(runs) for runs in tasks]),
        "optimality gap": lambda tasks: np.mean([1.0 - np.mean(runs) for runs in tasks]),
    }
    found = panel.aggregates()[group]
    assert found.keys() == computed.keys()
    for name, statistic in computed.items():
        assert found[name].value == pytest.approx(float(statistic(NORMALISED[group])))
        every = [float(statistic(tasks)) for tasks in resamples(NORMALISED[group])]
        assert len(every) == 3**3 * 2**2
        check_interval(found[name].low, found[name].high, every)


def test_the_probability_of_improvement_is_the_mean_of_mann_whitneys(panel: Panel):
    found = panel.improvements()["a", "b"]
    chances, shares = [], []
    for one, other in zip(NORMALISED["a"], NORMALISED["b"], strict=True):
        pairs = len(one) * len(other)
        chances.append(scipy.stats.mannwhitneyu(one, other).statistic / pairs)
        drawn = itertools.product(
            itertools.product(one, repeat=len(one)), itertools.product(other, repeat=len(other))
        )
        shares.append(
            [sum((x > y) + 0.5 * (x == y) for x in xs for y in ys) / pairs for xs, ys in drawn]
        )
    assert chances == pytest.approx([4.5 / 6, 2 / 6])
    assert found.value == pytest.approx(np.mean(chances))
    check_interval(found.low, found.high, [(x + y) / 2 for x, y in itertools.product(*shares)])


def test_performance_profiles_by_hand(panel: Panel):
    found = panel.profiles()["a"]
    assert found.thresholds[1:] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.8, 0.9])
    # Below all scores; then of 3 runs and of 2: 3 and 1, 2 and 1, again, 1 and 1, 1 and 0, none.
    assert found.share == pytest.approx([1, 3 / 4, 7 / 12, 7 / 12, 5 / 12, 1 / 6, 0])


def test_equal_scores_are_drawn_without_a_warning():
    equal = {name: {LEFT: [7.0, 7.0]} for name in "ab"}
    (panel,), _ = panels(results_of(equal), {})
    profiles = panel.profiles()
    assert profiles["a"].thresholds[0] < 7.0
    assert profiles["a"].share.tolist() == [1.0, 0.0]
    draw_profiles(profiles, panel.unit, styles(["a", "b"]))


@pytest.mark.parametrize("bounds", [(0.0, math.inf), (-math.inf, 0.0), (math.nan, 1.0), (1.0, 1.0)])
def test_bounds_are_two_numbers_of_which_the_lower_is_first(bounds: tuple[float, float]):
    with pytest.raises(ConfigError, match="lower one comes first"):
        panels(results_of(SCORES), {LEFT: bounds})


def test_campaigns_that_are_half_done_say_so(tmp_path: Path):
    path = tmp_path / "campaign.csv"
    path.write_text(
        "task,algorithm,seed,outcome,score,environment\n"
        "pole,x,0,done,3,CartPole-v1\npole,x,1,failed,,CartPole-v1\n"
        "swing,x,0,done,-90,Acrobot-v1\nswing,x,1,done,-80,Acrobot-v1\n"
        "pole,y,0,done,4,CartPole-v1\n"
    )
    results, failed = read_results(path, of_others=False)
    assert ([result.value for result in results], failed) == ([3, -90, -80, 4], 1)
    (sentence,) = _failures({"campaign.csv": failed, "whole.csv": 0})
    assert "Of campaign.csv 1 failed run is left out" in sentence
    *_, lacking = unsupported(results)
    assert lacking.endswith("lack some that others have: y.")
