"""Actors on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from typing_extensions import override

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.fleet import Fleet
from lrl.cluster.remote_actor import Answer, RemotePlan
from lrl.envs import EnvConfig
from lrl.inference.config import InferenceConfig
from lrl.networks import NetworkRecipe, QNetwork
from lrl.networks.q_network import weights_of
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts, gap_of
from lrl.types import EnvSpec, Rows


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
