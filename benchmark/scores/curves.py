"""Learning curves of runs that `python -m benchmark.scores.measure --runs FOLDER` kept.

Run `python -m benchmark.scores.curves FOLDER TASK` from the root of the repository: the evaluations
of all seeds go to `docs/curves_TASK.csv`, and a picture of them to `docs/images/TASK.png` (needs
matplotlib, which the extra `minatar` brings).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmark.scores.runs import newest_version
from benchmark.scores.tasks import TASKS

FIELDS: tuple[str, ...] = (
    "seed",
    "learner_steps",
    "env_steps",
    "seconds",
    "return_mean",
    "return_std",
)


def read_curve(version: Path, seed: int) -> list[dict[str, Any]]:
    """Return a run's evaluations, oldest first.

    Args:
        version: Folder of the run.
        seed: Its training seed, which is put into the rows.

    Returns:
        Per evaluation: learner steps, environment steps (those logged before and after it, and at
        the run's end, say how many), seconds since the run's first record, and the returns' mean
        and standard deviation. None if the run has not been evaluated, or logged nothing else.
    """
    events = EventAccumulator(str(version), size_guidance={"scalars": 0})
    events.Reload()
    if not {"count/env_steps", "eval/return_mean"} <= set(events.Tags()["scalars"]):
        return []
    began: Any = events.FirstEventTimestamp()
    counted = {count.step: count.value for count in events.Scalars("count/env_steps")}
    if (version / "summary.json").exists():
        summary = json.loads((version / "summary.json").read_text())
        counted[summary["learner_steps"]] = summary["env_steps"]
    steps = sorted(counted)
    deviations = {event.step: event.value for event in events.Scalars("eval/return_std")}
    return [
        {
            "seed": seed,
            "learner_steps": event.step,
            "env_steps": round(float(np.interp(event.step, steps, [counted[s] for s in steps]))),
            "seconds": round(event.wall_time - began),
            "return_mean": round(event.value, 2),
            "return_std": round(deviations[event.step], 2),
        }
        for event in events.Scalars("eval/return_mean")
    ]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the evaluations of all seeds."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(path: Path, rows: Sequence[dict[str, Any]], title: str, bar: float) -> None:
    """Draw mean returns over minutes, a line per seed, and the bar."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for seed in sorted({row["seed"] for row in rows}):
        curve = [row for row in rows if row["seed"] == seed]
        minutes = [row["seconds"] / 60 for row in curve]
        axes.plot(minutes, [r["return_mean"] for r in curve], marker=".", label=f"seed {seed}")
    axes.axhline(bar, color="grey", linestyle="--", linewidth=1, label=f"bar {bar:g}")
    axes.set(xlabel="minutes of training, evaluations included", ylabel="mean return", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Write the CSV and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="Folder of the kept runs.")
    parser.add_argument("task", choices=[task.name for task in TASKS], metavar="TASK")
    arguments = parser.parse_args()
    (task,) = (task for task in TASKS if task.name == arguments.task)
    rows = []
    for seed in task.seeds:
        if (folder := arguments.runs / f"{task.name}_{seed}").is_dir():
            rows += read_curve(newest_version(folder), seed)
    if not rows:
        parser.error(f"{arguments.runs} has no runs of {task.name}")
    write_rows(Path(f"docs/curves_{task.name}.csv"), rows)
    draw(Path(f"docs/images/{task.name}.png"), rows, task.name, task.bar)


if __name__ == "__main__":
    main()
