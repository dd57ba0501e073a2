"""Actors in processes of this machine."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory, publish_weights
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.inference.config import InferenceConfig
from lrl.inference.manager import InferenceManager
from lrl.networks import NetworkRecipe, QNetwork
from lrl.networks.q_network import vector_size
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts, gap_of
from lrl.transport import Chunk, ChunkQueue, WeightStore
from lrl.types import EnvSpec


class ProcessPool(ActorPool):
    """Actors in processes of this machine, with their own networks or central inference.

    Args:
        config: Number of actors, and what to do when one fails.
        env: The environment that each builds for itself.
        spec: What it looks like.
        exploration: How actors explore.
        slot: The first actor's place in the run.
        recipe: Builds the network in other processes.
        inference: The servers that compute all action values, if there are any.
        version: Learner steps so far: the version of the first weights.
    """

    def __init__(
        self,
        config: ActorConfig,
        env: EnvConfig,
        spec: EnvSpec,
        exploration: Exploration,
        slot: ActorSlot,
        recipe: NetworkRecipe,
        inference: InferenceConfig | None = None,
        version: int = 0,
    ) -> None:
        self.config = config
        self.num_streams = config.num_actors * config.envs_per_actor
        self.env = env
        self.spec = spec
        self.exploration = exploration
        self.slot = slot
        self.recipe = recipe
        self.inference: InferenceManager | None = None
        self.queue = ChunkQueue()
        self._inference_config = inference
        self._version = version
        self._closed = False

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Start the processes; they hold these weights before their first step."""
        self.store = WeightStore(vector_size(network))
        self.publish(network, self._version)
        with contextlib.ExitStack() as undo:
            if self._inference_config is not None:
                self.inference = InferenceManager(
                    self._inference_config, self.config, self.recipe, self.store, self.slot
                )
                undo.callback(self.inference.close)
            local = LocalPolicyFactory(self.recipe, self.store)
            self.manager = ActorManager(
                self.config,
                self.env,
                self.spec,
                self.exploration,
                self.inference.policy_of if self.inference else lambda actor: local,
                self.queue,
                self.slot,
                env_steps_offset=run_env_steps,
                groups=self._inference_config.groups_per_actor if self._inference_config else 1,
            )
            undo.callback(self.close, lambda delivery: None)
            if self.inference is not None:
                self.inference.start()
            self.manager.start()
            undo.pop_all()

    def publish(self, network: QNetwork, version: int) -> None:
        """Copy the weights to where actors and servers take the newest from."""
        publish_weights(network, self.store, version)

    def check(self) -> None:
        """Raise what ended actors or servers.

        Raises:
            ActorError: The actors failed for good.
            InferenceError: The inference servers did.
        """
        if self.inference is not None:
            self.inference.check()
        self.manager.check()

    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Yield the chunks that wait now; those that arrive meanwhile are for the next time."""
        waiting = self.queue.qsize()
        for _ in range(waiting if timeout == 0 else max(1, waiting)):
            try:
                chunk = self.queue.get(timeout)
            except queue.Empty:
                return
            timeout = 0.0
            try:
                yield self._delivery(chunk)
            finally:
                self.queue.release(chunk)

    def close(self, take: Callable[[Delivery], object]) -> None:
        """Stop the actors, taking their last rows."""
        if not self._closed:
            self._closed = True
            self.manager.stop(drain=lambda: self._drain(take))
            self.queue.close()
            if self.inference is not None:
                self.inference.close()

    def counts(self) -> PoolCounts:
        """Return what the actors did."""
        statistics, restarts = self.manager.statistics(), self.manager.restarts
        return PoolCounts(statistics, restarts, self.queue.rows_dropped, self.queue.fill)

    def metrics(self) -> dict[str, float]:
        """Return what the inference servers did."""
        return self.inference.metrics() if self.inference else {}

    def _drain(self, take: Callable[[Delivery], object]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                chunk = self.queue.get(0.0)
                take(self._delivery(chunk))
                self.queue.release(chunk)

    def _delivery(self, chunk: Chunk) -> Delivery:
        rows = [chunk.rows]
        if chunk.after_gap:
            rows.insert(0, gap_of(self.spec, chunk.actor, self.config.envs_per_actor))
        columns = (chunk.episode_return, chunk.episode_length, chunk.episode_start_value)
        figures = zip(*(column.tolist() for column in columns), strict=True)
        return Delivery(rows, [Episode(*episode) for episode in figures])
