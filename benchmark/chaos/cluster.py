"""Attacks on actors of a Ray cluster, whose three nodes are all on this machine.

Needs the extra ray. Where something is measured, Ray's processes and the learner share the cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmark.chaos.figures import FAULTS, Figure, Sizes, faults
from benchmark.chaos.signals import listen
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.remotes import Remote
from lrl.envs import EnvConfig, make_spec
from lrl.inference.config import InferenceConfig
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.pools.cluster import ClusterPool
from lrl.pools.plan import ActingPlan
from lrl.testing import Ledger, LedgerEnv

SLOT = ActorSlot(7, num_actors=2, envs_per_actor=4)
_LEDGER = EnvConfig("lrl/Ledger-v0")
_START_SECONDS = 90.0
_SCORE = 475.0
_SLOW = (sys.executable, "-m", "benchmark.chaos.slow_path")


@contextlib.contextmanager
def three_nodes() -> Iterator[Any]:
    """Start a head without CPUs and two nodes with one each; yield Ray's `Cluster`."""
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Watched:
    """Two actors of a cluster, whose rows are all looked at.

    Args:
        address: Of the cluster.
        inference: Servers that compute their action values, if there are any.
        silence_seconds: See `ClusterConfig`.
        max_restarts: See `ActorConfig`.
    """

    def __init__(
        self,
        address: str,
        inference: InferenceConfig | None = None,
        silence_seconds: float = 15.0,
        max_restarts: int = 5,
    ) -> None:
        spec = make_spec(_LEDGER)
        recipe = NetworkRecipe(spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead))
        actors = ActorConfig(num_actors=0, envs_per_actor=4, max_restarts=max_restarts)
        plan = ActingPlan(actors, _LEDGER, spec, EpsilonGreedy(), SLOT, recipe, inference)
        cluster = ClusterConfig(address=address, silence_seconds=silence_seconds)
        self.pool = ClusterPool(cluster, plan, ["lrl", "torch"])
        self.ledger = Ledger(LedgerEnv(), slot=SLOT)
        self.pool.start(recipe.build(), 0)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close(self._take)

    @property
    def actors(self) -> list[Remote]:
        """What the learner knows of each."""
        return self.pool.fleet.actors.all

    @property
    def restarts(self) -> int:
        """Of actors so far."""
        return self.pool.counts().restarts

    def all_act(self) -> bool:
        """Return whether rows came of each since it was started."""
        acting = [remote for remote in self.actors if remote.acted_at is not None]
        return len(acting) == SLOT.num_actors

    def elsewhere(self) -> Any:
        """Return where an actor is on another node than this process, which needs its own."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        places = [remote.welcome for remote in self.actors]
        return next(place for place in places if place is not None and place.node != own)

    def until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Take rows until a condition holds; return the seconds that it took.

        Raises:
            TimeoutError: It took longer than it may.
        """
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"after {seconds:g} s actors are {self.actors}")
            self.pool.check()
            for delivery in self.pool.poll(0.1):
                self._take(delivery)
        return time.monotonic() - started

    def until_replaced(self, count: int, seconds: float) -> float:
        """Take rows until so many were replaced and all act; return the seconds that it took."""
        return self.until(lambda: self.restarts >= count and self.all_act(), seconds)

    def _take(self, delivery: Any) -> None:
        for rows in delivery.rows:
            self.ledger.take(rows)


def silence(nodes: Any, place: Any) -> list[int]:
    """Stop an actor's process, and those of Ray itself on its node; return them."""
    (node,) = (node for node in nodes.list_all_nodes() if node.node_id == place.node)
    of_ray = [info.process.pid for infos in node.all_processes.values() for info in infos]
    stopped = [place.pid, *of_ray]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


def wake(stopped: list[int]) -> None:
    """Let stopped processes go on, those that are still there."""
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cluster(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Kill actors, remove and silence nodes, train meanwhile, and delay what actors answer."""
    with three_nodes() as nodes:
        yield _kills(nodes, sizes)
        yield from _lost_nodes(nodes)
        yield _training(nodes, folder)
    yield _slow_path(sizes.count)


def head(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Stop the head node's server during runs."""
    listen()
    with three_nodes() as nodes:
        yield _silent_head(nodes, folder)


def _kills(nodes: Any, sizes: Sizes) -> Figure:
    rng, back, kills = random.Random(0), [], int(sizes.seconds / sizes.every)
    with Watched(nodes.address, max_restarts=10**6) as run:
        run.until(run.all_act, _START_SECONDS)
        for kill in range(kills):
            began, victim = time.monotonic(), rng.choice(run.actors).welcome
            assert victim is not None
            os.kill(victim.pid, signal.SIGKILL)
            back.append(run.until_replaced(kill + 1, 60.0))
            left = sizes.every - (time.monotonic() - began)
            end = time.monotonic() + left
            run.until(lambda end=end: time.monotonic() > end, sizes.every + 1.0)
    counts, lost = run.ledger.counts, int(run.pool.metrics()["count/calls_lost"])
    steps = sum(actor.env_steps for actor in run.pool.counts().actors)
    exact = counts["steps"] == steps and run.pool.counts().rows_dropped == 0
    exact &= not any(counts[name] for name in FAULTS)
    return Figure(
        f"SIGKILL to a random one of 2 actors on a Ray cluster every {sizes.every:g} s for "
        f"{sizes.seconds:g} s",
        "every row that arrives is right and there once; an attack loses at most the 2 chunks that "
        "were asked for; the actor acts again within 2 s",
        f"{kills} attacks, {run.restarts} restarts; {counts['steps']:,} of {steps:,} counted "
        f"environment steps, {faults(counts)}; {lost} chunks lost; back after "
        f"{statistics.median(back):.2f} s (median), {max(back):.2f} s (worst)",
        exact and lost <= 2 * kills and max(back) <= 2.0,
    )


def _lost_nodes(nodes: Any) -> Iterator[Figure]:
    with Watched(nodes.address) as run:
        run.until(run.all_act, _START_SECONDS)
        nodes.add_node(num_cpus=1)
        gone = run.elsewhere().node
        nodes.remove_node(next(node for node in nodes.list_all_nodes() if node.node_id == gone))
        removed = run.until_replaced(1, 60.0)
        nodes.add_node(num_cpus=1)
        place = run.elsewhere()
        asleep = next(node for node in nodes.list_all_nodes() if node.node_id == place.node)
        stopped = silence(nodes, place)
        try:
            silent = run.until_replaced(2, 90.0)
        finally:
            wake(stopped)
        nodes.remove_node(asleep)
    sound = not any(run.ledger.counts[name] for name in FAULTS)
    for attack, seconds, limit in (
        ("a node with an actor is removed from a Ray cluster", removed, 15.0),
        ("all processes of a node with an actor are stopped (SIGSTOP)", silent, 30.0),
    ):
        yield Figure(
            attack, f"its actor acts elsewhere within {limit:g} s; no row is wrong",
            f"after {seconds:.1f} s; {faults(run.ledger.counts)}", sound and seconds <= limit,
        )  # fmt: skip


def _training(nodes: Any, folder: Path) -> Figure:
    command = (
        "fit", "--config", "recipe:cartpole", "--config", "recipe:system/ray", "--runs", "runs",
        "--data.cluster.address", nodes.address, "--trainer.max_steps", "6000",
    )  # fmt: skip
    output = folder / "output.txt"
    with output.open("w") as file:
        run = subprocess.Popen(
            [sys.executable, "-m", "lrl", *command], cwd=folder, stdout=file, stderr=file
        )
    try:
        metrics = folder / "runs" / "cartpole" / "version_0" / "metrics.csv"
        _wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 5, run)
        worker = max(nodes.worker_nodes, key=lambda node: node.node_id)
        nodes.remove_node(worker)
        time.sleep(5.0)
        nodes.add_node(num_cpus=1)
        code = run.wait(600)
    finally:
        run.kill()
    if code:
        print(output.read_text()[-3000:], file=sys.stderr)
    summary = json.loads((metrics.parent / "summary.json").read_text())
    made = sum(actor["env_steps"] for actor in summary["actors"])
    restarts = sum(actor["restarts"] for actor in summary["actors"])
    score, learnt = summary["best_return_mean"], summary["env_steps"]
    return Figure(
        "`recipe:cartpole` on a Ray cluster, of which a node with an actor is removed and one is "
        "added; 6,000 learner steps",
        f"training finishes, with {_SCORE:g} at best; every environment step that was counted is "
        "in the replay once",
        f"exit code {code}, {score:.1f} at best, {restarts} actors replaced; {learnt:,} of "
        f"{made:,} environment steps",
        code == 0 and score >= _SCORE and restarts >= 1 and learnt == made,
    )


def _silent_head(nodes: Any, folder: Path) -> Figure:
    (head,) = nodes.head_node.all_processes["gcs_server"]
    codes, seconds = [], []
    for number in (None, signal.SIGINT, signal.SIGTERM):
        runs = folder / f"silent_{number}"
        command = (
            "fit", "--config", "recipe:cartpole", "--config", "recipe:system/ray", "--runs", runs,
            "--data.cluster.address", nodes.address, "--trainer.max_steps", "1000000",
        )  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, "-m", "lrl", *map(str, command)], cwd=folder, stderr=subprocess.DEVNULL
        )
        try:
            metrics = runs / "cartpole" / "version_0" / "metrics.csv"
            _wait_for(lambda m=metrics: m.exists() and m.read_text().count("\n") > 5, run)
            os.kill(head.process.pid, signal.SIGSTOP)
            began = time.monotonic()
            if number is not None:
                run.send_signal(number)
            codes.append(run.wait(_START_SECONDS))
            seconds.append(time.monotonic() - began)
        finally:
            run.kill()
            os.kill(head.process.pid, signal.SIGCONT)
    return Figure(
        "the head node's server is stopped (SIGSTOP) during a run, and the learner sent nothing, "
        "SIGINT or SIGTERM",
        "the run ends within 45 s, with exit codes 1, 130 and 143",
        f"exit codes {', '.join(map(str, codes))} after "
        f"{', '.join(f'{value:.1f}' for value in seconds)} s",
        codes == [1, 130, 143] and max(seconds) <= 45.0,
    )


def _wait_for(condition: Callable[[], bool], run: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not condition():
        if run.poll() is not None or time.monotonic() > end:
            raise TimeoutError("the run does not learn")
        time.sleep(0.1)


def _slow_path(rounds: int) -> Figure:
    """Train with and without delays by turns, each in a process of its own."""
    ratios: list[float] = []
    for _ in range(rounds):
        rates = [
            float(subprocess.check_output([*_SLOW, kind], text=True, timeout=600).split()[-1])
            for kind in ("plain", "slow")
        ]
        ratios.append(rates[1] / rates[0])
    ratio = statistics.median(ratios)
    return Figure(
        "each answer of an actor is late by 0.1 s, every twentieth by 1 s, as after a lost packet",
        "the learner keeps 80 % of its rate while rows suffice",
        f"{ratio:.0%} ({rounds} pairs, {min(ratios):.0%} to {max(ratios):.0%})",
        ratio >= 0.8,
    )
