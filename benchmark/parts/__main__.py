"""What this machine does with each part of lrl, in one table: `python -m benchmark.parts`.

Sides that are compared take turns. The last column is the median, over rounds, of a side's value
over that of the first side of its kind. Run it on idle cores; `lrl bench` measures whole runs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Sequence

import torch

from benchmark.arguments import count, duration, output, threads
from benchmark.parts import acting, learner, replay, transport
from benchmark.turns import by_turns
from lrl.bench.measure import Measurement, compared, machine, table, write

_GROWING = (10_000, 100_000, 1_000_000)
_FRAME_SIDE = 42  # of growing replays: a million rows take 1.8 GB
_NEURAL = {
    "raw, as written": learner.LADDER["raw, as written"],
    "raw, as lrl sets it up": learner.Side(),
    "the same, compiled": learner.Side(compiled=True),
    "the same in bf16": learner.Side(bf16=True),
}
SECTIONS: dict[str, Callable[[int, float, int], list[Measurement]]] = {
    "learner": lambda *how: _updates(learner.WORKLOADS, _NEURAL, *how),
    "trainer": lambda *how: _updates(("mlp", "nature"), learner.TRAINER, *how),
    "replay": lambda rounds, seconds, threads: replay.measure(100_000, _calls(seconds)),
    "growth": lambda rounds, seconds, threads: replay.measure_growth(
        _GROWING, _calls(seconds), spec=replay.with_frame_side(_FRAME_SIDE)
    ),
    "transport": lambda rounds, seconds, threads: _transport(rounds, seconds),
    "acting": lambda rounds, seconds, threads: _acting(rounds, seconds),
}
"""Each takes rounds, seconds of a measurement and threads of torch in the learner."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables and, where asked, write them as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.parts", description=__doc__)
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="what to measure")
    add("--rounds", type=count, default=5, help="measurements of each side; replays have seven")
    add("--seconds", type=duration, default=1.0, help="length of a measurement, roughly")
    add("--threads", type=threads, default=1, help="threads of torch in the learner")
    add("--json", type=output, default=None, help="also write the figures here")
    options = parser.parse_args(arguments)
    settings = {"rounds": options.rounds, "seconds": options.seconds}
    torch.set_num_threads(options.threads)
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **settings}.items()))
    found: list[Measurement] = []
    for section in options.sections:
        new = SECTIONS[section](options.rounds, options.seconds, options.threads)
        print(table(new), flush=True)
        found += new
        if options.json is not None:  # after each: half an hour is easily lost
            write(options.json, found, settings)


def _calls(seconds: float) -> int:
    return max(1, int(300 * seconds))


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


if __name__ == "__main__":
    main()
