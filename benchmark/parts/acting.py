"""How fast actors act without a learner: `python -m benchmark.parts.acting`.

The first table compares local with central inference by turns: a ratio is one of neighbouring
measurements, in as many processes. The second is what a request to a server costs apart from the
forward, and how long a lone one waits for others. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from queue import Empty
from statistics import median

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmark.arguments import count, duration, output, threads
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory, NetworkPolicy, publish_weights
from lrl.actors.slot import ActorSlot
from lrl.bench.measure import machine
from lrl.envs import EnvConfig, make_spec
from lrl.inference.config import InferenceConfig
from lrl.inference.manager import InferenceManager
from lrl.inference.requests import Requester
from lrl.networks import Encoder, MLPEncoder, NatureEncoder, NetworkRecipe, ScalarHead
from lrl.networks.q_network import vector_size
from lrl.parts.recipe import Recipe
from lrl.schedules import Constant
from lrl.transport import ChunkQueue, WeightStore

ENVIRONMENTS = 32
BATCHES = ((1, 32), (8, 4))
"""Requests, and rows of each, that make the batches whose overhead is measured."""
_WARM_UP = 50

# A step of these 84x84 images takes 33 us, a tenth of the forward for it, and one of Pong 300 us.
_IMAGE = {"rows": 84, "columns": 84, "channel_axis": False}
WORKLOADS: dict[str, tuple[EnvConfig, Callable[..., Encoder]]] = {
    "mlp": (EnvConfig("CartPole-v1"), functools.partial(MLPEncoder, hidden_sizes=(64, 64))),
    "nature": (EnvConfig("lrl/Catch-v0", _IMAGE, frame_stack=4), NatureEncoder),
}
Line = dict[str, float | int | str]


class Glance(Encoder):
    """Looks at one number of each observation: a forward that costs next to nothing."""

    num_features = 1

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()

    def encode(self, observation: Tensor) -> Tensor:
        """Return the first number of each observation."""
        return observation.flatten(1)[:, :1].float()

    forward = encode


@dataclass(frozen=True)
class Side:
    """One way to act with about 32 environments; without servers, inference is local."""

    actors: int
    groups: int = 1
    servers: int = 0
    threads: int = 1

    @property
    def processes(self) -> int:
        """Actors and servers."""
        return self.actors + self.servers

    @property
    def config(self) -> ActorConfig:
        """The actors, with groups of equal size."""
        each = max(1, round(ENVIRONMENTS / self.actors / self.groups)) * self.groups
        return ActorConfig(self.actors, each, on_failure="fail")


def sides(*ways: Iterable[int]) -> list[Side]:
    """Return central inference in all these ways, each after local in as many processes.

    Local inference with as many actors is there too.

    Args:
        ways: Values of each field of `Side`.

    Example:
        >>> [(side.processes, side.servers) for side in sides([1, 2], [1], [1], [1])]
        [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    """
    central = {Side(*way) for way in itertools.product(*ways)}
    local = {Side(count) for side in central for count in (side.actors, side.processes)}
    return sorted(central | local, key=attrgetter("processes", "servers", "threads", "groups"))


def measure_side(
    workload: str, side: Side, seconds: float, device: str = "cpu"
) -> dict[str, float]:
    """Count environment steps once all actors have begun, while their rows are thrown away.

    Returns:
        Steps a second, with the servers' batch size and latency; NaN where there are none.
    """
    env, encoder = WORKLOADS[workload]
    recipe, store = _network(env, encoder)
    actors, exploration, chunks = side.config, EpsilonGreedy(Constant(0.1)), ChunkQueue()
    slot = ActorSlot(0, num_actors=side.actors, envs_per_actor=actors.envs_per_actor)
    local, inference = LocalPolicyFactory(recipe, store), None
    with contextlib.ExitStack() as stack:
        if side.servers:
            config = InferenceConfig(
                side.servers, side.groups, devices=(device,), num_threads=side.threads
            )
            inference = InferenceManager(config, actors, recipe, store, slot)
            stack.callback(inference.close)
            inference.start()
        policy_of = inference.policy_of if inference else lambda actor: local
        manager = ActorManager(
            actors, env, recipe.env_spec, exploration, policy_of, chunks, slot, groups=side.groups
        )
        stack.callback(chunks.close)
        stack.callback(manager.stop, drain=lambda: _discard(chunks))
        manager.start()

        def act(seconds: float) -> float:
            before, began = manager.statistics(), time.perf_counter()
            while time.perf_counter() < began + seconds:
                _discard(chunks, timeout=0.01)
                manager.check()
                if inference:
                    inference.check()
            pairs = zip(manager.statistics(), before, strict=True)
            steps = sum(new.env_steps - old.env_steps for new, old in pairs)
            return steps / (time.perf_counter() - began)

        while not all(actor.env_steps for actor in manager.statistics()):
            act(0.1)
        act(min(1.0, seconds))
        if inference:
            inference.metrics()  # they begin anew
        per_second = act(seconds)
        metrics = inference.metrics() if inference else {}
    return {
        "steps/s": per_second,
        "batch": metrics.get("inference/batch_size_mean", math.nan),
        "p50 ms": metrics.get("inference/latency_ms_p50", math.nan),
        "p99 ms": metrics.get("inference/latency_ms_p99", math.nan),
    }


def measure_acting(
    workload: str, compared: Sequence[Side], seconds: float, repeats: int, device: str = "cpu"
) -> list[Line]:
    """Measure all sides by turns; return a line of medians for each."""
    runs: dict[Side, list[dict[str, float]]] = {side: [] for side in compared}
    for _ in range(repeats):
        for side in compared:
            figures = measure_side(workload, side, seconds, device)
            runs[side].append(figures)
            local = runs[Side(side.processes)][-1]
            figures["times local"] = figures["steps/s"] / local["steps/s"]
    return [
        {
            "network": workload,
            "inference": "central" if side.servers else "local",
            "processes": side.processes,
            "actors": f"{side.actors} x {side.config.envs_per_actor}",
            "groups": side.groups,
            "servers": f"{side.servers} x {side.threads}" if side.servers else "",
            **{name: median(figures[name] for figures in run) for name in run[0]},
        }
        for side, run in runs.items()
    ]


def measure_requests(
    workload: str, requests: int, rows: int, count: int, device: str = "cpu"
) -> list[Line]:
    """Time requests to a server process whose network costs next to nothing.

    This process makes those of a batch one after the other, waits for all replies, and times the
    forward of the same batch by itself: what is above that is overhead.

    Args:
        workload: Whose observations are sent.
        requests: Requests that fill a batch.
        rows: Observations of each.
        count: Batches to time, and lone requests.
        device: The server's.

    Returns:
        A line for full batches and, where those are several requests, one for a lone request,
        whose overhead holds the delay.
    """
    recipe, store = _network(WORKLOADS[workload][0], Glance)
    config, actors = InferenceConfig(1, devices=(device,)), ActorConfig(requests, rows)
    manager = InferenceManager(config, actors, recipe, store, ActorSlot(0))
    requesters = [Requester(manager.policy_of(actor).ends[0], 0) for actor in range(requests)]
    spec = recipe.env_spec
    batch = np.zeros((requests * rows, *spec.observation_shape), spec.observation_dtype)
    policy = NetworkPolicy(recipe.build().to(device), device)

    def ask(asked: int) -> None:
        for requester in requesters[:asked]:
            requester.ask(batch[:rows])
        for requester in requesters[:asked]:
            while requester.wait(1.0) is None:
                manager.check()

    lines: list[Line] = []
    with contextlib.closing(manager):
        manager.start()
        for asked in sorted({requests, 1}, reverse=True):
            calls = functools.partial(ask, asked), functools.partial(policy, batch[: asked * rows])
            waits, forwards = _microseconds(count, *calls)
            p50, p99 = map(float, np.percentile(waits, (50, 99)))
            overhead = p50 - float(np.median(forwards))
            size = {"full batch": f"{requests} x {rows}", "requests": asked}
            figures = {"p50 us": p50, "p99 us": p99, "overhead us": overhead}
            lines.append({"network": workload, **size, **figures})
    return lines


def _network(env: EnvConfig, encoder: Callable[..., Encoder]) -> tuple[NetworkRecipe, WeightStore]:
    recipe = NetworkRecipe(make_spec(env), Recipe.of(encoder), Recipe.of(ScalarHead))
    network = recipe.build()
    store = WeightStore(vector_size(network))
    publish_weights(network, store, version=0)
    return recipe, store


def _discard(chunks: ChunkQueue, timeout: float = 0.0) -> None:
    with contextlib.suppress(Empty):
        chunks.get(timeout).release()


def _microseconds(count: int, *calls: Callable[[], object]) -> npt.NDArray[np.float64]:
    """Time calls by turns, `[calls, count]`."""
    times = np.empty((_WARM_UP + count, len(calls)))
    for turn in times:
        for index, call in enumerate(calls):
            began = time.perf_counter()
            call()
            turn[index] = 1e6 * (time.perf_counter() - began)
    return times[_WARM_UP:].T


def table(lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table; NaN is an empty cell."""

    def cell(value: float | str) -> str:
        if not isinstance(value, float):
            return str(value)
        return "" if math.isnan(value) else f"{value:,.{2 if value < 100 else 0}f}"

    cells = [[cell(value) for value in line.values()] for line in lines]
    rows = [list(lines[0]), ["---"] * len(lines[0]), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables and, where asked, write them as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.acting", description=__doc__)
    add = parser.add_argument
    add("--networks", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="what to run")
    add("--actors", nargs="+", type=count, default=[1, 2, 4], help="actors of central inference")
    add("--groups", nargs="+", type=count, default=[1, 2], help="groups of an actor's environments")
    add("--servers", nargs="+", type=count, default=[1], help="servers of central inference")
    add("--threads", nargs="+", type=threads, default=[1], help="threads of a server's torch")
    add("--seconds", type=duration, default=5.0, help="time of each measurement, after its warm-up")
    add("--repeats", type=count, default=5, help="measurements of each side")
    add("--requests", type=count, default=1000, help="batches, and lone requests, to time")
    add("--device", default="cpu", help="where the servers' networks run")
    add("--json", type=output, default=None, help="also write the figures here")
    options = parser.parse_args(arguments)
    compared = sides(options.actors, options.groups, options.servers, options.threads)
    acting: list[Line] = []
    requests: list[Line] = []
    for name in options.networks:
        acting += measure_acting(name, compared, options.seconds, options.repeats, options.device)
        for batch in BATCHES:
            requests += measure_requests(name, *batch, options.requests, options.device)
    print(table(acting), table(requests), sep="\n\n")
    if options.json is not None:
        asked = {"seconds": options.seconds, "repeats": options.repeats, "device": options.device}
        found = {"machine": machine(), **asked, "acting": acting, "requests": requests}
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
