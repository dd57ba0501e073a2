"""The inference servers on a cluster: kept alive, and given weights."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from typing_extensions import override

from lrl.actors.config import ActorConfig
from lrl.actors.slot import ActorSlot
from lrl.cluster.nodes import Nodes
from lrl.cluster.remote_server import RemoteServer, RemoteServerPlan
from lrl.cluster.remotes import Remote, Remotes
from lrl.cluster.session import Session
from lrl.cluster.weights import SentWeights
from lrl.inference.config import InferenceConfig
from lrl.inference.figures import figures_of
from lrl.inference.manager import InferenceError
from lrl.networks import NetworkRecipe

_HEARTBEAT_SECONDS = 1.0


class ClusterServers(Remotes):
    """Inference servers, called by the actors themselves; the learner gives them weights.

    Args:
        session: In the cluster.
        nodes: Where they are.
        inference: Servers and batches.
        actors: Whose requests are served, all of them on the cluster.
        weights: What they compute with.
        first: The slot of the first actor.
        recipe: Builds the network.
    """

    kind = RemoteServer
    error = InferenceError

    def __init__(
        self,
        session: Session,
        nodes: Nodes,
        inference: InferenceConfig,
        actors: ActorConfig,
        weights: SentWeights,
        first: ActorSlot,
        recipe: NetworkRecipe,
    ) -> None:
        super().__init__(session, nodes, inference, weights, first, inference.num_servers)
        self._inference = inference
        self._actors = actors
        self._recipe = recipe
        self._last: Counter[str] = Counter()
        self._updated = [0.0] * inference.num_servers
        self._asked = [0.0] * inference.num_servers

    def can_serve(self, actor: int) -> bool:
        """Return whether all servers of an actor act."""
        return all(self.all[server].state == "acting" for server in self._servers_of(actor))

    def of_actor(self, actor: int) -> list[tuple[int, Any]]:
        """Return the server that each of an actor's groups calls, after its incarnation."""
        servers = (self.all[server] for server in self._servers_of(actor))
        return [(server.slot.incarnation, server.body) for server in servers]

    def metrics(self) -> dict[str, float]:
        """Return what the servers did since the last call (docs/metrics.md)."""
        now: Counter[str] = Counter()
        for remote in self.all:
            now.update(remote.totals())
        grown = {name: value - self._last[name] for name, value in now.items()}
        self._last = now
        return {
            "count/inference_restarts": float(self.restarts),
            "count/inference_failures": float(now["failures"]),
            **figures_of(grown, self._inference.envs_per_group(self._actors)),
        }

    def _servers_of(self, actor: int) -> list[int]:
        groups, servers = self._inference.groups_per_actor, self._inference.num_servers
        return [group % servers for group in range(actor * groups, (actor + 1) * groups)]

    @override
    def _name(self, index: int) -> str:
        return f"cluster inference server {index}"

    @override
    def _needs(self, index: int) -> dict[str, Any]:
        on_gpu = self._inference.device_of(index) != "cpu"
        return {
            "num_cpus": 1 if on_gpu else self._inference.num_threads,
            "num_gpus": 1 if on_gpu else None,
            "label_selector": self._nodes.selector({}),
        }

    @override
    def _begin(self, remote: Remote) -> Any:
        inference = self._inference
        plan = RemoteServerPlan(
            self._recipe,
            inference.requests_per_batch(remote.index, self._actors),
            inference.max_batch_delay_seconds,
            inference.device_of(remote.index),
            inference.num_threads,
            remote.slot.policy_seed(),
        )
        return remote.body.begin.remote(plan, self._weights.newest(), self._weights.version)

    @override
    def _ask(self, remote: Remote) -> None:
        """Send newer weights, or nothing to hear whether it is there."""
        now, index, newer = time.monotonic(), remote.index, None
        if now >= self._updated[index] + self._inference.sync_period_seconds:
            newer = self._weights.newer_than(remote.version)
        if newer is not None:
            self._updated[index] = now
            remote.version = self._weights.version
        elif now < self._asked[index] + _HEARTBEAT_SECONDS:
            return
        self._asked[index] = now
        remote.call = remote.body.update.remote(newer, self._weights.version)

    @override
    def _take(self, remote: Remote, value: dict[str, Any]) -> None:
        remote.counters = value
