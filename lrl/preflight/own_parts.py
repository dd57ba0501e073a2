"""Checks of what a user brings in the place of actors or of the replay."""

from __future__ import annotations

from dataclasses import replace

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy, Exploration
from lrl.cluster.config import ClusterConfig
from lrl.inference.config import InferenceConfig
from lrl.parts.recipe import blamed_on
from lrl.pools.pool import ActorPool
from lrl.replay import ReplayConfig, UniformSampler
from lrl.types import ConfigError


def check_own_pool(
    pool: object,
    actors: ActorConfig,
    inference: InferenceConfig | None,
    exploration: Exploration,
    cluster: ClusterConfig | None,
) -> None:
    """Check that a pool of the user's own is one, and the only source of rows.

    Args:
        pool: What was given.
        actors: The settings of actors, which are to be the defaults that the command line writes
            out, as are the others.
        inference: Inference servers.
        exploration: How actors explore.
        cluster: Actors on a cluster.

    Raises:
        ConfigError: It is none, or is not the only one.
    """
    name = type(pool).__name__
    if not isinstance(pool, ActorPool):
        raise ConfigError(f"data.pool must be an instance of an ActorPool, got {pool!r}")
    if not (isinstance(pool.num_streams, int) and pool.num_streams > 0):
        raise ConfigError(
            f"data.pool {name} must have num_streams, the number of its environments, at least 1, "
            f"got {pool.num_streams!r}"
        )
    if (actors, inference, exploration, cluster) != (ActorConfig(), None, EpsilonGreedy(), None):
        raise ConfigError(
            f"data.pool {name} brings rows of its own, so that data.actors, data.inference, "
            "data.exploration and data.cluster would do nothing: leave them out"
        )


def check_replay_unset(replay: ReplayConfig) -> None:
    """Check that nothing is said of the replay where the user's own experience takes its place.

    Raises:
        ConfigError: Something is; the command line writes the defaults out, which say nothing.
    """
    with blamed_on("replay.sampler"):
        is_uniform = type(replay.sampler()) is UniformSampler
    if not is_uniform or replace(replay, sampler=UniformSampler) != ReplayConfig():
        raise ConfigError(
            "data.experience takes the place of the replay, so that data.replay would do "
            "nothing: leave it out"
        )
