"""`lrl report`: one page that compares runs, with their curves, scores, speeds and settings."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lrl.checkpoints.atomic_files import replace_file
from lrl.report.comparison import MOST_GROUPS, Panel, panels
from lrl.report.curves import Middle, curves, curves_by_axis
from lrl.report.figures import (
    MOST_COLOURS,
    Style,
    check_matplotlib,
    draw_curves,
    draw_intervals,
    draw_profiles,
    draw_shares,
    png,
    styles,
)
from lrl.report.groups import Group, group_runs
from lrl.report.results import Choice, Result, check_protocols, read_results, results_of
from lrl.report.runs import AXES, EVALUATION, TRAINING, Run, named, read_runs
from lrl.report.tables import (
    best_groups,
    configuration,
    lone,
    panel_table,
    protocols,
    shares_of,
    speeds,
    task_table,
    unsupported,
)
from lrl.types import ConfigError

_TEMPLATE = "page.html"
_CURVES = {EVALUATION: "evaluation", TRAINING: "training"}
_MOST_TASKS = 3
"""Environments whose curves are drawn against every axis; more share one figure."""


def report(
    paths: Sequence[str | Path],
    against: Sequence[str | Path] = (),
    output: str = "report",
    score: Choice = "last",
    middle: Middle = "iqm",
    bounds: dict[str, tuple[float, float]] | None = None,
) -> Path:
    """Compare runs on a page: learning curves, scores with intervals, speeds, settings, protocols.

    Runs of equal configuration but for the seed are one group, which is named by what differs from
    the others. docs/report.md explains the statistics and the files.

    Args:
        paths: Folders of runs (RUNS/NAME/version_K, or RUNS/NAME for all of its versions), and CSV
            files of scores.
        against: CSV files of others' scores, to be put beside, with columns algorithm, task and
            score.
        output: Folder for the page, index.html, and its figures as PNG files.
        score: What a run's score is: that of its last evaluation, or of its best one, which
            flatters.
        middle: What a curve shows of the runs of a group.
        bounds: Lowest and highest score of environments, by which scores are normalised to 0 and 1:
            --bounds.CartPole-v1 "[0, 500]".

    Returns:
        The path of the page.

    Raises:
        ConfigError: A folder holds no run, a file is damaged, a run that was asked for was never
            evaluated, or protocols differ.
    """
    check_matplotlib()
    given = [Path(path).resolve() for path in (*paths, *against)]
    if twice := [str(path) for path in given if path.suffix == ".csv" and given.count(path) > 1]:
        raise ConfigError(f"{twice[0]} is given twice, and would count twice")
    asked = [Path(path) for path in paths]
    files = [path for path in asked if path.suffix == ".csv"]
    runs, unscored = read_runs([path for path in asked if path.suffix != ".csv"])
    groups = group_runs(runs)
    results = results_of(groups, score)
    of_runs = {result.group for result in results}
    failed: dict[str, int] = {}
    for file in files:
        found, failed[str(file)] = read_results(file, of_others=False)
        results += _apart(found, of_runs)
    for file in map(Path, against):
        found, failed[str(file)] = read_results(file, of_others=True)
        results += _apart(found, {result.group for result in results})
    if not results:
        raise ConfigError("there is nothing to compare: give folders of runs or files of scores")
    check_protocols([run for group in groups for run in group.runs], results)
    left_out = [*_unscored(unscored), *_failures(failed)]
    page, figures = build(groups, results, score, middle, bounds or {}, left_out)
    return _write(Path(output), page, figures)


def _apart(others: Sequence[Result], own: set[str]) -> list[Result]:
    """Return scores of a file with names that no other group has: they may be of the same runs."""
    renamed = {}
    for result in others:
        path = Path(result.source)
        names = (result.group, *(f"{result.group} ({said})" for said in (path.stem, path)))
        renamed[result.group] = next(name for name in names if name not in own)
    return [replace(result, group=renamed[result.group]) for result in others]


def build(
    groups: Sequence[Group],
    results: Sequence[Result],
    score: Choice,
    middle: Middle,
    bounds: Mapping[str, tuple[float, float]],
    left_out: Sequence[str],
) -> tuple[str, dict[str, bytes]]:
    """Return the page, and its figures by the names of their files.

    Args:
        groups: Groups of runs; may be empty.
        results: Their scores, and those of files.
        score: As in `report`, as are the others.
        middle: Middle of curves.
        bounds: By environment.
        left_out: What is not on the page, in sentences.
    """
    labels = list(dict.fromkeys(result.group for result in results))
    figures, best = _Figures(labels), best_groups(results)
    found, sentences = panels(results, bounds)
    context = {
        "version": version("lrl"),
        "counts": {"runs": len(results) - len(lone(results)), "groups": len(labels)},
        "score": score,
        "middle": {"iqm": "interquartile mean"}.get(middle, middle),
        "remarks": _remarks(groups),
        "unsupported": [*left_out, *sentences, *unsupported(results)],
        "panels": [
            _panel(panel, f"_{number}" if len(found) > 1 else "", figures)
            for number, panel in enumerate(found, start=1)
        ],
        "tasks": task_table(results),
        "curves": _curves([group for group in groups if group.label in best], middle, figures),
        "speeds": speeds(groups),
        "shares": _shares([group for group in groups if group.label in best], figures),
        "configuration": configuration(groups),
        "protocols": protocols(groups, results),
        "images": figures.inline,
    }
    return _rendered(context), figures.files


def _unscored(folders: Sequence[Path]) -> list[str]:
    """Return a sentence on the versions that have no score, if there are any."""
    names = ", ".join(map(named, folders))
    return [f"Left out, since never evaluated: {names}."] if folders else []


def _failures(failed: Mapping[str, int]) -> list[str]:
    """Return how many runs are left out, in a sentence for each file that has such runs."""
    return [
        f"Of {file} {count} failed run{'s are' if count > 1 else ' is'} left out: scores are "
        "those of the runs that did not fail."
        for file, count in failed.items()
        if count
    ]


class _Figures:
    """The figures of a page, drawn one by one.

    Attributes:
        files: PNG by the name of its file.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.files: dict[str, bytes] = {}
        self._styles = styles(labels)

    def styles_for(self, groups: Sequence[str]) -> Mapping[str, Style]:
        """Return how groups are drawn: as in all figures, if colours suffice for that."""
        return self._styles if len(self._styles) <= MOST_COLOURS else styles(groups)

    def add(self, name: str, figure: Any) -> str:
        """Keep a figure, and return the name of its file."""
        self.files[f"{name}.png"] = png(figure)
        return f"{name}.png"

    @property
    def inline(self) -> dict[str, str]:
        """The figures as text."""
        return {name: base64.b64encode(data).decode() for name, data in self.files.items()}


def _remarks(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Return what to look at: sentences by the name of their run."""
    found = [
        (run.name, [*run.remarks(), *_missing_curves(run, group)])
        for group in groups
        for run in group.runs
    ]
    return [(name, sentences) for name, sentences in found if sentences]


def _missing_curves(run: Run, group: Group) -> list[str]:
    """Return a sentence for each curve that a group lacks for want of this run's."""
    others = [other for other in group.runs if other.task == run.task]
    return [
        f"It has no returns in {said} against {title}, so that its group has no such curve."
        for metric, said in _CURVES.items()
        for axis, title in AXES.items()
        if run.curve(metric, axis) is None and any(other.curve(metric, axis) for other in others)
    ]


def _panel(panel: Panel, suffix: str, figures: _Figures) -> dict[str, Any]:
    """Draw a panel, and return what the page shows of it."""
    aggregates, best = panel.aggregates(), panel.groups[:MOST_GROUPS]
    looks, profile = figures.styles_for(panel.groups), None
    drawn = draw_intervals({group: aggregates[group] for group in best}, panel.unit, looks)
    scores = figures.add(f"scores{suffix}", drawn)
    if panel.varied:
        drawn = draw_profiles(panel.profiles(), panel.unit, looks)
        profile = figures.add(f"profile{suffix}", drawn)
    return {**panel_table(panel, aggregates), "figure": scores, "profile": profile}


def _curves(groups: Sequence[Group], middle: Middle, figures: _Figures) -> list[dict[str, str]]:
    """Draw learning curves, and return their files and captions."""
    tasks = list(dict.fromkeys(run.task for group in groups for run in group.runs))
    looks, captions = figures.styles_for([group.label for group in groups]), []
    one_task = len(tasks) <= _MOST_TASKS
    for metric, said in _CURVES.items():
        if not one_task:
            found = {task: curves(groups, task, metric, "frames", middle) for task in tasks}
            parts = {"all environments, against frames": found}
        else:
            parts = {task: curves_by_axis(groups, task, metric, middle) for task in tasks}
        for number, (title, of) in enumerate(parts.items(), start=1):
            shown = {name: curve for name, curve in of.items() if curve}
            if shown:
                drawn = draw_curves(shown, f"return in {said}", looks, one_task)
                name = figures.add(f"{said}_{number}" if len(parts) > 1 else said, drawn)
                captions.append({"figure": name, "caption": f"{title}: returns in {said}"})
    return captions


def _shares(groups: Sequence[Group], figures: _Figures) -> str | None:
    """Draw where time went, if a run says so, and return the file."""
    shares = shares_of(groups)
    return figures.add("time", draw_shares(shares)) if shares else None


def _rendered(context: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # labels come from files of others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(context)


def _write(output: Path, page: str, figures: Mapping[str, bytes]) -> Path:
    path = output / "index.html"
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, data in {**figures, path.name: page.encode()}.items():
            replace_file(output / name, lambda file, data=data: file.write(data))
    except OSError as error:
        raise ConfigError(f"output {str(output)!r} cannot be written: {error}") from error
    print(f"written: {path} ({len(page) / 1024:,.0f} KiB) and {len(figures)} figures beside it")
    return path
