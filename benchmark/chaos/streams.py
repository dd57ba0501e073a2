"""The attacks on signals and streams that come from outside: lines of the table."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmark.chaos.figures import Figure, Sizes, counted
from benchmark.chaos.outputs import lose_outputs
from benchmark.chaos.signals import end_runs
from benchmark.chaos.startup import SECONDS, Started, end_starts, save_checkpoint


def hangups(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Close the terminal of `lrl fit` in all of its phases."""
    ended = end_runs(signal.SIGHUP, "group", sizes.count)
    _show(ended.left + ended.wrong)
    yield Figure(
        f"SIGHUP to the group, as of a terminal that is closed, at {ended.runs} random moments of "
        "start, warm-up, training, evaluation and saving",
        "all gone within 5 s; exit code 129; what was saved can be read",
        f"gone within {ended.seconds:.2f} s, {counted(ended.left, 'thing')} left; "
        f"{counted(ended.wrong, 'wrong end')}; {ended.checkpoints} checkpoints read",
        ended.seconds <= 5.0 and not ended.left and not ended.wrong,
    )


def starts(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """End commands while they start."""
    save_checkpoint(folder)
    fit, few = ("fit", "--config", "config.yaml"), max(1, sizes.count // 5)
    for command, arguments, number, moments in (
        ("fit", fit, signal.SIGINT, sizes.count),
        ("fit", fit, signal.SIGTERM, few),
        ("fit", fit, signal.SIGHUP, few),
        ("evaluate", ("evaluate", "--ckpt_path", "last"), signal.SIGINT, few),
        ("play", ("play", "--ckpt_path", "last"), signal.SIGHUP, few),
    ):
        ended = end_starts(folder, arguments, number, moments)
        yield _start_figure(command, number, ended)


def _start_figure(command: str, number: signal.Signals, ended: Started) -> Figure:
    _show(ended.wrong)
    last = (
        ", or an end by the signal itself in Python's own last moments" if command != "fit" else ""
    )
    return Figure(
        f"{number.name} to `lrl {command}` at {ended.runs} even intervals of its first "
        f"{SECONDS:g} s, from its first instruction on",
        f"all gone within 5 s; exit code {128 + number} and one line, or the command's own "
        f"end{last}; no traceback, no process and no folder of a run without a checkpoint left",
        f"gone within {ended.seconds:.2f} s, {counted(ended.wrong, 'wrong end')}",
        ended.seconds <= 5.0 and not ended.wrong,
    )


def outputs(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Take standard output and error away from runs whose actors print."""
    runs, wrong = 0, []
    for _ in range(sizes.count):
        told = lose_outputs(folder)
        runs, wrong = runs + told.runs, wrong + told.wrong
    _show(wrong)
    yield Figure(
        f"{runs} runs whose standard output and error are a closed pipe or terminal, a full disk, "
        "/dev/full or nothing; both actors print",
        "training comes to its end and saves: exit code 0, after Ctrl-C 130; no actor fails, no "
        "traceback",
        f"{runs - len(wrong)} of {runs}",
        not wrong,
    )


def _show(problems: list[str]) -> None:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
