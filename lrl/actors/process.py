"""What runs in an actor process. Numpy only, unless the policy it is given brings torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

from lrl.actors.actor import Actor, BehaviourPolicy
from lrl.actors.exploration import Exploration
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.transport import ActorEnd, ChunkWriter, LearnerGone, StopRequested

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT")
_TRACEBACK_CHARACTERS = 6000  # fits into a pipe that nobody reads before this process has ended


class PolicyFactory(Protocol):
    """Builds the behaviour policy inside the actor process."""

    def build(self, seed: int) -> BehaviourPolicy:
        """Build it, with the current weights; it draws random numbers from that seed."""
        ...


@dataclass(frozen=True)
class ActorPlan:
    """All an actor process is told; pickled once, when it starts."""

    slot: ActorSlot
    env: EnvConfig
    exploration: Exploration
    policy: PolicyFactory
    end: ActorEnd
    errors: Connection
    env_steps_offset: int


def run_actor(plan: ActorPlan) -> None:
    """Act until the learner says stop; send a traceback home if anything is raised."""
    _isolate()
    try:
        writer = plan.end.open()
        _act(plan, writer)
    except LearnerGone:
        os._exit(1)
    except BaseException:  # SystemExit from an environment must reach the learner too
        plan.errors.send_bytes(_shortened(traceback.format_exc()).encode(errors="replace"))
        raise SystemExit(1) from None


def _act(plan: ActorPlan, writer: ChunkWriter) -> None:
    envs = make_envs(plan.env, plan.slot.envs_per_actor, training=True)
    try:
        actor = Actor(
            envs,
            plan.policy.build(plan.slot.policy_seed()),
            plan.exploration,
            writer,
            plan.slot,
            reward_clip=plan.env.reward_clip,
            env_steps_offset=plan.env_steps_offset,
        )
        counters = writer.counters
        actor.begin()
        while not writer.stop_requested:
            made = actor.step()
            counters["env_steps"] += made
            counters["frames"] += made * envs.spec.frame_skip
            counters["policy_version"] = actor.policy_version
            counters["heartbeat"] = time.monotonic()
        writer.close()
    except StopRequested:
        pass
    finally:
        envs.close()


def _shortened(text: str) -> str:
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def _isolate() -> None:
    """Leave Ctrl-C and rank settings to the learner, and end when the learner does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
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
