"""Figures of the attacks: a file that keeps them, and the page that shows them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.pages import put_between

FAULTS = ("corrupt", "duplicated", "missing")
"""What a ledger counts that may not be."""
_BEGIN, _END = "<!-- figures: make chaos -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Sizes:
    """How much of a scenario is run; each looks at what concerns it.

    Attributes:
        count: Kills, files, messages, configurations, or runs ended by each signal.
        seconds: Length of a run whose actors are attacked.
        every: Seconds between two of these attacks.
        timeout: Seconds after which a stopped actor counts as hung.
        actors: Actors of such a run.
    """

    count: int = 0
    seconds: float = 60.0
    every: float = 2.0
    timeout: float = 2.0
    actors: int = 4


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        attack: What was done.
        demanded: What has to hold.
        measured: What came out.
        met: Whether it holds.
    """

    attack: str
    demanded: str
    measured: str
    met: bool


def table(figures: Sequence[Figure]) -> str:
    """Return figures as a Markdown table."""
    lines = ["| attack | demanded | measured | met |", "| --- | --- | --- | --- |"]
    for figure in figures:
        met = "yes" if figure.met else "**no**"
        lines.append(f"| {figure.attack} | {figure.demanded} | {figure.measured} | {met} |")
    return "\n".join(lines)


def faults(counts: Mapping[str, Any]) -> str:
    """Say what a ledger found wrong."""
    return ", ".join(f"{counts[name]} {name}" for name in FAULTS)


def counted(things: Sequence[object], noun: str) -> str:
    """Return how many there are, such as "1 thing"."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def block(content: dict[str, Any]) -> str:
    """Return what stands between the marks in the page: a table for each machine."""
    lines = content["figures"]
    if not lines:
        return "None yet: `make chaos` takes them."
    tables: dict[str, list[Figure]] = {}
    for line in lines:
        figure = Figure(**{k: v for k, v in line.items() if k not in ("scenario", "machine")})
        tables.setdefault(line["machine"], []).append(figure)
    return "\n\n".join(f"{machine}.\n\n{table(figures)}" for machine, figures in tables.items())


def read(path: Path) -> dict[str, Any]:
    """Read the file of figures; empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {"figures": []}


def keep(
    scenario: str,
    figures: Sequence[Figure],
    order: Sequence[str],
    path: Path,
    page: Path | None = None,
) -> None:
    """Put figures in place of those that their scenario had; others stay.

    Args:
        scenario: Its name.
        figures: The new ones.
        order: Names of all scenarios; figures of others are dropped.
        path: The file of figures.
        page: A page with the marks between which they stand; None writes none.
    """
    old = [line for line in read(path)["figures"] if line["scenario"] in {*order} - {scenario}]
    new = {"scenario": scenario, "machine": _machine()}
    lines = [*old, *({**new, **asdict(figure)} for figure in figures)]
    lines.sort(key=lambda line: order.index(line["scenario"]))
    content = {"figures": lines}
    path.write_text(json.dumps(content, indent=1) + "\n")
    if page is not None:
        page.write_text(put_between(page.read_text(), _BEGIN, _END, f"\n{block(content)}\n"))


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    )
