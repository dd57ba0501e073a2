"""What a campaign has found: rows and curves from the folders of its runs, into CSV files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmark.scores.curves import read_curve
from benchmark.scores.plan import Campaign
from benchmark.scores.tasks import Task
from lrl.checkpoints.runs import versions

HOME = Path("docs/campaigns")
"""Where CSV files of campaigns lie: `NAME.csv` has a row for each run, `NAME_curves.csv` a row for
each of its evaluations."""
ROW_FIELDS: tuple[str, ...] = (
    "task", "algorithm", "seed", "outcome", "score", "deviation", "episodes", "checkpoint",
    "test_settings", "validation", "env_steps", "frames", "learner_steps", "cpu_seconds", "seconds",
    "scheduling", "sittings", "resumed", "digest", "environment", "protocol", "epsilon",
    "max_frames", "cores", "torch", "lrl", "commit", "ale_py", "processor", "gpu", "reason",
)  # fmt: skip
CURVE_FIELDS: tuple[str, ...] = (
    "task", "algorithm", "seed", "digest", "learner_steps", "env_steps", "frames", "return_mean",
    "return_std",
)  # fmt: skip
Row = Mapping[str, Any]


def folder_of(kept: Path, campaign: Campaign, task: Task, seed: int) -> Path:
    """Return the folder of a run; another one once its recipe has changed."""
    return _folder(kept / campaign.name, key_of(task, seed))


def _folder(kept: Path, key: tuple[str, ...]) -> Path:
    return kept / "-".join(part for part in key if part)


def key_of(task: Task, seed: int) -> tuple[str, ...]:
    """Return what names a run: task, algorithm, seed and digest."""
    return (task.name, task.algorithm, str(seed), task.digest)


def key(row: Row) -> tuple[str, ...]:
    """Return what names the run of a row."""
    return (row["task"], row["algorithm"], str(row["seed"]), row["digest"])


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file of scores; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: dict[str, object]) -> None:
    """Add one finished run to the file, which is complete after every row.

    Args:
        path: The file; made with the row's columns if there is none.
        row: Values by column, in the file's order.
    """
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def rows_of(campaign: Campaign, kept: Path | None = None, home: Path = HOME) -> list[Row]:
    """Return the rows of a campaign's ended runs, in its order, of its present recipes and tests.

    Args:
        campaign: The campaign.
        kept: Folder of runs; none for those of the CSV file alone.
        home: Folder of CSV files; what the folder of runs has comes before them, unless it failed.

    Raises:
        ValueError: The CSV file has two rows of one run.
    """
    recorded = _by_run(home / f"{campaign.name}.csv")
    rows: list[Row] = []
    for task, seed in campaign.runs():
        of_run = key_of(task, seed)
        path = kept and folder_of(kept, campaign, task, seed) / "row.json"
        found = [json.loads(path.read_text())] if path and path.exists() else []
        found += [recorded[of_run]] if of_run in recorded else []
        found = [row for row in found if task.has(row)]
        if found:
            done = (row for row in found if row["outcome"] == "done")
            rows.append(next(done, found[0]))
    return rows


def recorded_rows(campaign: Campaign, home: Path = HOME) -> tuple[list[Row], list[Row]]:
    """Return the rows and the evaluations of a campaign's CSV files.

    Raises:
        ValueError: Some are of other recipes or tests than the present ones.
    """
    rows = rows_of(campaign, None, home)
    keys = {key(row) for row in rows}
    scores, curves = (home / f"{campaign.name}{part}.csv" for part in ("", "_curves"))
    for path in (scores, curves):
        if stale := sorted({key(row) for row in read_rows(path)} - keys):
            raise ValueError(
                f"{path} has rows of other recipes or tests than the present ones, of "
                f"{len(stale)} runs, such as {stale[0]}: restore the recipe, or take them out"
            )
    return rows, [*read_rows(curves)]


def gather(campaign: Campaign, kept: Path, home: Path = HOME) -> None:
    """Bring the CSV files up to date with the folder of runs.

    Raises:
        ValueError: The files have rows of other recipes or tests, which would be lost.
    """
    recorded_rows(campaign, home)
    rows = rows_of(campaign, kept, home)
    recorded = read_rows(home / f"{campaign.name}_curves.csv")
    keys = {key(row) for row in rows}
    fresh = [
        {**_cells(row, ("task", "algorithm", "seed", "digest")), **point}
        for row in rows
        for point in _curve(kept / campaign.name, row)
    ]
    renewed = {key(row) for row in fresh}
    old = [row for row in recorded if key(row) in keys - renewed]
    order = {key(row): number for number, row in enumerate(rows)}
    curves = sorted([*old, *fresh], key=lambda row: order[key(row)])
    _write(home / f"{campaign.name}.csv", ROW_FIELDS, rows)
    _write(home / f"{campaign.name}_curves.csv", CURVE_FIELDS, curves)


def table(campaign: Campaign, rows: Sequence[Row]) -> str:
    """Return how far a campaign is, and its mean scores, as a Markdown table."""
    lines = [
        "| task | algorithm | runs | mean score (lowest to highest) | env steps | CPU minutes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task in campaign.tasks:
        of_task = [r for r in rows if (r["task"], r["algorithm"]) == (task.name, task.algorithm)]
        done = [row for row in of_task if row["outcome"] == "done"]
        failed = len(of_task) - len(done)
        runs = f"{len(done)} of {len(campaign.seeds)}" + (f", {failed} failed" if failed else "")
        cells = [f"`{task.name}`", task.algorithm, runs, "", "", ""]
        if done:
            scores = [float(row["score"]) for row in done]
            steps = mean(float(row["env_steps"]) for row in done)
            seconds = [float(row["cpu_seconds"]) for row in done if row["cpu_seconds"] != ""]
            cells[3] = f"{mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
            cells[4:] = [f"{steps:,.0f}", f"{mean(seconds) / 60:.1f}" if seconds else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _curve(folder: Path, row: Row) -> list[dict[str, Any]]:
    """Return the evaluations of a run that is done, whose sittings each have a version.

    Where several have evaluated the same step, the last one counts.
    """
    own = _folder(folder, key(row))
    if row["outcome"] != "done" or not (own / "row.json").exists():
        return []
    there = json.loads((own / "row.json").read_text())
    if there["outcome"] != "done" or str(there["score"]) != str(row["score"]):
        return []  # the row is another run's
    runs = own / "runs"
    frames = int(row["frames"]) / int(row["env_steps"])
    points: dict[int, dict[str, Any]] = {}
    for named in runs.glob("*"):
        for version in versions(runs, named.name):
            for point in read_curve(version, int(row["seed"])):
                point["frames"] = round(frames * point["env_steps"])
                points[point["learner_steps"]] = _cells(point, CURVE_FIELDS[4:])
    return [points[step] for step in sorted(points)]


def _by_run(path: Path) -> dict[tuple[str, ...], Row]:
    found: dict[tuple[str, ...], Row] = {}
    for row in read_rows(path):
        if found.setdefault(key(row), row) is not row:
            raise ValueError(f"{path} has two rows of {key(row)}: take one of them out")
    return found


def _cells(row: Row, fields: Iterable[str]) -> dict[str, Any]:
    return {field: row.get(field, "") for field in fields}


def _write(path: Path, fields: Sequence[str], rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")  # others read it meanwhile
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(row, fields) for row in rows)
    draft.replace(path)
