"""Scores of tasks: train and test each with several seeds, one row of a CSV per finished run.

Run it from the root of the repository, in one of two ways.

`python -m benchmark.scores.campaign [TASK ...]` runs the tasks of `benchmark/scores/tasks.py`. Runs
that the file already holds are left out, so that hours of runs can be done in pieces; `--table`
prints what it holds. A recipe that was changed since is run again. `--runs` keeps the runs for
`benchmark.scores.curves`. A run's score is the mean return of its best checkpoint over
the episodes of `lrl test`, whose seeds neither training nor its evaluations use.

`python -m benchmark.scores.campaign NAME ... --next` takes the next open run of the campaigns
`benchmark/scores/campaigns/NAME.yaml`, and again until none is open, `--hours` or `--until` is up
(the run under way is stopped, and goes on the next time) or there is a file `stop` in `--folder`
(it ends after the run under way). No two commands take the same run. SIGTERM and Ctrl-C stop the
run, too. With `--machine gpu` it takes the runs that have settings for a GPU, and trains with them;
`--train` leaves the tests to a later command, which may be on another machine. `--table` prints
what is done, `--gather` writes it to `docs/campaigns/`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from datetime import time as time_type
from pathlib import Path
from statistics import median
from typing import Any

from benchmark.scores import plan, records
from benchmark.scores.records import append_row, read_rows
from benchmark.scores.runs import FIELDS, Stopped, advance, run, scheduling
from benchmark.scores.tasks import TASKS, Task


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


def next_runs(
    campaigns: Sequence[plan.Campaign],
    kept: Path,
    until: float | None,
    machine: str | None = None,
    is_tested: bool = True,
) -> None:
    """Do what is open, one run after the other.

    Args:
        campaigns: The campaigns, the first of them first.
        kept: Folder of runs, in which a file `stop` ends it after the run under way.
        until: Time (`time.time()`) at which it ends; none for no limit.
        machine: Train with what tasks have for this machine, and leave out those that have
            nothing; none to train as the recipes say.
        is_tested: Whether to test what was trained.
    """
    asked: set[Path] = set()
    while run_folder := _open_run(campaigns, kept, asked, machine):
        campaign, task, seed, folder = run_folder
        if (kept / "stop").exists() or (until is not None and time.time() >= until):
            return
        asked.add(folder)
        said = " ".join(part for part in (campaign.name, task.name, task.algorithm) if part)
        try:
            more = task.machines[machine] if machine else ()
            row = advance(task, seed, folder, until, more, is_tested)
        except Stopped:
            print(f"{_clock()} {said} seed {seed}: open, or under way elsewhere", flush=True)
            continue
        found = f"score {row['score']}" if row["outcome"] == "done" else f"failed: {row['reason']}"
        print(f"{_clock()} {said} seed {seed}: {found}", flush=True)


def _open_run(
    campaigns: Sequence[plan.Campaign], kept: Path, asked: set[Path], machine: str | None
) -> tuple[plan.Campaign, Task, int, Path] | None:
    """Return the first run that has no row and has not been taken by this command."""
    for campaign in campaigns:
        recorded = {
            (r["task"], r["algorithm"], str(r["seed"])) for r in records.rows_of(campaign, kept)
        }
        for task, seed in campaign.runs():
            folder = records.folder_of(kept, campaign, task, seed)
            is_open = folder not in asked and (task.name, task.algorithm, str(seed)) not in recorded
            if is_open and (machine is None or machine in task.machines):
                return campaign, task, seed, folder
    return None


def _clock() -> str:
    return datetime.now().isoformat(" ", "seconds")


def _until(arguments: argparse.Namespace) -> float | None:
    """Return the time at which the command ends."""
    now = datetime.now()
    if arguments.hours is not None:
        return (now + timedelta(hours=arguments.hours)).timestamp()
    if arguments.until is None:
        return None
    then = datetime.combine(now.date(), arguments.until)
    return (then if then > now else then + timedelta(days=1)).timestamp()


def _terminate(number: int, frame: Any) -> None:
    sys.exit(128 + number)


def _work(arguments: argparse.Namespace, campaigns: Sequence[plan.Campaign]) -> None:
    """Do what is asked of campaigns."""
    if arguments.next:
        signal.signal(signal.SIGTERM, _terminate)
        print(f"{_clock()} {', '.join(arguments.tasks)}, {scheduling()} scheduling", flush=True)
        limit = _until(arguments)
        next_runs(campaigns, arguments.folder, limit, arguments.machine, not arguments.train)
    for campaign in campaigns:
        if arguments.gather:
            records.gather(campaign, arguments.folder)
        print(f"{campaign.name}: {campaign.budget}\n")
        print(records.table(campaign, records.rows_of(campaign, arguments.folder)) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK|NAME", help="Tasks to run, all if none; or campaigns.")
    add("--csv", type=Path, default=Path("docs/scores.csv"), help="File of rows of tasks.")
    add("--runs", type=Path, help="Folder in which runs of tasks stay; deleted if none.")
    add("--table", action="store_true", help="Print the table and run nothing.")
    add("--next", action="store_true", help="Do the open runs of the campaigns.")
    add("--gather", action="store_true", help="Write the CSV files of the campaigns.")
    add("--machine", metavar="NAME", help="Train what has settings for this machine, with them.")
    add("--train", action="store_true", help="With --next: leave the tests to another command.")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--hours", type=float, help="Hours after which --next ends.")
    end.add_argument("--until", type=time_of_day, metavar="HH:MM", help="Time at which it ends.")
    add("--folder", type=Path, default=Path("runs/campaigns"), help="Where campaigns' runs stay.")
    return parser


def time_of_day(text: str) -> time_type:
    """Return a time that is written HH:MM."""
    return datetime.strptime(text, "%H:%M").time()


def _arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments, of which none is without effect."""
    arguments = parser.parse_args()
    if (arguments.machine or arguments.train) and not arguments.next:
        parser.error("--machine and --train say how --next works: add it")
    if arguments.table and arguments.next:
        parser.error("--table runs nothing: leave it or --next out")
    return arguments


def main() -> None:
    """Run what is missing, then print the table."""
    parser = _parser()
    arguments = _arguments(parser)
    known = [task.name for task in TASKS]
    if arguments.tasks and set(arguments.tasks) <= set(plan.names()):
        campaigns = [plan.load(name) for name in arguments.tasks]
        machines = {machine for one in campaigns for task in one.tasks for machine in task.machines}
        if arguments.machine not in {None, *machines}:
            parser.error(
                f"--machine {arguments.machine}: none of them has settings for it; "
                f"choose from {', '.join(sorted(machines)) or 'none'}"
            )
        _work(arguments, campaigns)
        return
    if unknown := sorted(set(arguments.tasks) - set(known)):
        choices = ", ".join([*known, *plan.names()])
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {choices}")
    if arguments.next or arguments.gather:
        parser.error("--next and --gather want names of campaigns")
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
