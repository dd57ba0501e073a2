"""All that a run has on a cluster: its actors, and the servers that compute their action values."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.actors.config import ActorConfig
from lrl.actors.slot import ActorSlot
from lrl.cluster.actors import ClusterActors, PlanOf
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import Nodes
from lrl.cluster.remote_actor import Answer
from lrl.cluster.remotes import Remote, Remotes
from lrl.cluster.servers import ClusterServers
from lrl.cluster.session import Session
from lrl.cluster.weights import SentWeights
from lrl.inference.config import InferenceConfig
from lrl.networks import NetworkRecipe
from lrl.types import ConfigError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
_ABSENT_SECONDS = 5.0
"""Of the time between two looks at most so much counts as silence: the learner was elsewhere."""
_LAST_CALLS_SECONDS = 2.0


class Fleet:
    """Keeps servers and actors going, and asks the actors for rows.

    Args:
        config: What actors need on the cluster.
        actors: What happens when one fails; those of the cluster alone.
        inference: Servers that compute their action values, if there are any.
        plan: What each actor is told.
        slot: That of the first one.
        packages: Names of packages that must have the same versions on all nodes.
        recipe: Builds the network of the servers.
    """

    def __init__(
        self,
        config: ClusterConfig,
        actors: ActorConfig,
        inference: InferenceConfig | None,
        plan: PlanOf,
        slot: ActorSlot,
        packages: Sequence[str],
        recipe: NetworkRecipe,
    ) -> None:
        self._session = session = Session(config, inference.busy_threads if inference else 0)
        self._ray = session.ray
        self.weights = SentWeights(session.ray)
        self._nodes = nodes = Nodes(packages)
        run = random.SystemRandom().getrandbits(63)
        self.servers: ClusterServers | None = None
        if inference is not None:
            after = replace(slot, actor=slot.actor + config.num_actors)
            self.servers = ClusterServers(
                session, nodes, inference, actors, self.weights, after, recipe
            )
        self.actors = ClusterActors(
            session, nodes, actors, self.weights, slot, plan, run, self.servers
        )
        self._parts: list[Remotes] = [*([self.servers] if self.servers else []), self.actors]
        self._looked_at = time.monotonic()
        self._error: RuntimeError | ConfigError | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to join the cluster; servers and actors begin once that is done."""
        self._session.join()

    def publish(self, vector: npt.NDArray[np.float32], version: int) -> None:
        """Act with these weights from the next call on."""
        self.weights.publish(vector, version)

    def check(self) -> None:
        """Look after all, and raise what ended the fleet.

        Raises:
            ActorError: An actor failed for good, or the cluster is gone.
            InferenceError: An inference server did.
            ConfigError: There is no cluster.
        """
        if self._error is None and not self._is_closed:
            with self._noting_errors():
                self._look_after(0.0)
        if self._error is not None:
            raise self._error

    def answers(self, timeout: float) -> Iterator[tuple[Answer, bool]]:
        """Yield what has been answered, each with whether rows before it are missing."""
        if self._error is not None:
            return
        with self._noting_errors():
            if not self._look_after(timeout):
                return
            waiting = self._waiting()
            if not waiting:
                time.sleep(min(timeout, _LOOK_SECONDS))
                return
            # Who takes only the first has those next that waited longest.
            ready = self._ready(list(waiting), timeout)
            for call in sorted(ready, key=lambda call: waiting[call][1].since):
                part, remote = waiting[call]
                answer = part.take(remote)
                if answer is not None:
                    yield answer

    def stop(self, take: Callable[[Answer, bool], object]) -> None:
        """Take what was asked for already, end the actors and leave the cluster; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.actors.is_asked = False
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._session.leave)
            for part in self._parts:
                leaving.callback(part.kill)
            if self._error is None:
                self._take_last(take)

    def _take_last(self, take: Callable[[Answer, bool], object]) -> None:
        deadline = time.monotonic() + _LAST_CALLS_SECONDS
        while time.monotonic() < deadline:
            waiting = {c: r for c, r in self.actors.waiting().items() if r.state == "acting"}
            if not waiting:
                return
            for call in self._ready(list(waiting), 0.1):
                try:
                    answer = self.actors.take(waiting[call])
                except RuntimeError as error:
                    _log.warning("%s", error)
                    continue
                if answer is not None:
                    take(*answer)

    def _waiting(self) -> dict[Any, tuple[Remotes, Remote]]:
        return {c: (part, r) for part in self._parts for c, r in part.waiting().items()}

    def _ready(self, calls: list[Any], timeout: float) -> list[Any]:
        if timeout > 0 and not self._ray.wait(calls, num_returns=1, timeout=timeout)[0]:
            return []
        return self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ConfigError) as error:
            self._error = error

    def _look_after(self, timeout: float) -> bool:
        """Return whether the cluster is joined, which is waited for; then look after all."""
        if not self._session.has_joined(timeout):
            return False
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            absent = max(0.0, now - self._looked_at - _ABSENT_SECONDS)
            self._looked_at = now
            self._session.head.look_after(absent)
            for part in self._parts:
                if not part.all:
                    part.start()
                part.look_after(absent)
        return True
