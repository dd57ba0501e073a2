"""The tables of a report, as text: what the page shows of groups and their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from lrl.report.comparison import MOST_GROUPS, RAW, Panel, TaskRow, task_tables
from lrl.report.groups import Group, differing, said
from lrl.report.results import Result, protocol_of
from lrl.report.runs import SHARES
from lrl.report.statistics import Estimate, digits_for

_MOST_SCORES = 10
_UNKNOWN = "-"


def best_groups(results: Sequence[Result]) -> list[str]:
    """Return the groups that figures have room for: the best of each environment, in turns."""
    rankings = [[row.group for row in rows] for rows in task_tables(results).values()]
    ranked = [group for rank in range(max(map(len, rankings), default=0))
              for group in (r[rank] for r in rankings if rank < len(r))]  # fmt: skip
    return list(dict.fromkeys(ranked))[:MOST_GROUPS]


def panel_table(panel: Panel, aggregates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    """Return what the page tells of a panel: names, statistics with intervals, improvements."""
    every = [float(score) for tasks in panel.scores.values() for run in tasks for score in run]
    digits = digits_for(every)
    rows = [
        {
            "group": group,
            "runs": sum(len(scores) for scores in panel.scores[group]),
            "cells": [_cell(found, digits) for found in aggregates[group].values()],
        }
        for group in panel.groups
    ]
    pairs, varied = panel.improvements(), panel.varied
    matrix = [(one, [_chance(pairs.get((one, other))) for other in varied]) for one in varied]
    return {
        "title": _title(panel.tasks),
        "unit": panel.unit,
        "is_raw": panel.unit == RAW,
        "names": list(next(iter(aggregates.values()))),
        "rows": rows,
        "matrix": matrix if len(varied) > 1 else [],
        "left_out": [group for group in panel.groups if group not in varied],
        "most": MOST_GROUPS,
    }


def _title(tasks: Sequence[str]) -> str:
    return ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} environments"


def _cell(found: Estimate, digits: int) -> dict[str, str]:
    if found.low is None:
        return {"value": f"{found.value:.{digits}f}", "interval": ""}
    return {
        "value": f"{found.value:.{digits}f}",
        "interval": f"[{found.low:.{digits}f}, {found.high:.{digits}f}]",
    }


def _chance(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    # Coloured where the interval leaves out 0.5: elsewhere the runs do not tell.
    assert found.low is not None
    assert found.high is not None
    colour = "wins" if found.low > 0.5 else "loses" if found.high < 0.5 else "even"
    return {**_cell(found, 2), "colour": colour}


def task_table(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the table of each environment."""
    tables = []
    for task, rows in task_tables(results).items():
        digits = digits_for([run.value for row in rows for run in row.runs])
        tables.append(
            {
                "task": task,
                "has_human": any(row.human is not None for row in rows),
                "has_costs": any(run.env_steps or run.seconds for row in rows for run in row.runs),
                "rows": [_task_row(row, digits) for row in rows],
            }
        )
    return tables


def _task_row(row: TaskRow, digits: int) -> dict[str, Any]:
    found = row.summary
    scores = [f"{run.value:.{digits}f}" for run in row.runs]
    if len(scores) > _MOST_SCORES:
        scores = [f"{found.min:.{digits}f} to {found.max:.{digits}f}"]
    return {
        "group": row.group,
        "runs": found.count,
        "iqm": _cell(Estimate(found.iqm, found.iqm_low, found.iqm_high), digits),
        "mean": f"{found.mean:.{digits}f}",
        "std": f"{found.std:.{digits}f}" if found.count > 1 else "",
        "median": f"{found.median:.{digits}f}",
        "human": _UNKNOWN if row.human is None else f"{row.human:.1%}",
        "env_steps": _median([run.env_steps for run in row.runs], "{:,.0f}"),
        "seconds": _median([run.seconds for run in row.runs], "{:,.0f}"),
        "scores": ", ".join(scores),
    }


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(median(known)) if known else _UNKNOWN


def lone(results: Sequence[Result]) -> list[Result]:
    """Return the scores without a seed that are alone on their environment, as published means."""
    counts = Counter((result.group, result.task) for result in results)
    return [one for one in results if not one.seed and counts[one.group, one.task] == 1]


def unsupported(results: Sequence[Result]) -> list[str]:
    """Return what these runs cannot tell, in sentences."""
    rows = [row for rows in task_tables(results).values() for row in rows]
    single = [row.group for row in rows if len(row.runs) == 1 and row.runs[0].seed]
    alone = [run.group for run in lone(results)]
    few = [row.group for row in rows if 1 < len(row.runs) < 5 and not row.repeats]
    repeats = [row.group for row in rows if row.repeats]
    found = []
    if single:
        found.append(
            f"One run says nothing of what another seed would give: no interval for "
            f"{_listed(single)}."
        )
    if alone:
        found.append(
            "One score without a seed is of one run, or the mean of several: no interval for "
            f"{_listed(alone)}."
        )
    if few:
        found.append(
            f"With fewer than five runs intervals are rough, and too narrow: {_listed(few)}."
        )
    if repeats:
        found.append(
            f"Training seeds repeat, so that runs are not independent: no interval for "
            f"{_listed(repeats)}."
        )
    return found + _uneven(results)


def _uneven(results: Sequence[Result]) -> list[str]:
    """Return what aggregates cannot tell where groups have not the same tasks."""
    tasks: dict[str, set[str]] = {}
    for result in results:
        tasks.setdefault(result.group, set()).add(result.task)
    # Groups that share no environment are not meant to be compared.
    lacking = [
        group
        for group, own in tasks.items()
        if any(own & others and others - own for others in tasks.values())
    ]
    if not lacking:
        return []
    compared = "Aggregates compare only groups of the same environments."
    return [f"{compared} These lack some that others have: {_listed(lacking)}."]


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - MOST_GROUPS} more" if len(unique) > MOST_GROUPS else ""
    return ", ".join(unique[:MOST_GROUPS]) + more


def shares_of(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """Return where the learner's time went, as means of each group's runs that have ended."""
    found = {}
    for group in groups:
        known = [run.summary["time_shares"] for run in group.runs if run.summary]
        learnt = [shares for shares in known if any(shares.values())]
        if learnt:
            found[group.label] = {name: fmean(s[name] for s in learnt) for name in SHARES}
    return found


def speeds(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return the speeds of each group's runs that have ended, as medians."""
    shares, rows = shares_of(groups), []
    for group in groups:
        ended = [run.summary for run in group.runs if run.summary]
        if not ended:
            continue
        actors = [actor for summary in ended for actor in summary["actors"]]
        lived = sum(actor["seconds"] for actor in actors)
        waited = sum(actor["wait_seconds"] for actor in actors)
        rows.append(
            {
                "group": group.label,
                "runs": str(len(ended)),
                "env_steps": _median([s["env_steps_per_second"] for s in ended], "{:,.0f}"),
                "learner_steps": _median([s["learner_steps_per_second"] for s in ended], "{:,.1f}"),
                "seconds": _median([s["seconds"] for s in ended], "{:,.0f}"),
                "actors_waited": f"{waited / lived:.0%}" if lived else _UNKNOWN,
                **{
                    name: f"{share:.0%}" if group.label in shares else _UNKNOWN
                    for name, share in shares.get(group.label, dict.fromkeys(SHARES, 0.0)).items()
                },
            }
        )
    return rows


def configuration(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the settings that differ between groups, with the values of the first ones."""
    names = differing([group.settings for group in groups])
    shown = groups[:MOST_GROUPS]
    return {
        "groups": [group.label for group in shown],
        "left_out": len(groups) - len(shown),
        "rows": [(name, [said(group.settings.get(name, "")) for group in shown]) for name in names],
    }


def protocols(groups: Sequence[Group], results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return how scores were measured, and what trained: a row for all that was alike."""
    found: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    folders = set()
    for group in groups:
        for run in group.runs:
            folders.add(str(run.folder))
            versions, hardware = run.stamp["versions"], run.stamp["hardware"]
            machine = [hardware.get("processor"), f"{hardware['cores']} cores", *hardware["gpus"]]
            row = {
                "task": run.task,
                **protocol_of(run.stamp),
                "episodes": str(run.stamp["evaluation"]["episodes"]),
                "versions": f"lrl {versions['lrl']}, torch {versions['torch']}",
                "machine": ", ".join(part for part in machine if part),
            }
            found.setdefault(tuple(row.items()), {})[group.label] = None
    names = ("protocol", "epsilon", "max_frames", "episodes", "versions", "machine")
    for result in results:
        if result.source not in folders:
            row = {"task": result.task, **dict.fromkeys(names, "not stated"), **result.protocol}
            found.setdefault(tuple(row.items()), {})[result.group] = None
    return [{**dict(row), "groups": ", ".join(members)} for row, members in found.items()]
