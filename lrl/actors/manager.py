"""The actor manager: starts, watches, restarts and stops the background actors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import BaseContext

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.handle import ActorHandle, ActorStatistics
from lrl.actors.process import ActorPlan, PolicyFactory, run_actor
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.processes.supervisor import Supervisor
from lrl.transport import Channel, ChunkLayout, ChunkQueue
from lrl.types import EnvSpec


class ActorError(RuntimeError):
    """An actor failed and will not be restarted; the message holds its traceback."""


class ActorManager(Supervisor[ActorHandle]):
    """Owns the actor processes of one rank.

    Created by the datamodule, started by the dataset at its first batch.

    Args:
        config: Number of actors and what to do when one fails.
        env: Environment that every actor builds for itself.
        spec: What the environment looks like, for the layout of chunks.
        exploration: How actors explore.
        policy_of: Returns what builds the behaviour policy in the process of an actor.
        queue: Receives each actor's channel.
        slot: The first actor's slot; the others differ in their index.
        env_steps_offset: Environment steps of the whole run so far (after a resume).
        groups: Groups of each actor's environments, each with a policy of its own.
    """

    error = ActorError

    def __init__(
        self,
        config: ActorConfig,
        env: EnvConfig,
        spec: EnvSpec,
        exploration: Exploration,
        policy_of: Callable[[int], PolicyFactory],
        queue: ChunkQueue,
        slot: ActorSlot,
        env_steps_offset: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__(config, config.num_actors)
        self.config = config
        self.env = env
        self.exploration = exploration
        self.policy_of = policy_of
        self.queue = queue
        self.first_slot = slot
        self.env_steps_offset = env_steps_offset
        self.groups = groups
        self.layout = ChunkLayout(spec, config.chunk_rows, config.chunks_per_actor)
        self._context = _context(config.start_method, policy_of(0))

    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did so far, by actor index."""
        return [handle.statistics() for handle in self._handles]

    def acting(self) -> list[int | None]:
        """Return by actor index the process id of each that has made a step; None before that.

        It is how an attack on actors (`benchmark.chaos.run`) sees that one is back.
        """
        return [
            handle.process.pid if handle.channel.counters["env_steps"] else None
            for handle in self._handles
        ]

    def _launch(self, index: int, previous: ActorHandle | None) -> ActorHandle:
        slot = previous.slot.restarted() if previous else replace(self.first_slot, actor=index)
        channel = Channel(self.layout, slot.actor, slot.incarnation)
        env_steps = sum(int(handle.total("env_steps")) for handle in self._handles)
        plan = ActorPlan(
            slot, self.groups, self.env, self.exploration, self.policy_of(index),
            channel.actor_end,
            self.env_steps_offset + slot.steps_of_run(env_steps, self.config.num_actors),
        )  # fmt: skip
        try:
            started = self._start_process(self._context, f"actor {index}", run_actor, [plan])
        except BaseException:
            channel.close()
            raise
        channel.started()
        self.queue.add(channel)
        handle = ActorHandle(f"actor {index}", *started, slot=slot, channel=channel)
        if previous:
            assert previous.ended_at is not None
            lived = previous.ended_at - previous.launched_at
            handle.past = [*previous.past, (previous.channel, lived)]
        return handle

    def _heartbeat(self, handle: ActorHandle) -> float:
        return handle.channel.counters["heartbeat"]

    def _is_starting(self, handle: ActorHandle) -> bool:
        return handle.channel.counters["env_steps"] == 0  # rows are sent before all have begun

    def _request_stop(self) -> None:
        for handle in self._handles:
            handle.channel.request_stop()

    def _after_death(self, handle: ActorHandle) -> None:
        self.queue.retire(handle.slot.actor, handle.slot.incarnation)

    def _reason_to_give_up(self, handle: ActorHandle) -> str | None:
        first_life = handle.slot.incarnation == self.first_slot.incarnation
        never_acted = first_life and handle.channel.counters["env_steps"] == 0
        if never_acted and handle.has_failed:
            return "it failed before its first step"
        return None


def _context(start_method: str, policy: PolicyFactory) -> BaseContext:
    methods = multiprocessing.get_all_start_methods()
    if start_method == "auto":
        start_method = "forkserver" if "forkserver" in methods else "spawn"
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        # The main module too: a script that imports Lightning would cost every actor seconds.
        needed = [
            "__main__",
            "lrl.processes.preload",
            "lrl.actors.process",
            type(policy).__module__,
        ]
        context.set_forkserver_preload(needed)
    return context
