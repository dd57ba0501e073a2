"""Actors in processes of this machine."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator

from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory, publish_weights
from lrl.inference.manager import InferenceManager
from lrl.networks import QNetwork
from lrl.networks.q_network import vector_size
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts, gap_of
from lrl.transport import Chunk, ChunkQueue, WeightStore


class ProcessPool(ActorPool):
    """Actors in processes of this machine, with their own networks or central inference.

    Args:
        plan: What the actors are told.
    """

    def __init__(self, plan: ActingPlan) -> None:
        self.plan = plan
        self.num_streams = plan.actors.num_actors * plan.actors.envs_per_actor
        self.inference: InferenceManager | None = None
        self.queue = ChunkQueue()
        self._closed = False

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Start the processes; they hold these weights before their first step."""
        plan = self.plan
        self.store = WeightStore(vector_size(network))
        self.publish(network, plan.version)
        with contextlib.ExitStack() as undo:
            if plan.inference is not None:
                self.inference = InferenceManager(
                    plan.inference, plan.actors, plan.recipe, self.store, plan.slot
                )
                undo.callback(self.inference.close)
            local = LocalPolicyFactory(plan.recipe, self.store)
            self.manager = ActorManager(
                plan.actors,
                plan.env,
                plan.spec,
                plan.exploration,
                self.inference.policy_of if self.inference else lambda actor: local,
                self.queue,
                plan.slot,
                env_steps_offset=run_env_steps,
                groups=plan.groups,
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
        """Stop the actors, taking their last rows.

        Raises:
            Exception: The first that `take` raised; the rows after it are thrown away.
        """
        if self._closed:
            return
        self._closed = True
        errors: list[Exception] = []

        def take_until_error(delivery: Delivery) -> None:
            if not errors:
                try:
                    take(delivery)
                except Exception as error:
                    errors.append(error)

        with contextlib.ExitStack() as closing:  # whatever interrupts the end of the actors
            if self.inference is not None:
                closing.callback(self.inference.close)
            closing.callback(self.queue.close)
            self.manager.stop(drain=lambda: self._drain(take_until_error))
        if errors:
            raise errors[0]

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
            rows.insert(0, gap_of(self.plan.spec, chunk.actor, self.plan.actors.envs_per_actor))
        columns = (chunk.episode_return, chunk.episode_length, chunk.episode_start_value)
        figures = zip(*(column.tolist() for column in columns), strict=True)
        return Delivery(rows, [Episode(*episode) for episode in figures])
