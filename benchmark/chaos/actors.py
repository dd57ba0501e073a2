"""Scenarios in which the actors of a run are attacked: for a minute, and for long."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark.chaos.figures import FAULTS, Figure, Sizes, faults
from benchmark.chaos.run import CHUNK_ROWS, COMMAND
from benchmark.chaos.soak import soak

_LEDGER_DEMAND = (
    "training finishes; every row that was sent is stored once and right; an attack loses at most "
    f"one chunk of {CHUNK_ROWS} rows, which is counted"
)


def kills(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Kill random actors, with both ways to start their successors."""
    for method, limit in (("forkserver", 0.5), ("spawn", 3.0)):
        counts = _attacked(sizes, folder, "SIGKILL", method, 60.0)
        yield _of_actors(f"SIGKILL {_to_actors(sizes)} ({method})", counts, limit)


def stops(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Stop random actors, which then hang until they are found out."""
    counts = _attacked(sizes, folder, "SIGSTOP", "auto", sizes.timeout)
    attack = f"SIGSTOP {_to_actors(sizes)}, time-out {sizes.timeout:g} s"
    # Found after at most the time-out and one look; its stacks are then waited for.
    yield _of_actors(attack, counts, sizes.timeout + 2.0)


def long_soak(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Train for long under attack."""
    result = soak(folder, sizes.seconds, sizes.every, sizes.actors, sizes.timeout)
    attack = f"{sizes.seconds / 60:g} minutes, SIGKILL and SIGSTOP in turn every {sizes.every:g} s"
    yield Figure(attack, _LEDGER_DEMAND, *_ledger(result))
    slopes = result["learner_slope"], result["actors_slope"]
    yield Figure(
        attack, "memory grows by less than 1 MiB a minute after the warm-up",
        f"learner {slopes[0]:+.3f}, all actors {slopes[1]:+.3f} MiB a minute",
        max(slopes) < 1.0,
    )  # fmt: skip
    descriptors, threads = result["descriptors"], result["threads"]
    yield Figure(
        attack, "descriptors and threads of the learner stay",
        f"{descriptors[0]:g} and {threads[0]:g} at first, {descriptors[1]:g} and {threads[1]:g} "
        "in the end",
        descriptors[0] == descriptors[1] and threads[0] == threads[1],
    )  # fmt: skip
    yield Figure(
        attack, "throughput of the last 5 minutes is at least 95 % of the first",
        f"{result['calibrated']:.1%} of calibrated, {result['throughput']:.1%} of plain "
        f"throughput ({result['env_steps_per_second']:,.0f} env steps a second)",
        result["calibrated"] >= 0.95,
    )  # fmt: skip


def _attacked(
    sizes: Sizes, folder: Path, number: str, start_method: str, timeout_seconds: float
) -> dict[str, Any]:
    """Train under attack in a process of its own."""
    own = folder / start_method
    own.mkdir()
    settings = {
        "folder": str(own), "seconds": sizes.seconds, "every": sizes.every,
        "signals": [number], "actors": sizes.actors, "start_method": start_method,
        "timeout_seconds": timeout_seconds,
    }  # fmt: skip
    output = subprocess.check_output(
        [*COMMAND, json.dumps(settings)], text=True, timeout=2 * sizes.seconds + 600
    )
    return json.loads(output.splitlines()[-1])


def _to_actors(sizes: Sizes) -> str:
    return f"to a random actor every {sizes.every:g} s for {sizes.seconds:g} s"


def _of_actors(attack: str, counts: dict[str, Any], limit: float) -> Figure:
    ledger, sound = _ledger(counts)
    back = f"{counts['back_seconds_median']:.2f} s (median), {counts['back_seconds_max']:.2f} s"
    return Figure(
        attack, f"{_LEDGER_DEMAND}; actors act again within {limit:g} s",
        f"{ledger}; back after {back} (worst)", sound and counts["back_seconds_max"] <= limit,
    )  # fmt: skip


def _ledger(counts: dict[str, Any]) -> tuple[str, bool]:
    """Say where all rows are, and whether that is as it has to be."""
    measured = (
        f"{counts['attacks']} of {counts['planned']} attacks, {counts['restarts']} restarts; "
        f"{counts['received']:,} rows received, {counts['stored']:,} stored, {faults(counts)}; "
        f"{counts['lost']} lost, at most {counts['lost_at_most']} by one attack"
    )
    exact = counts["produced"] == counts["received"] + counts["lost"]
    exact &= counts["rows"] == counts["stored"] == counts["received"]
    sound = not any(counts[name] for name in ("dropped_chunks", "overlooked", *FAULTS))
    sound &= 0 < counts["planned"] == counts["attacks"] <= counts["restarts"]
    return measured, exact and sound and counts["lost_at_most"] <= CHUNK_ROWS
