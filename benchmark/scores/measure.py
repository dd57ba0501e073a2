"""Scores of tasks: train and test each with several seeds, one row of a CSV per finished run.

`python -m benchmark.scores.measure [TASK ...]`, from the root of the repository, runs the tasks of
`benchmark/scores/tasks.py`. Runs that the file already holds are left out, so that hours of runs
can be done in pieces; a recipe that was changed since is run again. `--table` prints what it holds,
and `--runs` keeps the runs for `benchmark.scores.curves`. A run's score is the mean return of its
best checkpoint over the episodes of `lrl test`, whose seeds neither training nor its evaluations
use.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmark.scores.records import append_row, read_rows
from benchmark.scores.runs import FIELDS, run
from benchmark.scores.tasks import TASKS


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK", help="Tasks to run; all if none.")
    add("--csv", type=Path, default=Path("docs/scores.csv"), help="File of rows.")
    add("--runs", type=Path, help="Folder to keep the runs in; without it they are deleted.")
    add("--table", action="store_true", help="Print the table and run nothing.")
    arguments = parser.parse_args()
    known = [task.name for task in TASKS]
    if unknown := sorted(set(arguments.tasks) - set(known)):
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {', '.join(known)}")
    if arguments.table and (arguments.tasks or arguments.runs):
        parser.error("--table prints all that the file holds and runs nothing: give it alone")
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
