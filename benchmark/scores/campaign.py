"""Scores of tasks: train and test each with several seeds, one row of a CSV per finished run.

Run `python -m benchmark.scores.campaign` from the root of the repository. Runs that the file
already holds are left out, so that hours of runs can be done in pieces; `--table` prints what it
holds. A recipe that was changed since is run again. `--runs` keeps the runs for
`benchmark.scores.curves`. A run's score is the mean return of its best checkpoint over
the episodes of `lrl test`, whose seeds neither training nor its evaluations use.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmark.scores.tasks import TASKS, Task
from lrl.checkpoints.runs import versions

FIELDS: tuple[str, ...] = (
    "task", "seed", "score", "deviation", "seconds", "env_steps", "learner_steps",
    "validation", "cores", "torch", "digest", "environment", "protocol", "epsilon", "max_frames",
    "episodes", "frames", "lrl", "ale_py", "processor",
)  # fmt: skip


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


def run(task: Task, seed: int, kept: Path | None = None) -> dict[str, object]:
    """Train and test a task in processes of their own; return its row.

    Args:
        task: What to train.
        seed: Seed of the training.
        kept: Folder in which the run stays as `TASK_SEED`; none to delete it.
    """
    folder = None if kept is None else str(kept / f"{task.name}_{seed}")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as runs:
        command = [sys.executable, "-m", "lrl"]
        settings = ["--config", f"configs/{task.recipe}.yaml", "--runs", runs]
        seeded = [*settings, "--seed_everything", str(seed), *task.settings]
        started = time.perf_counter()
        _call([*command, "fit", *seeded, "--trainer.enable_progress_bar", "false"])
        seconds = time.perf_counter() - started
        output = _call([*command, "test", *seeded, "--ckpt_path", "best"])
        score = re.search(r"return (-?[\d.]+) ± ([\d.]+) over (\d+) episodes", output)
        if score is None:
            raise RuntimeError(f"lrl test printed no score:\n{output}")
        summary = json.loads((newest_version(Path(runs)) / "summary.json").read_text())
    return {
        "task": task.name,
        "seed": seed,
        "score": score[1],
        "deviation": score[2],
        "seconds": round(seconds, 1),
        "env_steps": summary["env_steps"],
        "learner_steps": summary["learner_steps"],
        "validation": summary["best_return_mean"],
        "cores": os.cpu_count(),
        "torch": torch.__version__.partition("+")[0],
        "digest": task.digest,
        **_measured(summary["stamp"]),
        "episodes": score[3],
    }


def _measured(stamp: Mapping[str, Any]) -> dict[str, object]:
    """Return what of a protocol stamp belongs to a row."""
    evaluation, versions = stamp["evaluation"], stamp["versions"]
    return {
        "environment": stamp["environment"]["id"],
        "protocol": stamp["protocol"],
        "epsilon": evaluation["epsilon"],
        "max_frames": evaluation["max_frames_per_episode"],
        "frames": stamp["training"]["frames"],
        "lrl": versions["lrl"],
        "ale_py": versions["ale-py"],
        "processor": stamp["hardware"]["processor"],
    }


def newest_version(runs: Path) -> Path:
    """Return the folder of the newest run in `runs`; a kept one may lie beside interrupted ones."""
    (named,) = runs.iterdir()
    return versions(runs, named.name)[-1]


def _call(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return the scores as a Markdown table, one line per task in the order of `TASKS`."""
    lines = [
        "| task | scores by seed | median | bar | reached | seconds (median) | env steps |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        runs = [row for row in rows if (row["task"], row["digest"]) == (task.name, task.digest)]
        if not runs:
            continue
        runs.sort(key=lambda row: int(row["seed"]))
        scores = [float(row["score"]) for row in runs]
        seconds = [float(row["seconds"]) for row in runs]
        reached = sum(
            score >= task.bar and time <= task.seconds
            for score, time in zip(scores, seconds, strict=True)
        )
        env_steps = median(int(row["env_steps"]) for row in runs)
        lines.append(
            f"| `{task.name}` | {', '.join(f'{score:.1f}' for score in scores)} "
            f"| {median(scores):.1f} | {task.bar:g} in {task.seconds:g} s "
            f"| {reached} of {len(task.seeds)} | {median(seconds):.0f} | {env_steps:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [task.name for task in TASKS]
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="Tasks to run; all if none.")
    parser.add_argument("--csv", type=Path, default=Path("docs/scores.csv"), help="File of rows.")
    parser.add_argument("--runs", type=Path, help="Folder in which runs stay; deleted if none.")
    parser.add_argument("--table", action="store_true", help="Print the table and run nothing.")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.tasks) - set(names))
    if unknown:
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {', '.join(names)}")
    rows = read_rows(arguments.csv)
    done = {(row["task"], int(row["seed"]), row["digest"]) for row in rows}
    for task in TASKS if not arguments.table else ():
        if arguments.tasks and task.name not in arguments.tasks:
            continue
        for seed in task.seeds:
            if (task.name, seed, task.digest) not in done:
                found = run(task, seed, arguments.runs)
                row = {name: found[name] for name in FIELDS}
                append_row(arguments.csv, row)
                print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    print(table(read_rows(arguments.csv)))


if __name__ == "__main__":
    main()
