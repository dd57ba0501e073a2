"""What rows of a process and of a Ray actor cost: `python -m benchmark.parts.cluster`.

One actor plays Pong with a Nature network; its rows are copied once and thrown away. Processor time
is that of the actor's process and of the learner's, without Ray's own daemons. Needs the extra ray,
and an idle machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmark.arguments import count, duration, output
from benchmark.turns import by_turns
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.bench.measure import Measurement, compared, table, write
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import packages_of
from lrl.envs import EnvConfig, make_spec
from lrl.networks import NatureEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.pools.cluster import ClusterPool
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool
from lrl.pools.processes import ProcessPool
from lrl.schedules import Constant

_ENV = EnvConfig("ALE/Pong-v5")
_SLOT = ActorSlot(0, envs_per_actor=8)
_EXPLORATION = EpsilonGreedy(Constant(0.1))
_WARM_UP_SECONDS = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def process_pool(recipe: NetworkRecipe) -> tuple[ActorPool, Callable[[], int]]:
    """Return a pool of one process, and what tells its process id."""
    pool = ProcessPool(_plan(1, recipe))
    return pool, lambda: pool.manager.processes[0].pid or 0


def ray_pool(recipe: NetworkRecipe) -> tuple[ActorPool, Callable[[], int]]:
    """Return a pool of one Ray actor, and what tells its process id."""
    pool = ClusterPool(ClusterConfig(num_actors=1), _plan(0, recipe), packages_of(_ENV))

    def pid() -> int:
        place = pool.fleet.actors.all[0].welcome
        return place.pid if place else 0

    return pool, pid


def _plan(processes: int, recipe: NetworkRecipe) -> ActingPlan:
    actors = ActorConfig(processes, 8)
    return ActingPlan(actors, _ENV, recipe.env_spec, _EXPLORATION, _SLOT, recipe)


SIDES = {"a process": process_pool, "a Ray actor": ray_pool}


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure_side(name: str, seconds: float) -> dict[str, float]:
    """Take rows for so long.

    Returns:
        Rows a second, rows for each second of the actor's processor time, and milliseconds of the
        learner's for each 64 rows.
    """
    recipe = NetworkRecipe(make_spec(_ENV), Recipe.of(NatureEncoder), Recipe.of(ScalarHead))
    network = recipe.build()
    pool, pid_of = SIDES[name](recipe)

    def take(seconds: float) -> int:
        taken, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            pool.check()
            for delivery in pool.poll(0.05):
                for part in delivery.rows:
                    part.frame.copy()
                    taken += len(part)
        return taken

    pool.start(network, 0)
    try:
        while not take(0.1):
            pass
        take(_WARM_UP_SECONDS)
        pid, began, own = pid_of(), time.monotonic(), time.process_time()
        acting = processor_seconds(pid)
        rows = take(seconds)
        lasted, own = time.monotonic() - began, time.process_time() - own
        acting = processor_seconds(pid) - acting
    finally:
        pool.close(lambda delivery: None)
    return {"rows/s": rows / lasted, "rows/CPU s": rows / acting, "ms/chunk": 64e3 * own / rows}


def measure(rounds: int, seconds: float) -> list[Measurement]:
    """Measure both by turns."""
    # The first of each does not count, as in `by_turns`.
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}

    def once(name: str) -> float:
        found[name].append(measure_side(name, seconds))
        return found[name][-1]["rows/s"]

    by_turns({name: functools.partial(once, name) for name in SIDES}, rounds)
    lines: list[Measurement] = []
    for unit, what in (
        ("rows/s", "Pong, 8 environments"),
        ("rows/CPU s", "the same, of the actor's processor time"),
        ("ms/chunk", "the learner's processor time, 64 rows"),
    ):
        values = {name: [each[unit] for each in runs[1:]] for name, runs in found.items()}
        lines += compared(what, unit, values, "a process")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.cluster", description=__doc__)
    parser.add_argument("--rounds", type=count, default=3, help="measurements of each side")
    parser.add_argument("--seconds", type=duration, default=10.0, help="of a measurement")
    parser.add_argument("--json", type=output, default=None, help="also write the figures here")
    options = parser.parse_args()
    found = measure(options.rounds, options.seconds)
    print(table(found))
    if options.json is not None:
        write(options.json, found, {"rounds": options.rounds, "seconds": options.seconds})


if __name__ == "__main__":
    main()
