"""The inference manager: starts, watches, restarts and stops the inference servers."""

from __future__ import annotations

import logging
import multiprocessing
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrl.actors.config import ActorConfig
from lrl.actors.slot import ActorSlot
from lrl.inference.config import InferenceConfig
from lrl.inference.figures import figures_of
from lrl.inference.remote_policy import RemotePolicyFactory
from lrl.inference.requests import RequestLayout, RequestSlots
from lrl.inference.server import ServerPlan, run_server
from lrl.networks.q_network import NetworkRecipe
from lrl.processes.supervised_process import SupervisedProcess
from lrl.processes.supervisor import Supervisor
from lrl.transport import WeightStore

_log = logging.getLogger(__name__)
_QUIET_SECONDS = 10.0  # between two tracebacks of one server in the log


class InferenceError(RuntimeError):
    """An inference server failed and will not be restarted; the message holds its traceback."""


@dataclass(kw_only=True)
class ServerHandle(SupervisedProcess):
    """A server's process of the moment, and its slots."""

    slots: RequestSlots
    quiet_until: float = 0.0

    def has_started(self) -> bool:
        """Return whether the server ever looked for requests."""
        return self.slots.server["heartbeat"][0] != 0


class InferenceManager(Supervisor[ServerHandle]):
    """Owns the inference servers of one rank, and the request slots, which outlive them.

    Servers are spawned, never forked from anything that the actors come from: those hold no torch.

    Args:
        config: Servers and batches.
        actors: Whose requests are served.
        recipe: Builds the network in a server.
        store: The weights.
        slot: The first actor's slot, for seeds.

    Raises:
        ConfigError: Servers or batches do not fit these actors, or there is too little memory.
    """

    error = InferenceError

    def __init__(
        self,
        config: InferenceConfig,
        actors: ActorConfig,
        recipe: NetworkRecipe,
        store: WeightStore,
        slot: ActorSlot,
    ) -> None:
        super().__init__(config, config.num_servers)
        self.config = config
        self.actors = actors
        self.recipe = recipe
        self.store = store
        self.slot = slot
        config.check(actors)
        self.slots = [self._make_slots(server) for server in range(config.num_servers)]
        self._last = [slots.counted() for slots in self.slots]
        self._context = multiprocessing.get_context("spawn")

    def policy_of(self, actor: int) -> RemotePolicyFactory:
        """Return what builds the policies of an actor's groups in its process."""
        first = actor * self.config.groups_per_actor
        groups = range(first, first + self.config.groups_per_actor)
        servers = self.config.num_servers
        return RemotePolicyFactory(
            tuple(self.slots[group % servers].client(group // servers) for group in groups)
        )

    def metrics(self) -> dict[str, float]:
        """Return what the servers did since the last call (docs/metrics.md)."""
        now = [slots.counted() for slots in self.slots]
        before, self._last = self._last, now
        grown = {
            name: np.sum([new[name] - old[name] for new, old in zip(now, before, strict=True)], 0)
            for name in now[0]
        }
        failures = sum(int(slots.server["failures"][0]) for slots in self.slots)
        return {
            "count/inference_restarts": float(self.restarts),
            "count/inference_failures": float(failures),
            **figures_of(grown, self.config.envs_per_group(self.actors)),
        }

    def close(self) -> None:
        """Stop the servers and let go of the slots; bounded and idempotent."""
        self.stop(timeout=2.0)
        for slots in self.slots:
            slots.close()

    def _make_slots(self, server: int) -> RequestSlots:
        count = len(self.config.slots_of(server, self.actors))
        rows = self.config.envs_per_group(self.actors)
        return RequestSlots(RequestLayout(self.recipe.env_spec, count, rows))

    def _launch(self, index: int, previous: ServerHandle | None) -> ServerHandle:
        slots = self.slots[index]
        slots.server["heartbeat"] = 0.0
        incarnation = self.slot.incarnation + (previous.lives.restarts + 1 if previous else 0)
        place = replace(self.slot, actor=self.actors.num_actors + index, incarnation=incarnation)
        plan = ServerPlan(
            self.recipe,
            self.store,
            slots,
            self.config.requests_per_batch(index, self.actors),
            self.config.max_batch_delay_seconds,
            self.config.sync_period_seconds,
            self.config.device_of(index),
            self.config.num_threads,
            place.policy_seed(),
        )
        name = f"inference server {index}"
        started = self._start_process(self._context, name, run_server, [plan])
        return ServerHandle(name, *started, slots=slots)

    def _heartbeat(self, handle: ServerHandle) -> float:
        return float(handle.slots.server["heartbeat"][0])

    def _request_stop(self) -> None:
        for slots in self.slots:
            slots.server["stop"] = 1

    def _reason_to_give_up(self, handle: ServerHandle) -> str | None:
        if not handle.has_failed:
            return None
        return "an error in it" if handle.has_started() else "it failed before its first batch"

    def _signs(self, handle: ServerHandle) -> list[Any]:
        return [handle.process.sentinel, handle.errors]

    def _listen(self, handle: ServerHandle) -> None:
        traceback, now = handle.take_traceback(), time.monotonic()
        if traceback and now >= handle.quiet_until:
            handle.quiet_until = now + _QUIET_SECONDS
            _log.warning("%s: a batch failed; its actors ask again:\n%s", handle.name, traceback)
