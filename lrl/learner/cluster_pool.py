"""Actors on a Ray cluster as a pool, alone or beside processes of this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.fleet import Fleet
from lrl.cluster.remote_actor import Answer, RemotePlan
from lrl.envs import EnvConfig
from lrl.inference.config import InferenceConfig
from lrl.learner.actor_pools import ActorPool, Delivery, Episode, PoolCounts, gap_of
from lrl.networks import NetworkRecipe, QNetwork
from lrl.networks.q_network import weights_of
from lrl.types import EnvSpec, Rows

_TURN_SECONDS = 0.02


class ClusterPool(ActorPool):
    """Actors on the nodes of a Ray cluster, with their own networks or central inference there.

    Args:
        config: Which cluster, and how many actors.
        actors: Environments of each, rows of a chunk, and what to do when one fails.
        env: The environment that each builds for itself.
        spec: What it looks like.
        exploration: How actors explore.
        slot: The first one's place in the run.
        recipe: Builds the network.
        packages: Names of packages that must have the same versions on all nodes.
        inference: The servers that compute all action values, if there are any.
        version: Learner steps so far: the version of the first weights.
    """

    def __init__(
        self,
        config: ClusterConfig,
        actors: ActorConfig,
        env: EnvConfig,
        spec: EnvSpec,
        exploration: Exploration,
        slot: ActorSlot,
        recipe: NetworkRecipe,
        packages: Sequence[str],
        inference: InferenceConfig | None = None,
        version: int = 0,
    ) -> None:
        self.num_streams = config.num_actors * actors.envs_per_actor
        self.spec = spec
        self._actors = actors = replace(actors, num_actors=config.num_actors)
        self._inference = inference
        self._env = env
        self._exploration = exploration
        self._recipe = recipe
        self._version = version
        self._run_env_steps = 0
        self.fleet = Fleet(config, actors, inference, self._plan_of, slot, packages, recipe)

    @override
    def start(self, network: QNetwork, run_env_steps: int) -> None:
        self._run_env_steps = run_env_steps
        self.publish(network, self._version)
        self.fleet.start()

    @override
    def publish(self, network: QNetwork, version: int) -> None:
        self.fleet.publish(weights_of(network).numpy(), version)

    @override
    def check(self) -> None:
        self.fleet.check()

    @override
    def poll(self, timeout: float) -> Iterator[Delivery]:
        for answer, has_gap in self.fleet.answers(timeout):
            yield self._delivery(answer, has_gap)

    @override
    def close(self, take: Callable[[Delivery], object]) -> None:
        self.fleet.stop(lambda answer, has_gap: take(self._delivery(answer, has_gap)))

    @override
    def counts(self) -> PoolCounts:
        actors = self.fleet.actors
        return PoolCounts(actors.statistics(), actors.restarts, actors.rows_dropped)

    @override
    def metrics(self) -> dict[str, float]:
        servers = self.fleet.servers
        of_servers = servers.metrics() if servers else {}
        return {"count/calls_lost": float(self.fleet.actors.calls_lost), **of_servers}

    def _plan_of(self, run: int, slot: ActorSlot, env_steps: int) -> RemotePlan:
        return RemotePlan(
            run,
            slot,
            self._env,
            self.spec,
            self._exploration,
            None if self._inference else self._recipe,
            self._inference.groups_per_actor if self._inference else 1,
            self._actors.chunk_rows,
            self._run_env_steps + env_steps * slot.world_size,
        )

    def _delivery(self, answer: Answer, has_gap: bool) -> Delivery:
        rows = [Rows.of(answer.columns)] if answer.rows else []
        if has_gap:
            rows.insert(0, gap_of(self.spec, answer.actor, self._actors.envs_per_actor))
        return Delivery(rows, [Episode(*episode) for episode in answer.episodes])


class JoinedPools(ActorPool):
    """Several pools as one, such as actors on a cluster and others on this machine.

    Args:
        pools: Whose streams have numbers of their own.
    """

    def __init__(self, pools: Sequence[ActorPool]) -> None:
        self.pools = pools
        self._rows = [0] * len(pools)
        self.num_streams = sum(pool.num_streams for pool in pools)

    @override
    def start(self, network: QNetwork, run_env_steps: int) -> None:
        with contextlib.ExitStack() as undo:
            for pool in self.pools:
                pool.start(network, run_env_steps)
                undo.callback(pool.close, lambda delivery: None)
            undo.pop_all()

    @override
    def publish(self, network: QNetwork, version: int) -> None:
        for pool in self.pools:
            pool.publish(network, version)

    @override
    def check(self) -> None:
        for pool in self.pools:
            pool.check()

    @override
    def poll(self, timeout: float) -> Iterator[Delivery]:
        deadline, wait = time.monotonic() + timeout, 0.0
        while True:
            found = False
            for index in sorted(range(len(self.pools)), key=self._rows_of_a_stream):
                for delivery in self.pools[index].poll(wait):
                    found = True
                    self._rows[index] += sum(len(rows) for rows in delivery.rows)
                    yield delivery
            if found or time.monotonic() >= deadline:
                return
            wait = min(_TURN_SECONDS, timeout)

    @override
    def close(self, take: Callable[[Delivery], object]) -> None:
        for pool in self.pools:
            pool.close(take)

    @override
    def counts(self) -> PoolCounts:
        parts = [pool.counts() for pool in self.pools]
        return PoolCounts(
            [actor for part in parts for actor in part.actors],
            sum(part.restarts for part in parts),
            sum(part.rows_dropped for part in parts),
            max(part.queue_fill for part in parts),
        )

    @override
    def metrics(self) -> dict[str, float]:
        found: dict[str, Any] = {}
        for pool in self.pools:
            found |= pool.metrics()
        return found

    def _rows_of_a_stream(self, index: int) -> float:
        """Return what was taken of a pool: the least comes first, where not all is taken."""
        return self._rows[index] / self.pools[index].num_streams
