"""`lrl bench`: what this machine does with each part of lrl, in one table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from lrl.benchmark import acting, learner, replay, transport
from lrl.benchmark.measure import Measurement, by_turns, compared, machine, table, write
from lrl.types import ConfigError

Section = Literal["learner", "trainer", "replay", "growth", "transport", "acting"]
_GROWING = (10_000, 100_000, 1_000_000)
_FRAME_SIDE = 42  # of growing replays: a million rows take 1.8 GB
_NEURAL = ("raw, as written", "raw, and oneDNN's products", "raw, and compiled", "raw, bf16")


def bench(
    sections: Sequence[Section] = ("learner", "trainer", "replay", "growth", "transport", "acting"),
    rounds: int = 5,
    seconds: float = 1.0,
    threads: int = 1,
    json: Path | None = None,
) -> None:
    """Measure the parts of lrl on this machine; run it on idle cores.

    Sides that are compared take turns. The last column is the median, over rounds, of a side's
    value over that of the first side of its kind.

    Args:
        sections: `learner`: an update of every head as a bare loop. `trainer`: the same through
            Lightning. `replay`: appending and sampling. `growth`: sampling from 10,000 to a
            million rows. `transport`: from an actor to the learner. `acting`: actors alone.
        rounds: Measurements of each side; those of replays are seven.
        seconds: Length of a measurement, roughly.
        threads: Of torch in the learner.
        json: A file that also takes the figures.

    Raises:
        ConfigError: A number is too small, or there is no folder for the file.
    """
    for name, value in (("rounds", rounds), ("seconds", seconds), ("threads", threads)):
        if value <= 0:
            raise ConfigError(f"--{name} is {value}: it must be above 0")
    if json is not None and not json.parent.is_dir():
        raise ConfigError(f"--json {json}: there is no folder {json.parent}")
    parts: dict[str, Callable[[], list[Measurement]]] = {
        "learner": lambda: _updates(learner.WORKLOADS, _NEURAL, rounds, seconds, threads),
        "trainer": lambda: _updates(("mlp", "nature"), None, rounds, seconds, threads),
        "replay": lambda: replay.measure(100_000, max(1, int(300 * seconds))),
        "growth": lambda: replay.measure_growth(
            _GROWING, max(1, int(300 * seconds)), spec=replay.with_frame_side(_FRAME_SIDE)
        ),
        "transport": lambda: _transport(rounds, seconds),
        "acting": lambda: _acting(rounds, seconds),
    }
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    found: list[Measurement] = []
    for section in sections:
        new = parts[section]()
        print(table(new), flush=True)
        found += new
        if json is not None:  # after each: half an hour is easily lost
            write(json, found)


def _updates(
    names: Sequence[str] | dict[str, learner.Workload],
    rungs: Sequence[str] | None,
    rounds: int,
    seconds: float,
    threads: int,
) -> list[Measurement]:
    found: list[Measurement] = []
    for name in names:
        sides = {rung: learner.LADDER[rung] for rung in rungs} if rungs else learner.TRAINER
        found += learner.measure(name, sides, learner.updates_in(name, seconds), rounds, threads)
    return found


def _transport(rounds: int, seconds: float) -> list[Measurement]:
    runs = [transport.run(int(100_000 * seconds)) for _ in range(rounds)]
    return [
        Measurement(
            "transport", side[0].name, f"{side[0].unit}/s", tuple(r.per_second for r in side)
        )
        for side in zip(*runs, strict=True)
    ]


def _acting(rounds: int, seconds: float) -> list[Measurement]:
    sides = {
        "1 actor": acting.Side(1),
        "2 actors": acting.Side(2),
        "4 actors": acting.Side(4),
        "1 actor and an inference server": acting.Side(1, servers=1),
        "4 actors and an inference server": acting.Side(4, servers=1),
    }
    found: list[Measurement] = []
    for workload in acting.WORKLOADS:

        def rate(side: acting.Side, workload: str = workload) -> float:
            return acting.measure_side(workload, side, seconds)["steps/s"]

        calls = {name: functools.partial(rate, side) for name, side in sides.items()}
        what = f"acting, {workload}, {acting.ENVIRONMENTS} environments in all"
        found += compared(what, "env steps/s", by_turns(calls, rounds), "1 actor")
    return found
