"""Factories of environments, good and bad; actors import this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit


class Corridor(gymnasium.Env):
    """Walk right along a corridor; each step costs 0.5, the end pays 1."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.length, self.render_mode, self.position = length, render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action: int):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        at_end = self.position == self.length
        return self._observation(), 1.0 if at_end else -0.5, at_end, False, {}

    def render(self):
        return np.full((8, 8, 3), self.position, np.uint8)

    def _observation(self):
        return np.array([self.position / self.length], np.float32)


class MaskedCorridor(Corridor):
    """Tells that both actions are allowed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = super().reset(seed=seed)
        return observation, {**info, "action_mask": np.ones(2, np.int8)}

    def step(self, action: int):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": np.ones(2, np.int8)}


def make_corridor(length: int = 4, limit: int | None = None, **kwargs: Any) -> gymnasium.Env:
    env = Corridor(length, **kwargs)
    return env if limit is None else TimeLimit(env, limit)


def make_text() -> str:
    return "a corridor"


def make_vector():
    return gymnasium.make_vec("CartPole-v1", 2)


def fail() -> gymnasium.Env:
    raise RuntimeError("the corridor is closed")


_SHARED = Corridor()


def make_shared() -> gymnasium.Env:
    return _SHARED


NOT_CALLABLE = 3
