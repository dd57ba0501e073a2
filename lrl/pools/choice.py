"""Which pool a run has, by its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.slot import TRAINING_SEED_FLOOR, ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import packages_of
from lrl.envs import EnvConfig, RestorableEnvs, make_envs
from lrl.inference.config import InferenceConfig
from lrl.networks import NetworkRecipe
from lrl.pools.cluster import ClusterPool
from lrl.pools.joined import JoinedPools
from lrl.pools.local import LocalPool
from lrl.pools.pool import ActorPool
from lrl.pools.processes import ProcessPool
from lrl.types import EnvSpec


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


def background_pool(
    actors: ActorConfig,
    env: EnvConfig,
    spec: EnvSpec,
    exploration: Exploration,
    slot: ActorSlot,
    recipe: NetworkRecipe,
    inference: InferenceConfig | None,
    cluster: ClusterConfig | None,
    version: int,
) -> ActorPool:
    """Return the pool of actors in processes of this machine, on a cluster, or both.

    The arguments are those of `ProcessPool`, and `cluster`, which holds the inference servers if it
    is given.
    """

    def processes() -> ProcessPool:
        return ProcessPool(actors, env, spec, exploration, slot, recipe, inference, version)

    if cluster is None:
        return processes()
    first = replace(slot, actor=actors.num_actors)
    packages = packages_of(env)
    remote = ClusterPool(
        cluster, actors, env, spec, exploration, first, recipe, packages, inference, version
    )
    return JoinedPools([remote, processes()]) if actors.num_actors else remote
