"""Gymnasium environments: single ones stepped in a loop, or a native vector."""

from __future__ import annotations

import contextlib
import copy
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit
from typing_extensions import override

from lrl.envs.config import EnvConfig, WrapperConfig
from lrl.envs.kind import EnvKind, RenderedEnv
from lrl.envs.protocols import GYMNASIUM
from lrl.envs.spaces import Choices, ObservationLeaves, joined_masks
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.parts import factory, safety
from lrl.types import ActionSpec, ConfigError, EnvSpec, Observation, whole_of

NATIVE_VECTOR_FROM = 8
"""Environments from which a native vector is used. CartPole: 151 us a vector step natively and
12 us in a loop with 1 environment, 94 and 92 us with 8, 141 and 273 us with 16."""

_PICTURES = {"render_mode": "rgb_array"}
_DEFAULT_FPS = 30.0

_RESET = "observation, info"
_STEP = "observation, reward, terminated, truncated, info"

# What environments usually answer with, which needs no closer look.
_NUMBERS = (float, int, np.float64, np.float32)
_FLAGS = (bool, np.bool_)


def spec_from_spaces(
    observation_space: Space,
    action_space: Space,
    name: str,
    frame_stack: int = 1,
    action_masks: bool = False,
) -> EnvSpec:
    """Describe an environment by its spaces; refuse spaces that lrl cannot handle.

    Args:
        observation_space: Of one frame, where observations are stacks.
        action_space: Of its actions.
        name: What the environment is called in messages.
        frame_stack: Frames in an observation.
        action_masks: Whether it says which actions are allowed.
    """
    return EnvSpec(
        observation=ObservationLeaves(observation_space, name, frame_stack).columns,
        action=ActionSpec(Choices(action_space, name).branches, action_masks),
    )


def _read_mask(
    info: dict[str, Any], shape: tuple[int, ...], spec: ActionSpec, name: str
) -> npt.NDArray[np.bool_]:
    """Return `info["action_mask"]`, which must have that shape, as an array of its own."""
    if "action_mask" not in info:
        raise ConfigError(
            f"env.action_masks is true, but {name} gave no info['action_mask']: it must come with "
            "every reset and step; otherwise leave env.action_masks false."
        )
    given, several = info["action_mask"], len(spec.branches) > 1
    mask = joined_masks(given) if several or isinstance(given, tuple) else np.asarray(given)
    if mask.shape != shape:
        per = f"choice of all {len(spec.branches)} branches" if several else "action"
        raise ValueError(
            f"info['action_mask'] of {name} must have the shape {shape}, a number per {per}, but "
            f"has {mask.shape}."
        )
    if mask.dtype.kind == "f" and np.isnan(mask).any():
        raise ValueError(f"info['action_mask'] of {name} holds NaN.")
    return mask.astype(np.bool_)


def _check_scalars(index: int, **answers: object) -> None:
    """Refuse what numpy would take for a number or a flag and is none, such as a string."""
    for name, answer in answers.items():
        value = np.asarray(answer)
        is_number = value.shape == () and value.dtype.kind in "fiub"
        if not is_number or (name != "reward" and value not in (0, 1)):
            raise ValueError(
                f"Environment {index}: {name} is {answer!r:.200}, but must be "
                f"{'a number' if name == 'reward' else 'true or false'}."
            )


def _parts(index: int, method: str, answer: Any, names: str) -> Any:
    """Return what a method answered, if it has as many parts as Gymnasium's has."""
    count = names.count(",") + 1
    if not (isinstance(answer, (tuple, list)) and len(answer) == count):
        what = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
        raise ValueError(
            f"Environment {index}: {method} returned {what}, but must return {count}: {names}."
        )
    return answer


class SingleEnvs(StreamEnvs):
    """Single Gymnasium environments, stepped one after the other in this process.

    Like `gymnasium.vector.SyncVectorEnv` in NEXT_STEP mode, but faulty environments are named
    and an observation is copied once.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env], frame_stack: int = 1, action_masks: bool = False
    ) -> None:
        env = envs[0]
        name = env.spec.id if env.spec else str(env)
        stacked: Any = env  # its own space may say no more that a number is a category
        space = stacked.env.observation_space if frame_stack > 1 else env.observation_space
        spec = spec_from_spaces(space, env.action_space, name, frame_stack, action_masks)
        self._leaves = ObservationLeaves(space, name, frame_stack)
        super().__init__(spec, len(envs), self._leaves.bounds())
        self._envs = list(envs)
        self._choices = Choices(env.action_space, name)

    def _reset_envs(self, seeds: Sequence[int]) -> Observation:
        leaves, mask = self._empty_leaves(), self._empty_mask()
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            value, info = _parts(index, "reset", env.reset(seed=seed), _RESET)
            self._store(leaves, index, value)
            if mask is not None:
                mask[index] = self._mask_of(index, info)
            self.offers_masks = "action_mask" in info
        self.action_mask = mask
        return whole_of(leaves)

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        leaves, mask = self._empty_leaves(), self._empty_mask()
        reward = np.zeros(self.num_envs, np.float64)
        terminated, truncated, life_lost = np.zeros((3, self.num_envs), np.bool_)
        own_actions = self._choices.actions(actions)
        for index, env in enumerate(self._envs):
            if self.retired[index]:
                for leaf in leaves.values():
                    leaf[index] = 0
                if mask is not None:
                    mask[index] = True
                continue
            if ended[index]:
                value, info = _parts(index, "reset", env.reset(), _RESET)
            else:
                answer = env.step(own_actions[index])
                value, gain, end, cut, info = _parts(index, "step", answer, _STEP)
                if not (type(gain) in _NUMBERS and type(end) in _FLAGS and type(cut) in _FLAGS):
                    _check_scalars(index, reward=gain, terminated=end, truncated=cut)
                reward[index], terminated[index], truncated[index] = gain, end, cut
            self._store(leaves, index, value)
            if mask is not None:
                mask[index] = self._mask_of(index, info)
        self.action_mask = mask
        return EnvStep(whole_of(leaves), reward, terminated, truncated, life_lost)

    def _close_envs(self) -> None:
        with contextlib.ExitStack() as closing:  # all of them, also if one fails
            for env in self._envs:
                closing.callback(env.close)

    def _empty_leaves(self) -> dict[str, npt.NDArray[np.generic]]:
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in self._declared.items()}

    def _empty_mask(self) -> npt.NDArray[np.bool_] | None:
        if not self.spec.action.masks:
            return None
        return np.empty((self.num_envs, self.spec.num_actions), np.bool_)

    def _mask_of(self, index: int, info: dict[str, Any]) -> npt.NDArray[np.bool_]:
        spec = self.spec.action
        return _read_mask(info, (sum(spec.branches),), spec, f"environment {index}")

    def _store(
        self, leaves: dict[str, npt.NDArray[np.generic]], index: int, observation: Observation
    ) -> None:
        whose = f"Environment {index}"
        given = self._leaves.of(observation, whose)
        for name, array in leaves.items():
            array[index] = self._leaves.read(name, given[name], array.shape[1:], whose)


class NativeVectorEnvs(StreamEnvs):
    """An environment's own vector implementation (its `vector_entry_point`).

    Its environments share one random generator, which is seeded from all seeds of a reset.
    """

    def __init__(self, envs: VectorEnv, name: str, action_masks: bool = False) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"The vector environment of {name} declares the autoreset mode {mode}, but only "
                f"{AutoresetMode.NEXT_STEP} is supported: pass the mode in env.kwargs if it has "
                "such an option, or add any wrapper to env.wrappers to step single environments."
            )
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        spec = spec_from_spaces(observation_space, action_space, name, action_masks=action_masks)
        self._leaves = ObservationLeaves(observation_space, name)
        super().__init__(spec, envs.num_envs, self._leaves.bounds())
        self._envs = envs
        self._choices = Choices(action_space, name)

    def _reset_envs(self, seeds: Sequence[int]) -> Observation:
        seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        observation, info = self._envs.reset(seed=seed)
        self.offers_masks = "action_mask" in info
        self._take_mask(info)
        return self._converted(observation)

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        observation, reward, terminated, truncated, info = self._envs.step(
            self._choices.actions(actions)
        )
        self._take_mask(info)
        return EnvStep(
            self._converted(observation),
            np.array(reward, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            np.zeros(self.num_envs, np.bool_),
        )

    def _close_envs(self) -> None:
        self._envs.close()

    def _take_mask(self, info: dict[str, Any]) -> None:
        if self.spec.action.masks:
            shape = (self.num_envs, self.spec.num_actions)
            self.action_mask = _read_mask(info, shape, self.spec.action, "the vector environment")

    def _converted(self, observation: Observation) -> Observation:
        whose, converted = "The vector environment", dict[str, npt.NDArray[Any]]()
        given = self._leaves.of(observation, whose)
        for name, (shape, dtype) in self._declared.items():
            value = self._leaves.read(name, given[name], shape, whose)
            converted[name] = np.array(value, dtype)  # a copy: buffers may be reused
        return whole_of(converted)


class Gymnasium(EnvKind):
    """An environment by its id in Gymnasium's registry, or made by a function or class."""

    @override
    def make(self, num_envs: int, *, training: bool, num_threads: int) -> StreamEnvs:
        config = self.env
        if config.factory is None:
            name = _registered_name(config)
            if _is_native_vector_better(config, name, num_envs, training):
                native = _make_native(config, name, num_envs)
                return NativeVectorEnvs(native, config.id, config.action_masks)
        envs: list[gymnasium.Env] = []
        with contextlib.ExitStack() as closing:  # those before one that cannot be made
            for _ in range(num_envs):
                envs.append(_make_single(config))
                closing.callback(envs[-1].close)
            if len({id(env.unwrapped) for env in envs}) < num_envs:
                raise ConfigError(
                    f"{config.source} returned the same environment twice, but must make a new one "
                    "at each call."
                )
            made = SingleEnvs(envs, config.frame_stack, config.action_masks)
            closing.pop_all()
        return made

    @override
    def make_rendered(self) -> RenderedEnv:
        return RenderedGymnasium(self.env)

    @override
    def protocol(self, epsilon: float, max_frames: int) -> str:
        return GYMNASIUM


class RenderedGymnasium(RenderedEnv):
    """A Gymnasium environment with `render_mode="rgb_array"`.

    Actions are called what the environment's `get_action_meanings` says, if it has one, otherwise
    by their numbers.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._source = config.source
        if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else SDL complains of no screen
        with warnings.catch_warnings():  # what follows says it better
            warnings.filterwarnings("ignore", message=".*initialised with render_mode")
            try:
                self._env = _make_single(replace(config, kwargs={**config.kwargs, **_PICTURES}))
            except (Exception, SystemExit) as error:
                # Raises if it cannot be made at all.
                Gymnasium(config).make(1, training=False, num_threads=1).close()
                raise self._no_pictures("it does not take render_mode='rgb_array'") from error
        self.envs = SingleEnvs([self._env], config.frame_stack, config.action_masks)
        self.fps = float(self._env.metadata.get("render_fps") or _DEFAULT_FPS)
        meanings = getattr(self._env.unwrapped, "get_action_meanings", None)
        self.action_names = _names(self.envs.spec.action, meanings() if meanings else ())
        self.reset(0)
        self.picture()

    @override
    def picture(self) -> npt.NDArray[np.uint8]:
        try:
            picture = self._env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            ours = "pygame is not installed: pip install 'lrl[video]'"  # one command, not two
            raise self._no_pictures(ours if "pygame" in str(error) else str(error)) from error
        except (NotImplementedError, gymnasium.error.Error) as error:
            raise self._no_pictures(str(error) or "it has no method render") from error
        except Exception as error:  # such as MuJoCo's, without a display
            raise self._no_pictures(f"render raised {type(error).__name__}: {error}") from error
        if not isinstance(picture, np.ndarray) or picture.shape[2:] != (3,):
            what = getattr(picture, "shape", type(picture).__name__)
            raise self._no_pictures(f"render returned {what} instead of [height, width, 3]")
        if picture.dtype != np.uint8:
            raise self._no_pictures(f"render returned {picture.dtype} instead of bytes (uint8)")
        return picture.copy()  # it may be drawn over

    def _no_pictures(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._source} cannot be filmed: {reason}")


class _Copies(gymnasium.ObservationWrapper):
    """Gives copies of observations, since an environment may write its next one over the last."""

    @override
    def observation(self, observation: Any) -> Any:
        return copy.deepcopy(observation)


def _names(spec: ActionSpec, given: Sequence[object]) -> list[str]:
    """Return the names that the environment has of all choices, or their numbers."""
    if len(given) == sum(spec.branches):
        return [str(name) for name in given]
    if len(spec.branches) == 1:
        return [str(choice) for choice in range(spec.branches[0])]
    sizes = enumerate(spec.branches)
    return [f"{branch}: {choice}" for branch, size in sizes for choice in range(size)]


def _make_single(config: EnvConfig) -> gymnasium.Env:
    """Build one environment with its wrappers and its stack of frames."""
    env = _from_registry(config) if config.factory is None else _from_factory(config)
    for index, wrapper in enumerate(config.wrappers):
        env = _wrap(env, wrapper, f"env.wrappers[{index}]")
    if config.frame_stack == 1:
        return env
    return FrameStackObservation(_Copies(env), config.frame_stack)


def _registered_name(config: EnvConfig) -> str:
    """Import the module of an id `module:Name-v0`; return the name in Gymnasium's registry."""
    module, _, name = config.id.rpartition(":")
    safety.check_entry_point(module or None, "env.id", config.id)
    try:
        if module:
            import_module(module)
        spec = gymnasium.spec(name)
    except (Exception, SystemExit) as error:  # whatever a module of the user's does
        if module in ("", "ale_py"):
            _refuse_old_atari_id(config.id)
        raise ConfigError(
            f"env.id is {config.id!r}, which cannot be made: {_reason(error)} An environment "
            "outside Gymnasium is written 'module:Name-v0', with the module that registers it."
        ) from error
    for entry in (spec.entry_point, spec.vector_entry_point):
        safety.check_entry_point(entry, "env.id", config.id)
    if str(spec.entry_point).startswith("ale_py"):  # such as ale_py:Pong-v4
        _refuse_old_atari_id(config.id)
    return name


def _refuse_old_atari_id(env_id: str) -> None:
    from lrl.envs.atari import refuse_old_id  # ale-py takes 0.4 s

    refuse_old_id(env_id)


def _is_native_vector_better(config: EnvConfig, name: str, num_envs: int, training: bool) -> bool:
    spec = gymnasium.spec(name)
    is_wrapped = spec.additional_wrappers or config.wrappers or config.frame_stack > 1
    if spec.vector_entry_point is None or is_wrapped:
        return False
    return spec.entry_point is None or (training and num_envs >= NATIVE_VECTOR_FROM)


def _make_native(config: EnvConfig, name: str, num_envs: int) -> gymnasium.vector.VectorEnv:
    limit = config.max_episode_steps
    kwargs = config.kwargs if limit is None else {**config.kwargs, "max_episode_steps": limit}
    return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)


def _from_registry(config: EnvConfig) -> gymnasium.Env:
    return gymnasium.make(
        _registered_name(config),
        max_episode_steps=config.max_episode_steps,
        disable_env_checker=True,  # it warns, costs time, and StreamEnvs checks every step
        **config.kwargs,
    )


def _from_factory(config: EnvConfig) -> gymnasium.Env:
    env = factory_of(config)(**config.kwargs)
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


def factory_of(config: EnvConfig) -> Callable[..., Any]:
    """Import the factory of an environment."""
    with blamed_on(f"{config.source} cannot be imported"):
        return factory.find(str(config.factory))


def _time_limit(env: gymnasium.Env) -> int | None:
    """Return the limit of an outer `TimeLimit`, the smallest of several."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


@contextlib.contextmanager
def blamed_on(what: str) -> Iterator[None]:
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
    said = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    frame = next(frame for frame in reversed(frames) if "importlib" not in frame.filename)
    if isinstance(error, ModuleNotFoundError) and frame.filename in (factory.__file__, __file__):
        return f"{said}: start lrl in its folder, or put that on PYTHONPATH"
    return f"{said} ({frame.filename}, line {frame.lineno})."


def _wrap(env: gymnasium.Env, wrapper: WrapperConfig, name: str) -> gymnasium.Env:
    module, _, class_name = wrapper.path.rpartition(".")
    safety.check_path(wrapper.path, f"{name}.path", safety.WRAPPERS)
    with blamed_on(f"{name}.path is {wrapper.path!r}, which cannot be imported"):
        wrapper_class = getattr(import_module(module), class_name)
    if not (isinstance(wrapper_class, type) and issubclass(wrapper_class, gymnasium.Wrapper)):
        raise ConfigError(f"{name}.path is {wrapper.path!r}, which is not a gymnasium.Wrapper.")
    with blamed_on(f"{name}.kwargs is {wrapper.kwargs}"):
        return wrapper_class(env, **wrapper.kwargs)
