"""MinAtar: five Atari games on a board of 10x10 cells (extra `minatar`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from lrl.types import ConfigError

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def register_minatar() -> None:
    """Register `lrl/MinAtarBreakout-v0` and the other games; a second call does nothing."""
    for game in GAMES:
        env_id = f"lrl/MinAtar{game.title().replace('_', '')}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"{__name__}:MinAtar", kwargs={"game": game})


class MinAtar(gymnasium.Env):
    """One game: boolean observations `[channels, 10, 10]`, channels as the game defines them.

    The package's own Gymnasium class puts channels last and knows no seeded episodes: the action
    that a sticky step repeats outlives a reset.

    Reference: Young and Tian 2019, https://arxiv.org/abs/1903.03176. Their protocol is the
    default: all 6 actions, sticky actions, and a difficulty that rises during an episode.

    Args:
        game: One of `GAMES`.
        repeat_action_probability: Chance per step that the previous action is repeated.
        difficulty_ramping: Whether the games that do so get harder during an episode.
        minimal_actions: Only the actions that have a meaning in the game, instead of all 6.
    """

    def __init__(
        self,
        game: str,
        repeat_action_probability: float = 0.1,
        difficulty_ramping: bool = True,
        minimal_actions: bool = False,
    ) -> None:
        if game not in GAMES:
            raise ConfigError(f"env.kwargs.game is {game!r}, but must be one of {', '.join(GAMES)}")
        try:
            package = import_module("minatar")
        except ImportError as error:
            raise ConfigError(
                f"env.id needs the package minatar, which cannot be imported ({error}): "
                "pip install 'lrl[minatar]'"
            ) from error
        self._game = package.Environment(game, repeat_action_probability, difficulty_ramping)
        self._actions = self._game.minimal_action_set() if minimal_actions else range(6)
        height, width, channels = self._game.state_shape()
        boolean: Any = np.bool_  # which Box takes, but its annotation does not
        self.observation_space = Box(0, 1, (channels, height, width), boolean)
        self.action_space = Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.last_action = 0
        self._game.reset()
        return self._observation(), {}

    def step(self, action: int):
        """Take one of the actions; there is no time limit."""
        reward, terminated = self._game.act(self._actions[action])
        return self._observation(), float(reward), bool(terminated), False, {}

    def _observation(self) -> npt.NDArray[np.bool_]:
        return np.moveaxis(self._game.state(), -1, 0)
