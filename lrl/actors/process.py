"""What runs in an actor process. Numpy only, unless the policy it is given brings torch."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

from lrl import outputs
from lrl.actors.actor import Actor, BehaviourPolicy
from lrl.actors.errors import errors_sent_to
from lrl.actors.exploration import Exploration
from lrl.actors.remote import Pulse, RemotePolicy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.transport import ActorEnd, ChunkWriter, StopRequested

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT")


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
        with contextlib.ExitStack() as closing, contextlib.suppress(StopRequested):
            _act(_build(plan, writer, closing), writer)
        writer.close()


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
        _ask_ahead(actor)
    while not writer.stop_requested:
        for actor in actors:
            made = actor.step()
            _ask_ahead(actor)
            counters["env_steps"] += made
            counters["frames"] += made * actor.envs.spec.frame_skip
            counters["policy_version"] = actor.policy_version
            counters["heartbeat"] = time.monotonic()


def _ask_ahead(actor: Actor) -> None:
    """Have the actor's next action values computed while other groups step."""
    if isinstance(actor.policy, RemotePolicy) and actor.observation is not None:
        actor.policy.ask(actor.observation)


def isolate() -> None:
    """Leave signals and rank settings to the learner, and end when the learner does.

    Output that goes away ends neither: what an environment prints is left out then.
    """
    outputs.guard()
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):  # a terminal sends the first two to all
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name in _RANK_VARIABLES:
        os.environ.pop(name, None)
    threading.Thread(target=_follow_parent, name="lrl-follow-parent", daemon=True).start()


def _follow_parent() -> None:
    # PR_SET_PDEATHSIG follows the starting thread, not the process, and not at all under
    # forkserver; the sentinel works with every start method.
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
