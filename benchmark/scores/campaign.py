"""Campaigns: the next open run, trained and tested, and what all have found.

Run it from the root of the repository. `python -m benchmark.scores.campaign NAME ... --next` takes
the next open run of the campaigns `benchmark/scores/campaigns/NAME.yaml`, and again until none is
open, `--hours` or `--until` is up (the run under way is stopped, and goes on the next time) or
there is a file `stop` in `--folder` (it ends after the run under way). No two commands take the
same run. SIGTERM and Ctrl-C stop the run, too. With `--machine gpu` it takes the runs that have
settings for a GPU, and trains with them; `--train` leaves the tests to a later command, which may
be on another machine. `--gather` writes what is done to `docs/campaigns/`; a table of it is printed
in any case.
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
from typing import Any

from benchmark.scores import plan, records
from benchmark.scores.runs import Stopped, advance, scheduling
from benchmark.scores.tasks import Task


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
        except Stopped as reason:
            print(f"{_clock()} {said} seed {seed}: open: {reason}", flush=True)
            continue
        found = f"score {row['score']}" if row["outcome"] == "done" else f"failed: {row['reason']}"
        print(f"{_clock()} {said} seed {seed}: {found}", flush=True)


def _open_run(
    campaigns: Sequence[plan.Campaign], kept: Path, asked: set[Path], machine: str | None
) -> tuple[plan.Campaign, Task, int, Path] | None:
    """Return the first run that has no row and has not been taken by this command."""
    for campaign in campaigns:
        recorded = {records.key(row) for row in records.rows_of(campaign, kept)}
        for task, seed in campaign.runs():
            folder = records.folder_of(kept, campaign, task, seed)
            is_open = folder not in asked and records.key_of(task, seed) not in recorded
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="+", choices=plan.names(), metavar="NAME", help="Campaigns, in their order.")
    add("--folder", type=Path, default=Path("runs/campaigns"), help="Where their runs stay.")
    add("--next", action="store_true", help="Do their open runs.")
    add("--machine", metavar="NAME", help="Train what has settings for this machine, with them.")
    add("--train", action="store_true", help="Leave the tests to another command.")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--hours", type=float, help="Hours after which --next ends.")
    end.add_argument("--until", type=time_of_day, metavar="HH:MM", help="Time at which it ends.")
    add("--gather", action="store_true", help="Write their CSV files.")
    return parser


def time_of_day(text: str) -> time_type:
    """Return a time that is written HH:MM."""
    return datetime.strptime(text, "%H:%M").time()


def _arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments, of which none is without effect."""
    arguments = parser.parse_args()
    how = {name: getattr(arguments, name) for name in ("machine", "train", "hours", "until")}
    given = [f"--{name}" for name, value in how.items() if value is not None and value is not False]
    if given and not arguments.next:
        parser.error(f"{', '.join(given)} would do nothing without --next: add it")
    return arguments


def main() -> None:
    """Do open runs if asked to, then print the tables."""
    parser = _parser()
    arguments = _arguments(parser)
    campaigns = [plan.load(name) for name in arguments.names]
    machines = {machine for one in campaigns for task in one.tasks for machine in task.machines}
    if arguments.machine not in {None, *machines}:
        parser.error(
            f"--machine {arguments.machine}: none of them has settings for it; "
            f"choose from {', '.join(sorted(machines)) or 'none'}"
        )
    if arguments.next:
        signal.signal(signal.SIGTERM, _terminate)
        print(f"{_clock()} {', '.join(arguments.names)}, {scheduling()} scheduling", flush=True)
        limit = _until(arguments)
        next_runs(campaigns, arguments.folder, limit, arguments.machine, not arguments.train)
    for campaign in campaigns:
        if arguments.gather:
            records.gather(campaign, arguments.folder)
        print(f"{campaign.name}: {campaign.budget}\n")
        print(records.table(campaign, records.rows_of(campaign, arguments.folder)) + "\n")


if __name__ == "__main__":
    main()
