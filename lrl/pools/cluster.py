"""Actors on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from typing_extensions import override

from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.fleet import Fleet
from lrl.cluster.remote_actor import Answer, RemotePlan
from lrl.networks import QNetwork
from lrl.networks.q_network import weights_of
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts, gap_of
from lrl.types import Rows


class ClusterPool(ActorPool):
    """Actors on the nodes of a Ray cluster, with their own networks or central inference there.

    Args:
        config: Which cluster, and how many actors; this number counts, not that of the plan.
        plan: What the actors are told; servers are on the cluster, too.
        packages: Names of packages that must have the same versions on all nodes.
    """

    def __init__(self, config: ClusterConfig, plan: ActingPlan, packages: Sequence[str]) -> None:
        actors = replace(plan.actors, num_actors=config.num_actors)
        self.plan = plan
        self.num_streams = config.num_actors * actors.envs_per_actor
        self._run_env_steps = 0
        self.fleet = Fleet(
            config, actors, plan.inference, self._plan_of, plan.slot, packages, plan.recipe
        )

    @override
    def start(self, network: QNetwork, run_env_steps: int) -> None:
        self._run_env_steps = run_env_steps
        self.publish(network, self.plan.version)
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
        plan = self.plan
        return RemotePlan(
            run,
            slot,
            plan.env,
            plan.spec,
            plan.exploration,
            None if plan.inference else plan.recipe,
            plan.groups,
            plan.actors.chunk_rows,
            self._run_env_steps + env_steps,
        )

    def _delivery(self, answer: Answer, has_gap: bool) -> Delivery:
        rows = [Rows.of(answer.columns)] if answer.rows else []
        if has_gap:
            rows.insert(0, gap_of(self.plan.spec, answer.actor, self.plan.actors.envs_per_actor))
        return Delivery(rows, [Episode(*episode) for episode in answer.episodes])
