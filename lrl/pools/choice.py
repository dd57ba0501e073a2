"""Which pool a run has, by its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from lrl.actors.exploration import Exploration
from lrl.actors.slot import TRAINING_SEED_FLOOR, ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import packages_of
from lrl.envs import EnvConfig, RestorableEnvs, make_envs
from lrl.pools.cluster import ClusterPool
from lrl.pools.joined import JoinedPools
from lrl.pools.local import LocalPool
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool
from lrl.pools.processes import ProcessPool


def local_pool(
    env: EnvConfig,
    count: int,
    exploration: Exploration,
    slot: ActorSlot,
    learner_steps: Callable[[], int],
    *,
    can_be_saved: bool,
) -> LocalPool:
    """Return the pool of synchronous mode.

    Args:
        env: The environment.
        count: How many of it are stepped together.
        exploration: How the actor explores.
        slot: The actor's place in the run.
        learner_steps: Returns the learner steps so far.
        can_be_saved: Whether running episodes can be saved, which takes environments one by one.
    """
    if can_be_saved:
        singles = [make_envs(env, 1, training=True) for _ in range(count)]
        envs = RestorableEnvs(singles, TRAINING_SEED_FLOOR)
    else:  # the learner waits while they step
        envs = make_envs(env, count, training=True, num_threads=torch.get_num_threads())
    return LocalPool(envs, exploration, slot, learner_steps, env.reward_clip)


def background_pool(plan: ActingPlan, cluster: ClusterConfig | None) -> ActorPool:
    """Return the pool of actors in processes of this machine, on a cluster, or both.

    Args:
        plan: What the actors are told.
        cluster: The cluster, if there is one; it then holds the inference servers.
    """
    if cluster is None:
        return ProcessPool(plan)
    local = plan.actors.num_actors
    first = replace(plan.slot, actor=local)
    remote = ClusterPool(cluster, replace(plan, slot=first), packages_of(plan.env))
    return JoinedPools([remote, ProcessPool(plan)]) if local else remote
