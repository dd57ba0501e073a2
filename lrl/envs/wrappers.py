"""Wrappers for `env.wrappers` that Gymnasium has none of."""

from __future__ import annotations

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from typing_extensions import override

from lrl.types import ConfigError


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
