"""The environment of an agent's evaluation, as a plain `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from lrl.envs import EnvConfig, make_envs, make_rendered
from lrl.types import ActionSpec, Column, Observation, leaves_of, map_leaves


class PlayedEnv(gymnasium.Env):
    """One environment with all its preprocessing, as evaluation makes it: rewards are raw.

    Observations are what the agent takes: frames are stacked, nested Dicts and Tuples are a Dict
    with the names of leaves, and categories are numbered from 0, as actions are. Where the
    environment says which actions are allowed, `info["action_mask"]` does.

    Args:
        config: Its settings.
        render_mode: None, or `rgb_array`, with which `render` returns a picture.
    """

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}, but must be None or 'rgb_array'")
        self.render_mode = render_mode
        self._rendered = make_rendered(config) if render_mode else None
        self._envs = self._rendered.envs if self._rendered else make_envs(config, 1, training=False)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": self._rendered.fps if self._rendered else None,
        }
        self.env_spec = self._envs.spec
        self.observation_space = observation_space(self.env_spec.observation)
        self.action_space = action_space(self.env_spec.action)
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the episode of a seed, or of one drawn from the last seed given."""
        if options:
            raise ValueError(
                f"options is {options!r}, but the episode begins as those of evaluation do: leave "
                "it out"
            )
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        rendered = self._rendered
        observation = rendered.reset(seed) if rendered else self._envs.reset([seed])
        self._is_over = False
        return _first(observation), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action, numbered from 0: one number, or one for each branch."""
        if self._is_over:
            raise RuntimeError("there is no episode that goes on: call reset first")
        answer = (self._rendered or self._envs).step(np.asarray(action)[np.newaxis])
        ends = bool(answer.terminated[0]), bool(answer.truncated[0])
        self._is_over = any(ends)
        return _first(answer.observation), float(answer.reward[0]), *ends, self._info()

    def render(self) -> Any:
        """Return a picture `[height, width, 3]`, or None without a `render_mode`."""
        return self._rendered.picture() if self._rendered else None

    def close(self) -> None:
        """Release the environment; a second call does nothing."""
        (self._rendered or self._envs).close()

    def action_masks(self) -> npt.NDArray[np.bool_] | None:
        """Return which actions are allowed now, side by side over branches; None allows all."""
        mask = self._envs.action_mask
        return None if mask is None else mask[0]

    def _info(self) -> dict[str, Any]:
        mask = self.action_masks()
        return {} if mask is None else {"action_mask": mask}


def _first(observation: Observation) -> Observation:
    return map_leaves(lambda leaf: leaf[0], observation)


def observation_space(columns: Mapping[str, Column]) -> Space:
    """Return the space of what an agent takes: a Dict of leaves by name, or that of one alone."""
    if "" in columns:
        return _leaf_space(columns[""])
    return Dict({name: _leaf_space(column) for name, column in leaves_of(dict(columns)).items()})


def _leaf_space(column: Column) -> Space:
    shape = column.stacked_shape
    if column.categories:
        if not shape:
            return Discrete(column.categories[0])
        numbers = np.reshape(column.categories, column.shape)
        return MultiDiscrete(np.broadcast_to(numbers, shape).copy())
    low, high = {"uint8": (0, 255), "bool": (0, 1)}.get(column.dtype, (-np.inf, np.inf))
    return Box(low, high, shape, column.type.type)


def action_space(spec: ActionSpec) -> Space:
    """Return the space of an agent's actions, numbered from 0."""
    branches = list(spec.branches)
    return Discrete(branches[0]) if len(branches) == 1 else MultiDiscrete(branches)
