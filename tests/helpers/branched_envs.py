"""Environments whose actions have several numbers; actors import this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from helpers.filmed_envs import Diary
from lrl.envs.toy import Dials


class BranchedDiary(Diary):
    """A `Diary` with two branches, whose numbers are added."""

    def __init__(self, length: int = 12, render_mode: str | None = None) -> None:
        super().__init__(length, render_mode=render_mode)
        self.action_space = MultiDiscrete([2, 3])

    def step(self, action: Any):
        assert action in self.action_space
        return super().step(int(action.sum()))


class TwoThrusters(gymnasium.Env):
    """Two continuous actions; the reward is their sum."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return np.zeros(1, np.float32), {}

    def step(self, action: npt.NDArray[np.float32]):
        assert action in self.action_space
        return np.zeros(1, np.float32), float(action.sum()), False, False, {}


class FlatDials(Dials):
    """`Dials` as somebody would flatten them by hand: one action for each setting of both."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = Discrete(15)

    def reset(self, **settings: Any):
        observation, info = super().reset(**settings)
        return observation, self._flat(info)

    def step(self, action: Any):
        setting = np.array(divmod(int(action), 5))
        observation, reward, terminated, truncated, info = super().step(setting)
        return observation, reward, terminated, truncated, self._flat(info)

    def _flat(self, info: dict[str, Any]) -> dict[str, Any]:
        if not info:
            return info
        first, second = info["action_mask"]
        return {"action_mask": np.array([a * b for a in first for b in second])}
