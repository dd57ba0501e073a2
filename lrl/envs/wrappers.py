"""Wrappers for `env.wrappers` that Gymnasium has none of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from numbers import Integral
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from typing_extensions import override

from lrl.envs.spaces import Choices, joined_masks
from lrl.types import ActionSpec, ConfigError

_MOST_JOINT_ACTIONS = 4096


class ChannelsFirst(gymnasium.ObservationWrapper):
    """Move the last axis of observations to the front, where torch's convolutions look for it.

    Args:
        env: Has Box observations of two axes or more, such as `[height, width, channels]`.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) < 2:
            raise ConfigError(
                f"env.wrappers: ChannelsFirst needs Box observations of at least 2 axes, not "
                f"{space}: leave it out."
            )
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    @override
    def observation(self, observation: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.moveaxis(observation, -1, 0)


class KeepEntries(gymnasium.ObservationWrapper):
    """Keep some entries of an observation and hide the others.

    Positions without velocities make an environment that only an agent with a memory can play well
    (`configs/cartpole_masked.yaml`).

    Args:
        env: Has Box observations of one axis.
        entries: Numbers of the entries that are kept, counted from 0.
    """

    def __init__(self, env: gymnasium.Env, entries: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(
                f"env.wrappers: KeepEntries needs Box observations of one axis, not {space}: leave "
                "it out."
            )
        self._entries = list(entries)
        known = range(space.shape[0])
        if not self._entries or not all(
            isinstance(each, Integral) and not isinstance(each, bool) and each in known
            for each in self._entries
        ):
            raise ConfigError(
                f"env.wrappers: KeepEntries.entries is {self._entries}, but observations have the "
                f"entries 0 to {space.shape[0] - 1}: name at least one of them"
            )
        low, high = (bound[self._entries] for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    @override
    def observation(self, observation: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return observation[self._entries]


class LastStep(gymnasium.Wrapper):
    """Show with each observation the action before it and what that was rewarded with.

    An agent with a memory can make something of both (Kapturowski et al. 2019, R2D2). Observations
    are then Dicts of `observation`, `action` (0 where an episode begins, else the action's number
    and 1) and `reward`, for `lrl.networks.MultiEncoder` or an encoder of one's own.

    Args:
        env: Has Discrete actions.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        actions = env.action_space
        if not isinstance(actions, Discrete):
            raise ConfigError(
                f"env.wrappers: LastStep needs Discrete actions, not {actions}: leave it out."
            )
        self._start = int(actions.start)
        self.observation_space = Dict(
            observation=env.observation_space,
            action=Discrete(int(actions.n) + 1),
            reward=Box(-np.inf, np.inf, (1,), np.float32),
        )

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with(observation, 0, 0.0), info

    @override
    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = self._with(observation, int(action) - self._start + 1, float(reward))
        return shown, reward, terminated, truncated, info

    def _with(self, observation: Any, action: int, reward: float) -> dict[str, Any]:
        rewarded = np.array([reward], np.float32)
        return {"observation": observation, "action": action, "reward": rewarded}


class Luminance(gymnasium.ObservationWrapper):
    """Turn colours `[..., 3]` into grey `[...]` by 0.299 R + 0.587 G + 0.114 B, as ale-py does.

    `gymnasium.wrappers.GrayscaleObservation` weighs them by 0.2125, 0.7154 and 0.0721: there pure
    red is 54 of 255, and 76 here.

    Args:
        env: Has uint8 Box observations whose last axis is 3 colours.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or space.dtype != np.uint8 or space.shape[-1:] != (3,):
            raise ConfigError(
                "env.wrappers: Luminance needs uint8 Box observations with 3 colours as their last "
                f"axis, not {space}: leave it out."
            )
        self.observation_space = Box(0, 255, space.shape[:-1], np.uint8)

    @override
    def observation(self, observation: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.rint(observation @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


class Discretize(gymnasium.ActionWrapper):
    """Cut each dimension of Box actions into evenly spaced values, both ends included.

    The actions are then MultiDiscrete, a branch for each dimension, or Discrete if there is one.

    Args:
        env: Has Box actions with finite bounds.
        bins: Values of each dimension, at least 2; of whole numbers, at most as many as there are.

    Reference: Tavakoli et al. 2018, https://arxiv.org/abs/1711.08946, who take 33.
    """

    def __init__(self, env: gymnasium.Env, bins: int) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, Box) or space.dtype.kind not in "fiu":
            raise ConfigError(
                f"env.wrappers: Discretize needs Box actions, not {space}: leave it out."
            )
        if not np.isfinite([space.low, space.high]).all():
            raise ConfigError(
                f"env.wrappers: Discretize needs actions with finite bounds, not {space}: put a "
                "wrapper of your own before it whose action_space has them."
            )
        if not isinstance(bins, int) or bins < 2:
            raise ConfigError(
                "env.wrappers: the bins of Discretize must be a whole number of at least 2, the "
                f"same for each dimension, not {bins!r}."
            )
        self._shape, self._dtype = space.shape, space.dtype
        self._values = np.linspace(
            space.low.flatten(), space.high.flatten(), bins, dtype=np.float64
        )
        if space.dtype.kind != "f":
            fewest = int((self._values[-1] - self._values[0]).min()) + 1
            if bins > fewest:
                raise ConfigError(
                    f"env.wrappers: the bins of Discretize are {bins}, but of the whole numbers of "
                    f"{space} a dimension has {fewest}: set them to that, or fewer."
                )
            np.rint(self._values, out=self._values)
        dimensions = self._values.shape[1]
        self.action_space = (
            Discrete(bins) if dimensions == 1 else MultiDiscrete(np.full(dimensions, bins))
        )

    @override
    def action(self, action: Any) -> npt.NDArray[np.number]:
        choices = np.reshape(action, -1)
        values = self._values[choices, np.arange(len(choices))]
        return values.astype(self._dtype).reshape(self._shape)


class JointActions(gymnasium.Wrapper):
    """Turn choices in several branches into one of all their combinations, numbered row by row.

    So agents learn a value of each combination, where branches have values of their own. The last
    branch changes fastest. Masks in `info` allow a combination if all its choices are allowed.

    Args:
        env: Has MultiDiscrete or MultiBinary actions, of at most 4,096 combinations.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._choices = Choices(env.action_space, str(env))
        branches = self._choices.branches
        if len(branches) == 1:
            raise ConfigError(
                f"env.wrappers: JointActions needs several branches, not {env.action_space}: leave "
                "it out."
            )
        if prod(branches) > _MOST_JOINT_ACTIONS:
            raise ConfigError(
                f"env.wrappers: JointActions would make {prod(branches):,} actions of {branches}, "
                f"more than {_MOST_JOINT_ACTIONS:,}: leave it out, so that each has values of its "
                "own."
            )
        self.action_space = Discrete(prod(branches))

    @override
    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**settings)
        return observation, self._with_joint_mask(info)

    @override
    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        choices = np.array([np.unravel_index(int(action), self._choices.branches)])
        own = self._choices.actions(choices)[0]
        observation, reward, terminated, truncated, info = self.env.step(own)
        return observation, reward, terminated, truncated, self._with_joint_mask(info)

    def _with_joint_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        if "action_mask" not in info:
            return info
        branches, mask = self._choices.branches, joined_masks(info["action_mask"])
        if mask.shape != (sum(branches),):
            raise ValueError(
                f"info['action_mask'] must have the shape {(sum(branches),)}, a number per choice "
                f"of all {len(branches)} branches, but has {mask.shape}."
            )
        masks = ActionSpec(branches).split(mask)
        joint = reduce(np.multiply.outer, [mask.astype(np.bool_) for mask in masks])
        return {**info, "action_mask": joint.reshape(-1).astype(np.int8)}
