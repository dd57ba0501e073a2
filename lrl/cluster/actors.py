"""The actors on a cluster: asked for chunks, which are counted and checked as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from lrl.actors.config import ActorConfig
from lrl.actors.handle import ActorStatistics
from lrl.actors.slot import ActorSlot
from lrl.cluster.nodes import Nodes
from lrl.cluster.remote_actor import Answer, RemoteActor, RemotePlan
from lrl.cluster.remotes import Remote, Remotes
from lrl.cluster.servers import ClusterServers
from lrl.cluster.session import Session
from lrl.cluster.weights import SentWeights

PlanOf = Callable[[int, ActorSlot, int], RemotePlan]
"""From the run's number, an actor's slot and the environment steps of all actors so far."""


class ClusterActors(Remotes):
    """Actors that make as many chunks as were asked of them, and wait.

    Args:
        session: In the cluster.
        nodes: Where they are.
        limits: What happens when one fails.
        weights: What they act with.
        first: The slot of the first one.
        plan: What each is told.
        run: The run's number.
        servers: They compute the action values of all of them, if there are any.
    """

    kind = RemoteActor

    def __init__(
        self,
        session: Session,
        nodes: Nodes,
        limits: ActorConfig,
        weights: SentWeights,
        first: ActorSlot,
        plan: PlanOf,
        run: int,
        servers: ClusterServers | None = None,
    ) -> None:
        super().__init__(session, nodes, limits, weights, first, session.config.num_actors)
        self.calls_lost = 0
        self.rows_dropped = 0
        self.is_asked = True
        """Whether further chunks are wanted."""
        self._plan = plan
        self._run = run
        self._servers = servers

    def statistics(self) -> list[ActorStatistics]:
        """Return what each did over all incarnations."""
        found: list[ActorStatistics] = []
        for remote in self.all:
            total = remote.totals()
            counts = {name: int(total[name]) for name in ("env_steps", "frames", "episodes")}
            found.append(
                ActorStatistics(
                    actor=remote.slot.actor,
                    **counts,
                    seconds=total["seconds"],
                    wait_seconds=total["wait_seconds"],
                    restarts=remote.lives.restarts,
                    node=remote.place,
                )
            )
        return found

    @override
    def _name(self, index: int) -> str:
        return f"cluster actor {self._first.actor + index}"

    @override
    def _needs(self, index: int) -> dict[str, Any]:
        config = self._config
        return {
            "num_cpus": config.num_cpus,
            "resources": config.resources or None,
            "label_selector": self._nodes.selector(config.labels),
        }

    @override
    def _begin(self, remote: Remote) -> Any:
        made = sum(int(each.totals()["env_steps"]) for each in self.all)
        env_steps = remote.slot.steps_of_run(made, self._config.num_actors)
        plan = self._plan(self._run, remote.slot, env_steps)
        vector = None if self._servers else self._weights.newest()
        return remote.body.begin.remote(plan, vector, self._weights.version)

    @override
    def _ask(self, remote: Remote) -> None:
        if not self.is_asked:
            return
        weights, servers = self._weights, None
        if self._servers is not None:
            if not self._servers.can_serve(remote.index):
                return
            servers = self._servers.of_actor(remote.index)
            incarnations = tuple(incarnation for incarnation, _ in servers)
            servers = None if incarnations == remote.servers else servers
            remote.servers = incarnations
        asked = len(remote.calls) + (remote.call is not None)
        for _ in range(self._config.calls_per_actor - asked):
            newer = None if self._servers else weights.newer_than(remote.version)
            remote.version = weights.version
            remote.calls.append(remote.body.act.remote(newer, weights.version, servers))
        if remote.call is None:
            remote.call = remote.calls.popleft()

    @override
    def _take(self, remote: Remote, value: Answer) -> tuple[Answer, bool] | None:
        """Return an answer and whether one before it is missing; None for one that is damaged."""
        expected = (self._run, remote.slot.actor, remote.slot.incarnation)
        if value[:3] != expected or value.checksum != value.computed_checksum():
            self.rows_dropped += value.rows
            return None
        has_gap = value.number != remote.number
        remote.number = value.number + 1
        remote.counters = value.counters
        return value, has_gap

    @override
    def _after_death(self, remote: Remote) -> None:
        self.calls_lost += (remote.call is not None) + len(remote.calls)
