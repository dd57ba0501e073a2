"""From settings to environments: which kind they name, and what is built of it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from importlib import import_module

from lrl.envs.config import EnvConfig
from lrl.envs.gym import blamed_on, factory_of
from lrl.envs.kind import EnvKind, RenderedEnv
from lrl.envs.vector import StreamEnvs
from lrl.types import ConfigError, EnvSpec

KINDS = {"gymnasium": "lrl.envs.gym.Gymnasium", "atari": "lrl.envs.atari.Atari"}
"""Classes of the kinds, by `EnvConfig.kind`; imported when one is asked for: ale-py takes 0.4 s."""


def kind_of(config: EnvConfig) -> EnvKind:
    """Return the kind of an environment, which answers for all that depends on it.

    Raises:
        ConfigError: The factory cannot be imported.
    """
    if config.factory is not None:
        factory = factory_of(config)
        if isinstance(factory, type) and issubclass(factory, EnvKind):
            config.refuse_unread(factory.reads, "whose kind does not read it")
            with blamed_on(f"{config.source} with env.kwargs {config.kwargs} cannot be made"):
                return factory(config)
    module, _, name = KINDS[config.kind].rpartition(".")
    return getattr(import_module(module), name)(config)


def make_spec(config: EnvConfig) -> EnvSpec:
    """Describe the environment by building one, which is reset and closed (0.4 s for Atari)."""
    envs = make_envs(config, 1, training=False)
    try:
        with blamed_on(f"{config.source} fails at its first reset"):
            envs.reset([0])
    finally:
        envs.close()
    if envs.offers_masks and not config.action_masks:
        warnings.warn(
            f"{config.id} gives info['action_mask'], which is not used: set env.action_masks to "
            "true, so that only allowed actions are taken.",
            stacklevel=2,
        )
    return envs.spec


def make_envs(
    config: EnvConfig, num_envs: int, *, training: bool, num_threads: int = 1
) -> StreamEnvs:
    """Build the environments that one actor or one evaluation steps together.

    Args:
        config: Which environment, and how it is preprocessed. Rewards come raw in any case.
        num_envs: Number of environments.
        training: Report lost lives if the settings say so, and use an environment's own vector
            implementation where that is quicker. Evaluation does neither, so that every episode
            depends on its own seed alone.
        num_threads: Threads of an Atari vector. One suits an actor process, which has one core.
    """
    if num_envs < 1 or num_threads < 1:
        raise ConfigError(
            f"num_envs is {num_envs} and num_threads {num_threads}, but both must be at least 1."
        )
    with _blamed(config) as kind:
        return kind.make(num_envs, training=training, num_threads=num_threads)


def make_rendered(config: EnvConfig) -> RenderedEnv:
    """Build an environment that can be filmed.

    Raises:
        ConfigError: It draws no pictures, or cannot be made.
    """
    with _blamed(config) as kind:
        return kind.make_rendered()


@contextlib.contextmanager
def _blamed(config: EnvConfig) -> Iterator[EnvKind]:
    kind = kind_of(config)
    with blamed_on(f"{config.source} with env.kwargs {config.kwargs} cannot be made"):
        yield kind
