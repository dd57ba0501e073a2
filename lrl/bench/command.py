"""`lrl bench`: what this machine does with each part of lrl, in one table."""

from __future__ import annotations

import functools
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import torch

from lrl.bench import acting, learner, replay, training, transport
from lrl.bench.arguments import output
from lrl.bench.measure import Measurement, by_turns, compared, machine, table, write
from lrl.preflight.cores import MOST_THREADS
from lrl.types import ConfigError

Section = Literal["learner", "trainer", "replay", "growth", "transport", "acting", "training"]
_GROWING = (10_000, 100_000, 1_000_000)
_FRAME_SIDE = 42  # of growing replays: a million rows take 1.8 GB
_NEURAL = {
    "raw, as written": learner.LADDER["raw, as written"],
    "raw, as lrl sets it up": learner.Side(),
    "the same, compiled": learner.Side(compiled=True),
    "the same in bf16": learner.Side(bf16=True),
}
_TRAINED = ("synchronous 8", "actors 1 x 8", "actors 2 x 8")
_TRAINING_SECONDS = 15.0  # of which a third is the start


def bench(
    sections: Sequence[Section] = get_args(Section),
    rounds: int = 5,
    seconds: float = 1.0,
    threads: int = 1,
    json: Path | None = None,
) -> None:
    """Measure the parts of lrl on this machine, and training; run it on idle cores.

    Sides that are compared take turns. The last column is the median, over rounds, of a side's
    value over that of the first side of its kind.

    Args:
        sections: `learner`: an update of every head as a bare loop. `trainer`: the same through
            Lightning. `replay`: appending and sampling. `growth`: sampling from 10,000 to a
            million rows. `transport`: from an actor to the learner. `acting`: actors alone.
            `training`: whole runs of 15 seconds, where their time went and what held them back.
        rounds: Measurements of each side; those of replays are seven.
        seconds: Length of a measurement, roughly; not of `training`.
        threads: Of torch in the learner; not of `training`, which chooses its own.
        json: A file that also takes the figures.

    Raises:
        ConfigError: An argument measures nothing, or there is no folder for the file.
    """
    _check(sections, rounds, seconds, threads, json)
    remarks: list[str] = []
    parts: dict[str, Callable[[], list[Measurement]]] = {
        "learner": lambda: _updates(learner.WORKLOADS, _NEURAL, rounds, seconds, threads),
        "trainer": lambda: _updates(("mlp", "nature"), learner.TRAINER, rounds, seconds, threads),
        "replay": lambda: replay.measure(100_000, max(1, int(300 * seconds))),
        "growth": lambda: replay.measure_growth(
            _GROWING, max(1, int(300 * seconds)), spec=replay.with_frame_side(_FRAME_SIDE)
        ),
        "transport": lambda: _transport(rounds, seconds),
        "acting": lambda: _acting(rounds, seconds),
        "training": lambda: _training(rounds, remarks),
    }
    settings = {"rounds": rounds, "seconds": seconds}
    torch.set_num_threads(threads)
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **settings}.items()))
    found: list[Measurement] = []
    for section in sections:
        new = parts[section]()
        print(table(new), flush=True)
        found += new
        if json is not None:  # after each: half an hour is easily lost
            write(json, found, settings, remarks)
    if remarks:
        print("\n".join(remarks))


def _check(
    sections: Sequence[str], rounds: int, seconds: float, threads: int, json: Path | None
) -> None:
    if not sections:
        raise ConfigError(f"--sections is empty: name some of {', '.join(get_args(Section))}")
    for name, value in (("rounds", rounds), ("seconds", seconds), ("threads", threads)):
        if not 0 < value < math.inf:
            raise ConfigError(f"--{name} is {value}: it must be above 0")
    if threads > MOST_THREADS:
        raise ConfigError(f"--threads is {threads}: it must be at most {MOST_THREADS}")
    if json is not None:
        try:
            output(str(json))
        except ArgumentTypeError as error:
            raise ConfigError(f"--json {error}") from error


def _updates(
    names: Iterable[str],
    sides: dict[str, learner.Side],
    rounds: int,
    seconds: float,
    threads: int,
) -> list[Measurement]:
    found: list[Measurement] = []
    for name in names:
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


def _training(rounds: int, remarks: list[str]) -> list[Measurement]:
    found: list[Measurement] = []
    for workload in training.WORKLOADS:
        new, verdicts = training.measure(workload, _TRAINED, _TRAINING_SECONDS, rounds)
        found += new
        remarks += verdicts
    return found


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
