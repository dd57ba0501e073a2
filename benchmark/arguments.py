"""Types of the benchmarks' arguments: a number that measures nothing is refused before it does."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from lrl.preflight.cores import MOST_THREADS


def count(text: str) -> int:
    """Return a number of things, at least 1.

    Example:
        >>> count("3")
        3
    """
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{text} is too few: it must be at least 1")
    return number


def threads(text: str) -> int:
    """Return a number of torch's threads.

    Example:
        >>> threads("2")
        2
    """
    number = count(text)
    if number > MOST_THREADS:
        raise ArgumentTypeError(f"{text} is too many: it must be at most {MOST_THREADS}")
    return number


def duration(text: str) -> float:
    """Return a number of seconds, above 0.

    Example:
        >>> duration("0.5")
        0.5
    """
    seconds = float(text)
    if not 0.0 < seconds < float("inf"):
        raise ArgumentTypeError(f"{text} is no length of time: it must be above 0")
    return seconds


def output(text: str) -> Path:
    """Return the path of a file whose folder exists.

    Example:
        >>> output("figures.json").name
        'figures.json'
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.is_dir():
        raise ArgumentTypeError(f"{text!r} is a folder: name a file in it")
    return path
