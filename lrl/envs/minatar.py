"""MinAtar: five Atari games on a board of 10x10 cells (extra `minatar`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from typing_extensions import override

from lrl.types import ConfigError

ACTIONS = ("NOOP", "LEFT", "UP", "RIGHT", "DOWN", "FIRE")
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")

_COLOURS = np.array(  # of nothing, of what the player moves, and of the other channels
    [
        (16, 16, 24), (90, 200, 250), (240, 90, 80), (120, 70, 90), (250, 200, 70),
        (110, 200, 110), (190, 120, 230), (250, 140, 60), (80, 120, 230), (200, 200, 200),
        (240, 150, 200),
    ],
    np.uint8,
)  # fmt: skip


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
        render_mode: `rgb_array` lets `render` draw the board.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        repeat_action_probability: float = 0.1,
        difficulty_ramping: bool = True,
        minimal_actions: bool = False,
        render_mode: str | None = None,
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
        self.render_mode = render_mode

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.last_action = 0
        self._game.reset()
        return self._observation(), {}

    @override
    def step(self, action: int):
        reward, terminated = self._game.act(self._actions[action])
        return self._observation(), float(reward), bool(terminated), False, {}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return the board, uint8 `[10, 10, 3]`; of several things in a cell the last channel's."""
        if self.render_mode != "rgb_array":
            return None
        state = self._game.state()
        return _COLOURS[(state * (1 + np.arange(state.shape[-1]))).max(axis=-1)]

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return [ACTIONS[action] for action in self._actions]

    def _observation(self) -> npt.NDArray[np.bool_]:
        return np.moveaxis(self._game.state(), -1, 0)
