"""What runs in an actor process. Numpy only, unless the policy it is given brings torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from lrl.actors.actor import Actor, BehaviourPolicy
from lrl.actors.exploration import Exploration
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.processes.child import StopRequested, errors_sent_to, errors_told, isolate
from lrl.transport import ActorEnd, ChunkWriter


class Pulse:
    """What keeps a waiting actor from being taken for a hung one.

    Args:
        writer: Holds the heartbeat and the learner's wish to stop.
        grace_seconds: How long waiting goes on after the learner asked to stop.
    """

    def __init__(self, writer: ChunkWriter, grace_seconds: float = 2.0) -> None:
        self._writer = writer
        self._grace_seconds = grace_seconds
        self._deadline: float | None = None

    def __call__(self) -> None:
        """Refresh the heartbeat.

        Raises:
            StopRequested: The learner asked to stop, and the time of grace is over.
        """
        now = time.monotonic()
        self._writer.counters["heartbeat"] = now
        if self._writer.stop_requested:
            self._deadline = self._deadline or now + self._grace_seconds
            if now > self._deadline:
                raise StopRequested("the learner asked to stop while the policy was waiting")


class PolicyFactory(Protocol):
    """Builds behaviour policies inside the actor process."""

    def build(self, slots: Sequence[ActorSlot], pulse: Pulse) -> Sequence[BehaviourPolicy]:
        """Build one policy for each group of the actor's environments, with current weights.

        Args:
            slots: Where the groups stand; random numbers follow from their seeds.
            pulse: To be called at least every 0.5 s by a policy that waits for something.
        """
        ...


@dataclass(frozen=True)
class ActorPlan:
    """All an actor process is told; pickled once, when it starts."""

    slot: ActorSlot
    groups: int
    env: EnvConfig
    exploration: Exploration
    policy: PolicyFactory
    end: ActorEnd
    env_steps_offset: int


def run_actor(plan: ActorPlan, errors: Connection) -> None:
    """Act until the learner says stop; send a traceback home if anything is raised."""
    isolate()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with errors_sent_to(errors):
        writer = plan.end.open()
        with (
            contextlib.closing(writer),  # which sends the last rows
            contextlib.ExitStack() as closing,
            contextlib.suppress(StopRequested),
            errors_told(errors),  # before environments are closed
        ):
            _act(_build(plan, writer, closing), writer)


def _build(plan: ActorPlan, writer: ChunkWriter, closing: contextlib.ExitStack) -> list[Actor]:
    """Build an `Actor` for each group of environments; they share everything but these."""
    slots = plan.slot.split(plan.groups)
    policies = plan.policy.build(slots, Pulse(writer))
    actors = []
    for slot, policy in zip(slots, policies, strict=True):
        envs = make_envs(plan.env, slot.envs_per_actor, training=True)
        closing.callback(envs.close)
        actor = Actor(
            envs,
            policy,
            plan.exploration,
            writer,
            slot,
            reward_clip=plan.env.reward_clip,
            env_steps_offset=plan.env_steps_offset,
        )
        actors.append(actor)
    return actors


def _act(actors: Sequence[Actor], writer: ChunkWriter) -> None:
    counters = writer.counters
    for actor in actors:
        actor.begin()
        actor.prefetch()
    while not writer.stop_requested:
        for actor in actors:
            made = actor.step()
            actor.prefetch()
            counters["env_steps"] += made
            counters["frames"] += made * actor.envs.spec.frame_skip
            counters["policy_version"] = actor.policy_version
            counters["heartbeat"] = time.monotonic()
