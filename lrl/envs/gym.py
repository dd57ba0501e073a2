"""Gymnasium environments as stream environments: single ones in a loop, or a native vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv

from lrl.envs.vector import Bounds, EnvStep, StreamEnvs
from lrl.types import ConfigError, EnvSpec

_KEPT_DTYPES = {np.dtype(np.uint8): "uint8", np.dtype(np.bool_): "bool"}

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
    """Describe an environment by its spaces; refuse spaces that lrl cannot handle."""
    if not isinstance(observation_space, Box) or observation_space.dtype.kind not in "fiub":
        raise ConfigError(
            f"{name} has the observation space {observation_space}, but only Box with real numbers "
            "is supported: add a wrapper such as gymnasium.wrappers.FlattenObservation to "
            "env.wrappers."
        )
    if not isinstance(action_space, Discrete):
        raise ConfigError(
            f"{name} has the action space {action_space}, but only Discrete is supported."
        )
    return EnvSpec.box(
        observation_shape=observation_space.shape,
        observation_dtype=_network_dtype(observation_space.dtype),
        num_actions=int(action_space.n),
        frame_stack=frame_stack,
        action_masks=action_masks,
    )


def _first_action(action_space: Space) -> int:
    return int(action_space.start) if isinstance(action_space, Discrete) else 0


def _network_dtype(dtype: np.dtype) -> str:
    return _KEPT_DTYPES.get(dtype, "float32")  # which holds integers exactly up to 2**24


def _read_mask(info: dict[str, Any], shape: tuple[int, ...], name: str) -> npt.NDArray[np.bool_]:
    """Return `info["action_mask"]`, which must have that shape, as an array of its own."""
    if "action_mask" not in info:
        raise ConfigError(
            f"env.action_masks is true, but {name} gave no info['action_mask']: it must come with "
            "every reset and step; otherwise leave env.action_masks false."
        )
    mask = np.asarray(info["action_mask"])
    if mask.shape != shape:
        raise ValueError(
            f"info['action_mask'] of {name} must have the shape {shape}, a number per action, but "
            f"has {mask.shape}."
        )
    return mask.astype(np.bool_)


def _check_scalars(index: int, **answers: object) -> None:
    """Refuse what numpy would take for a number or a flag and is none, such as a string."""
    for name, answer in answers.items():
        value = np.asarray(answer)
        if value.shape != () or value.dtype.kind not in "fiub":
            raise ValueError(
                f"Environment {index}: {name} is {answer!r:.200}, but must be "
                f"{'a number' if name == 'reward' else 'true or false'}."
            )


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
        spec = spec_from_spaces(
            env.observation_space, env.action_space, name, frame_stack, action_masks
        )
        assert isinstance(env.observation_space, Box)
        super().__init__(spec, len(envs), Bounds(env.observation_space))
        self._envs = list(envs)
        self._first_action = _first_action(env.action_space)

    def _reset_envs(self, seeds: Sequence[int]) -> npt.NDArray[np.generic]:
        observation, mask = self._empty_observation(), self._empty_mask()
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            value, info = env.reset(seed=seed)
            self._store(observation, index, value)
            if mask is not None:
                mask[index] = _read_mask(info, mask.shape[1:], f"environment {index}")
            self.offers_masks = "action_mask" in info
        self.action_mask = mask
        return observation

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        observation, mask = self._empty_observation(), self._empty_mask()
        reward = np.zeros(self.num_envs, np.float64)
        terminated, truncated, life_lost = np.zeros((3, self.num_envs), np.bool_)
        first = self._first_action
        for index, env in enumerate(self._envs):
            if self.retired[index]:
                observation[index] = 0
                if mask is not None:
                    mask[index] = True
                continue
            if ended[index]:
                value, info = env.reset()
            else:
                value, gain, end, cut, info = env.step(actions[index] + first)
                if not (type(gain) in _NUMBERS and type(end) in _FLAGS and type(cut) in _FLAGS):
                    _check_scalars(index, reward=gain, terminated=end, truncated=cut)
                reward[index], terminated[index], truncated[index] = gain, end, cut
            self._store(observation, index, value)
            if mask is not None:
                mask[index] = _read_mask(info, mask.shape[1:], f"environment {index}")
        self.action_mask = mask
        return EnvStep(observation, reward, terminated, truncated, life_lost)

    def _close_envs(self) -> None:
        for env in self._envs:
            env.close()

    def _empty_observation(self) -> npt.NDArray[np.generic]:
        return np.empty((self.num_envs, *self.spec.observation_shape), self.spec.observation_dtype)

    def _empty_mask(self) -> npt.NDArray[np.bool_] | None:
        if not self.spec.action.masks:
            return None
        return np.empty((self.num_envs, self.spec.num_actions), np.bool_)

    def _store(self, observation: npt.NDArray[np.generic], index: int, value: object) -> None:
        value = np.asarray(value)
        _check_declared(value, self.spec.observation_shape, self.spec, f"Environment {index}")
        observation[index] = value


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
        assert isinstance(observation_space, Box)
        super().__init__(spec, envs.num_envs, Bounds(observation_space))
        self._envs = envs
        self._first_action = _first_action(action_space)

    def _reset_envs(self, seeds: Sequence[int]) -> npt.NDArray[np.generic]:
        seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        observation, info = self._envs.reset(seed=seed)
        self.offers_masks = "action_mask" in info
        self._take_mask(info)
        return self._converted(observation)

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        observation, reward, terminated, truncated, info = self._envs.step(
            actions + self._first_action
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
            self.action_mask = _read_mask(info, shape, "the vector environment")

    def _converted(self, observation: npt.ArrayLike) -> npt.NDArray[np.generic]:
        value = np.asarray(observation)
        shape = (self.num_envs, *self.spec.observation_shape)
        _check_declared(value, shape, self.spec, "The vector environment")
        return np.array(value, self.spec.observation_dtype)  # a copy: buffers may be reused


def _check_declared(
    value: npt.NDArray[Any], shape: tuple[int, ...], spec: EnvSpec, whose: str
) -> None:
    dtype = spec.observation_dtype
    is_number = value.dtype.kind in "biuf"
    if value.shape != shape or not is_number or _network_dtype(value.dtype) != dtype:
        raise ValueError(
            f"{whose}: the observation was declared {dtype} {shape}, but came as {value.dtype} "
            f"{value.shape}."
        )
