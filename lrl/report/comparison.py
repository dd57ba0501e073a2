"""What the scores of groups say beside each other: tables by environment, and aggregates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lrl.report.results import Result
from lrl.report.statistics import (
    RESAMPLES,
    Estimate,
    Floats,
    Summary,
    estimate,
    improvement,
    interquartile_means,
    interval,
    means,
    measured,
    medians,
    optimality_gaps,
    profiles,
    summarise,
)
from lrl.types import ConfigError

MOST_GROUPS = 12
"""How many groups are compared in pairs and drawn into one figure: the best ones."""
_THRESHOLDS = 200

HUMAN, BOUNDED, RAW = "human-normalised score", "score normalised by bounds", "return"
Bounds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class TaskRow:
    """The runs of one group on one environment.

    Attributes:
        group: Label.
        runs: In the order in which they were given.
        summary: Of their mean returns.
        human: Mean human-normalised score; None if there is none.
        repeats: Whether seeds repeat, so that there is no interval.
    """

    group: str
    runs: tuple[Result, ...]
    summary: Summary
    human: float | None
    repeats: bool


@dataclass(frozen=True)
class Profile:
    """Shares of runs above thresholds, `[points]`, and their intervals, None without any."""

    thresholds: Floats
    share: Floats
    low: Floats | None
    high: Floats | None


@dataclass(frozen=True)
class Panel:
    """Groups with runs of the same environments, best first by their interquartile means.

    Attributes:
        tasks: Ids of the environments.
        unit: What the scores are: one of `HUMAN`, `BOUNDED`, `RAW`.
        scores: By group, of each environment, `[runs]`.
        independent: By group, whether its runs may be drawn anew: no seed repeats.
    """

    tasks: tuple[str, ...]
    unit: str
    scores: Mapping[str, Sequence[Floats]]
    independent: Mapping[str, bool]

    @property
    def groups(self) -> list[str]:
        """Labels, best first."""
        return list(self.scores)

    @property
    def varied(self) -> list[str]:
        """The best of the groups that have independent runs, two at least in each environment."""
        return [
            group
            for group, tasks in self.scores.items()
            if self.independent[group] and all(len(scores) > 1 for scores in tasks)
        ][:MOST_GROUPS]

    def aggregates(self) -> dict[str, dict[str, Estimate]]:
        """Return of each group what the section 'Aggregates' shows, by name."""
        statistics = {"IQM": interquartile_means, "median": medians, "mean": means}
        if self.unit != RAW:
            statistics["optimality gap"] = optimality_gaps
        return {
            group: {
                name: estimate(tasks, statistic, self.independent[group])
                for name, statistic in statistics.items()
            }
            for group, tasks in self.scores.items()
        }

    def profiles(self) -> dict[str, Profile]:
        """Return the performance profiles of the `varied` groups."""
        every = np.concatenate([scores for tasks in self.scores.values() for scores in tasks])
        thresholds = np.unique(every)  # between two scores a profile does not change
        if len(thresholds) > _THRESHOLDS:
            thresholds = np.linspace(thresholds[0], thresholds[-1], _THRESHOLDS)
        margin = 0.03 * (thresholds[-1] - thresholds[0]) or 1.0
        thresholds = np.concatenate([[thresholds[0] - margin], thresholds])
        statistic, found = profiles(thresholds), {}
        for group in self.varied:
            low, high = interval(self.scores[group], statistic, resamples=RESAMPLES)
            share = statistic(measured(self.scores[group]))[0]
            found[group] = Profile(thresholds, share, low, high)
        return found

    def improvements(self) -> dict[tuple[str, str], Estimate]:
        """Return for pairs of the `varied` groups how probably the first scores higher."""
        found = {}
        for index, one in enumerate(self.varied):
            for other in self.varied[index + 1 :]:
                p = estimate([*self.scores[one], *self.scores[other]], improvement)
                assert p.low is not None
                assert p.high is not None
                found[one, other] = p
                found[other, one] = Estimate(1.0 - p.value, 1.0 - p.high, 1.0 - p.low)
        return found


def task_tables(results: Sequence[Result]) -> dict[str, list[TaskRow]]:
    """Return the rows of each environment, best first."""
    tables: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        tables.setdefault(result.task, {}).setdefault(result.group, []).append(result)
    return {
        task: sorted(
            (_task_row(group, runs) for group, runs in groups.items()),
            key=lambda row: -row.summary.iqm,
        )
        for task, groups in tables.items()
    }


def _task_row(group: str, runs: Sequence[Result]) -> TaskRow:
    human = [run.human for run in runs if run.human is not None]
    return TaskRow(
        group=group,
        runs=tuple(runs),
        summary=summarise([[run.value for run in runs]], not _repeats(runs)),
        human=float(np.mean(human)) if len(human) == len(runs) else None,
        repeats=_repeats(runs),
    )


def _repeats(runs: Sequence[Result]) -> bool:
    """Return whether a known seed occurs twice on one environment."""
    counts = Counter((run.task, run.seed) for run in runs if run.seed)
    return any(count > 1 for count in counts.values())


def panels(results: Sequence[Result], bounds: Bounds) -> tuple[list[Panel], list[str]]:
    """Return what can be aggregated, and sentences about what cannot.

    Groups are compared with those of the same environments. Over several environments scores are
    normalised: by the bounds, if all of these environments have some, else by human scores.

    Raises:
        ConfigError: Bounds are of no environment here, or wrong.
    """
    _check_bounds(bounds, {result.task for result in results})
    by_group: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        by_group.setdefault(result.group, {}).setdefault(result.task, []).append(result)
    members: dict[tuple[str, ...], dict[str, dict[str, list[Result]]]] = {}
    for group, tasks in by_group.items():
        members.setdefault(tuple(sorted(tasks)), {})[group] = tasks
    found, sentences = [], []
    for tasks, groups in members.items():
        unit = _unit(tasks, groups, bounds)
        if len(tasks) == 1 and len(groups) == 1 and unit != BOUNDED:
            continue  # the table of the environment says it all
        if unit == RAW and len(tasks) > 1:
            sentences.append(
                f"Raw returns of {', '.join(tasks)} do not add up, so that {', '.join(groups)} "
                "is not aggregated: state bounds (--bounds)."
            )
            continue
        found.append(_panel(tasks, unit, groups, bounds))
    return found, sentences


def _check_bounds(bounds: Bounds, tasks: set[str]) -> None:
    for task, (low, high) in bounds.items():
        if task not in tasks:
            raise ConfigError(
                f"bounds names {task}, of which there is no score: the environments are "
                f"{', '.join(sorted(tasks))}"
            )
        if not -math.inf < low < high < math.inf:
            raise ConfigError(
                f"bounds of {task} are [{low:g}, {high:g}]: they are two numbers, of which the "
                "lower one comes first"
            )


def _unit(
    tasks: Sequence[str], groups: Mapping[str, Mapping[str, Sequence[Result]]], bounds: Bounds
) -> str:
    if all(task in bounds for task in tasks):
        return BOUNDED
    every = [run for group in groups.values() for runs in group.values() for run in runs]
    return HUMAN if all(run.human is not None for run in every) else RAW


def _panel(
    tasks: tuple[str, ...],
    unit: str,
    groups: Mapping[str, Mapping[str, Sequence[Result]]],
    bounds: Bounds,
) -> Panel:
    def score(run: Result) -> float:
        if unit == BOUNDED:
            low, high = bounds[run.task]
            return (run.value - low) / (high - low)
        return run.value if run.human is None or unit == RAW else run.human

    scores = {
        group: [np.array([score(run) for run in runs[task]]) for task in tasks]
        for group, runs in groups.items()
    }
    best_first = sorted(scores, key=lambda g: -float(interquartile_means(measured(scores[g]))[0]))
    return Panel(
        tasks=tasks,
        unit=unit,
        scores={group: scores[group] for group in best_first},
        independent={
            group: not _repeats([run for task in runs.values() for run in task])
            for group, runs in groups.items()
        },
    )
