"""What two ways to calculate cost: `python -m benchmark.parts.arithmetic`, on one idle core.

A noisy layer, forward and backward: two products, or one with a noisy weight. And a learner step
of data-efficient Rainbow's network long after half of its hidden units died, when the momentum of
their weights has shrunk below 1e-38: such numbers calculated with, or taken as 0.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch

from benchmark.arguments import count
from benchmark.turns import by_turns
from lrl import DQN
from lrl.bench.measure import Measurement, compared, table
from lrl.bench.workloads import WORKLOADS, make_batch
from lrl.networks import NoisyLinear, layers

_SHAPES = ((1024, 128), (576, 256), (3136, 512))
"""Noisy layers behind the convolutions of MinAtar, data-efficient Rainbow and Rainbow."""
_ROWS = (32, 64, 128, 512)
_ALIVE = 100
"""Learner steps before half of the hidden units die, so that there is a momentum to shrink."""


def _milliseconds(function: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - started) / times * 1e3


def noisy_layers(rounds: int, times: int) -> list[Measurement]:
    """Measure noisy layers with few rows of input to many."""
    found = []
    for inputs, outputs in _SHAPES:
        for rows in _ROWS:
            teach = functools.partial(_teach, NoisyLinear(inputs, outputs), rows, times)
            sides = {
                "two products": functools.partial(teach, many_rows=rows + 1),
                "a noisy weight": functools.partial(teach, many_rows=rows),
            }
            turns = by_turns(sides, rounds)
            found += compared(f"noisy {inputs}x{outputs}, {rows} rows", "ms", turns, "two products")
    return found


def _teach(layer: NoisyLinear, rows: int, times: int, many_rows: int) -> float:
    usual, layers._MANY_ROWS = layers._MANY_ROWS, many_rows
    try:
        given = torch.randn(rows, layer.in_features, requires_grad=True)
        return _milliseconds(lambda: layer(given).sum().backward(), times)
    finally:
        layers._MANY_ROWS = usual


def denormals(rounds: int, times: int, before: int) -> list[Measurement]:
    """Measure learner steps after so many before, each side with an agent of its own."""
    sides = {
        "denormals": _learner(before, flushes=False),
        "taken as 0": _learner(before, flushes=True),
    }
    turns = {name: functools.partial(side, times) for name, side in sides.items()}
    return compared("der, a learner step", "ms", by_turns(turns, rounds), "denormals")


def _learner(before: int, flushes: bool) -> Callable[[int], float]:
    """Return what makes so many learner steps and returns their mean duration."""
    workload = WORKLOADS["der"]
    torch.manual_seed(0)
    agent = DQN(workload.encoder, workload.head, env_spec=workload.spec)
    optimizer = torch.optim.Adam(agent.online.parameters(), lr=1e-4, eps=1.5e-4, fused=True)
    batch = make_batch(workload, 0)

    def step() -> None:
        optimizer.zero_grad()
        agent.updater.losses(batch).loss.backward()
        optimizer.step()

    def steps(times: int) -> float:
        torch.set_flush_denormal(flushes)
        try:
            return _milliseconds(step, times)
        finally:
            torch.set_flush_denormal(False)

    steps(_ALIVE)
    streams = [m for m in agent.online.head.modules() if isinstance(m, torch.nn.Sequential)]
    with torch.no_grad():
        for stream in streams:
            bias = stream[0].get_parameter("bias")
            bias[: len(bias) // 2] = -1e3
    steps(before)
    return steps


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.arithmetic", description=__doc__)
    parser.add_argument("--rounds", type=count, default=5, help="measurements of each side")
    parser.add_argument("--times", type=count, default=100, help="steps of a measurement")
    parser.add_argument("--before", type=count, default=1500, help="learner steps before")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(table(noisy_layers(options.rounds, options.times)), flush=True)
    print(table(denormals(options.rounds, options.times, options.before)))


if __name__ == "__main__":
    main()
