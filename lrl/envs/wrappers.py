"""Wrappers for `env.wrappers` that Gymnasium has none of."""

from __future__ import annotations

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from lrl.types import ConfigError


class ChannelsFirst(gymnasium.ObservationWrapper):
    """Move the last axis of observations to the front, where torch's convolutions look for it.

    Args:
        env: Has Box observations of two axes or more, such as `[height, width, channels]`.

    Raises:
        ConfigError: It has others.
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

    def observation(self, observation: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return a view `[channels, ...]` of an observation `[..., channels]`."""
        return np.moveaxis(observation, -1, 0)
