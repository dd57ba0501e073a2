"""From settings to environments."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Iterator
from importlib import import_module

import gymnasium
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from lrl.envs import factory
from lrl.envs.config import EnvConfig, WrapperConfig, old_atari_id
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs
from lrl.envs.vector import StreamEnvs
from lrl.parts import safety
from lrl.types import ConfigError, EnvSpec

NATIVE_VECTOR_FROM = 8
"""Environments from which a native vector is used. CartPole: 151 us a vector step natively and
12 us in a loop with 1 environment, 94 and 92 us with 8, 141 and 273 us with 16."""


def make_spec(config: EnvConfig) -> EnvSpec:
    """Describe the environment by building one, which is reset and closed (0.2 s for Atari)."""
    envs = make_envs(config, 1, training=False)
    try:
        if not config.is_atari:  # has no masks, and a reset takes as long again
            with _blamed_on(f"{config.source} fails at its first reset"):
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
    if config.is_atari:
        safety.check_entry_point(config.id.rpartition(":")[0] or None, "env.id", config.id)
        from lrl.envs.atari import AtariEnvs  # 0.4 s, and not every run needs it

        return AtariEnvs(
            config.id, config.atari, num_envs, training=training, num_threads=num_threads
        )
    if config.factory is None:
        name = _registered_name(config)
        if _is_native_vector_better(config, name, num_envs, training):
            native = _make_native(config, name, num_envs)
            return NativeVectorEnvs(native, config.id, config.action_masks)
    envs = [make_single(config) for _ in range(num_envs)]
    if len({id(env.unwrapped) for env in envs}) < num_envs:
        raise ConfigError(
            f"{config.source} returned the same environment twice, but must make a new one at each "
            "call."
        )
    return SingleEnvs(envs, config.frame_stack, config.action_masks)


def make_single(config: EnvConfig) -> gymnasium.Env:
    """Build one Gymnasium environment as `make_envs` does, for who wants to look at it itself."""
    env = _from_registry(config) if config.factory is None else _from_factory(config)
    for index, wrapper in enumerate(config.wrappers):
        env = _wrap(env, wrapper, f"env.wrappers[{index}]")
    return FrameStackObservation(env, config.frame_stack) if config.frame_stack > 1 else env


def _registered_name(config: EnvConfig) -> str:
    """Import the module of an id `module:Name-v0`; return the name in Gymnasium's registry."""
    module, _, name = config.id.rpartition(":")
    safety.check_entry_point(module or None, "env.id", config.id)
    try:
        if module:
            import_module(module)
        spec = gymnasium.spec(name)
    except (Exception, SystemExit) as error:  # whatever a module of the user's does
        if not module and _is_old_game(name):
            raise old_atari_id(config.id, name.partition("-")[0]) from error
        raise ConfigError(
            f"env.id is {config.id!r}, which cannot be made: {_reason(error)} An environment "
            "outside Gymnasium is written 'module:Name-v0', with the module that registers it."
        ) from error
    for entry in (spec.entry_point, spec.vector_entry_point):
        safety.check_entry_point(entry, "env.id", config.id)
    if str(spec.entry_point).startswith("ale_py"):  # such as ale_py:Pong-v4
        raise old_atari_id(config.id, spec.name)
    return name


def _is_old_game(name: str) -> bool:
    """Return whether ale-py registers an id of the old interface by that name."""
    if not re.fullmatch(r"\w+-v\d", name):
        return False
    import ale_py  # noqa: F401 (registers them; 0.4 s)

    return str(getattr(gymnasium.registry.get(name), "entry_point", "")).startswith("ale_py")


def _is_native_vector_better(config: EnvConfig, name: str, num_envs: int, training: bool) -> bool:
    spec = gymnasium.spec(name)
    if spec.vector_entry_point is None or spec.additional_wrappers:
        return False
    if config.wrappers or config.frame_stack > 1:
        return False
    return spec.entry_point is None or (training and num_envs >= NATIVE_VECTOR_FROM)


def _make_native(config: EnvConfig, name: str, num_envs: int) -> gymnasium.vector.VectorEnv:
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    with _blamed_on(_cannot_make(config)):
        return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)


def _from_registry(config: EnvConfig) -> gymnasium.Env:
    name = _registered_name(config)
    with _blamed_on(_cannot_make(config)):
        return gymnasium.make(
            name,
            max_episode_steps=config.max_episode_steps,
            disable_env_checker=True,  # it warns, costs time, and StreamEnvs checks every step
            **config.kwargs,
        )


def _from_factory(config: EnvConfig) -> gymnasium.Env:
    with _blamed_on(f"{config.source} cannot be imported"):
        make = factory.find(str(config.factory))
    with _blamed_on(_cannot_make(config)):
        env = make(**config.kwargs)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"{config.source} returned {env!r:.100}, but must return a gymnasium.Env (not a vector "
            "of them: actors.envs_per_actor says how many are stepped)."
        )
    if config.max_episode_steps is None:
        return env
    own = _time_limit(env)
    if own is not None and own < config.max_episode_steps:
        raise ConfigError(
            f"env.max_episode_steps is {config.max_episode_steps}, but {config.source} ends its "
            f"episodes after {own} steps: have the factory set no limit, or lower it."
        )
    return TimeLimit(env, config.max_episode_steps)


def _time_limit(env: gymnasium.Env) -> int | None:
    """Return the limit of an outer `TimeLimit`, the smallest of several."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def _cannot_make(config: EnvConfig) -> str:
    return f"{config.source} with env.kwargs {config.kwargs} cannot be made"


@contextlib.contextmanager
def _blamed_on(what: str) -> Iterator[None]:
    """Turn whatever the code of an environment raises into a `ConfigError` that begins so."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what an error says, and of what kind and where it is unless it is Gymnasium's own."""
    if isinstance(error, (gymnasium.error.Error, ConfigError)):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})."


def _wrap(env: gymnasium.Env, wrapper: WrapperConfig, name: str) -> gymnasium.Env:
    module, _, class_name = wrapper.path.rpartition(".")
    safety.check_path(wrapper.path, f"{name}.path", safety.WRAPPERS)
    with _blamed_on(f"{name}.path is {wrapper.path!r}, which cannot be imported"):
        wrapper_class = getattr(import_module(module), class_name)
    if not (isinstance(wrapper_class, type) and issubclass(wrapper_class, gymnasium.Wrapper)):
        raise ConfigError(f"{name}.path is {wrapper.path!r}, which is not a gymnasium.Wrapper.")
    with _blamed_on(f"{name}.kwargs is {wrapper.kwargs}"):
        return wrapper_class(env, **wrapper.kwargs)
