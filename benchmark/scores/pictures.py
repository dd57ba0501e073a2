"""What the runs of a campaign say together: statistics over its tasks, and learning curves.

Both are `lrl report`'s, of the CSV files that `--gather` wrote instead of folders of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmark.scores.records import Row, read_rows
from lrl.report.comparison import HUMAN, Panel, panels
from lrl.report.curves import Curve, aggregated
from lrl.report.figures import draw_curves, draw_intervals, draw_profiles, png, styles
from lrl.report.results import read_results
from lrl.report.tables import panel_table

_SCALE = ("random", "human")
"""Published scores that normalised ones are measured by: 0 and 1."""
OF_MEANS = ", means of tasks"
"""How groups end that have the mean of a task's runs as its one score, as published ones do."""


def panel_of(scores: Path, published: Path) -> Panel | None:
    """Return human-normalised scores, ours and published, of the tasks that have been run.

    Published scores are means of several runs of a task. What is not linear in scores, such as the
    interquartile mean, differs between runs and means: our means are a group of their own.

    Args:
        scores: CSV file of the campaign.
        published: CSV file of the published scores.

    Returns:
        None before there are any.
    """
    if not published.exists() or not any(row["score"] for row in read_rows(scores)):
        return None
    own, _ = read_results(scores, of_others=False)
    others, _ = read_results(published, of_others=True)
    ours, tasks = {result.group for result in own}, {result.task for result in own}
    beside = [one for one in others if one.group not in _SCALE and one.task in tasks]
    found = (p for p in panels([*own, *beside], {})[0] if p.unit == HUMAN and {*p.tasks} == tasks)
    panel = next((panel for panel in found if ours & set(panel.groups)), None)
    return None if panel is None else _with_means(panel, ours)


def _with_means(panel: Panel, ours: Iterable[str]) -> Panel:
    means = {
        f"{group}{OF_MEANS}": [np.mean(scores, keepdims=True) for scores in panel.scores[group]]
        for group in panel.groups
        if group in ours
    }
    return replace(
        panel,
        scores={**panel.scores, **means},
        independent={**panel.independent, **dict.fromkeys(means, True)},
    )


def statistics_of(panel: Panel) -> tuple[str, dict[str, bytes]]:
    """Return the statistics of a panel, with their intervals: a Markdown table, and pictures.

    The pictures, as PNG, are `scores`, of the same statistics, and `profile` where scores vary.
    """
    aggregates, looks = panel.aggregates(), styles(panel.groups)
    pictures = {"scores": png(draw_intervals(aggregates, panel.unit, looks))}
    if panel.varied:
        pictures["profile"] = png(draw_profiles(panel.profiles(), panel.unit, looks))
    told = panel_table(panel, aggregates)
    lines = [
        f"| {told['unit']} | runs | {' | '.join(told['names'])} |",
        f"| --- | --- |{' --- |' * len(told['names'])}",
    ]
    for row in told["rows"]:
        of_means = f"{row['group']}{OF_MEANS}" not in panel.scores  # published ones are, too
        runs = f"{row['runs']} means" if of_means else row["runs"]
        cells = [f"{cell['value']} {cell['interval']}".strip() for cell in row["cells"]]
        lines.append(f"| {row['group'].replace('_', ' ')} | {runs} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n", pictures


def curves_pictures(rows: Sequence[Row]) -> dict[str, bytes]:
    """Return the returns in evaluation against frames as PNG, a panel for each task.

    Algorithms with more than twice the frames of the shortest runs have a picture of their own,
    `long_curves`: in one with the others, these would be squeezed into its left edge.
    """
    furthest: dict[str, float] = {}
    for row in rows:
        name = row["algorithm"]
        furthest[name] = max(furthest.get(name, 0.0), float(row["frames"]))
    limit = 2 * min(furthest.values())
    parts = {
        "curves": [row for row in rows if furthest[row["algorithm"]] <= limit],
        "long_curves": [row for row in rows if furthest[row["algorithm"]] > limit],
    }
    return {what: _curves_picture(part) for what, part in parts.items() if part}


def _curves_picture(rows: Sequence[Row]) -> bytes:
    tasks = dict.fromkeys(row["task"] for row in rows)
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    looks = styles([name or "return" for name in algorithms])
    parts = {
        f"{task}: frames": {
            name or "return": _curve(found)
            for name in algorithms
            if (found := [r for r in rows if (r["task"], r["algorithm"]) == (task, name)])
        }
        for task in tasks
    }
    return png(draw_curves(parts, "return in evaluation", looks, one_task=False))


def _curve(rows: Sequence[Row]) -> Curve:
    seeds = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        of_seed = [row for row in rows if row["seed"] == seed]
        at, values = ([float(row[key]) for row in of_seed] for key in ("frames", "return_mean"))
        seeds.append((np.array(at), np.array(values)))
    return aggregated(seeds, "iqm")
