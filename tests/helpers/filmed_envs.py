"""An environment whose pictures say what it knows, and ways to draw none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Diary(gymnasium.Env):
    """Random rewards that depend on the seed and the actions; the picture tells time and return.

    A picture is 6 by 10 pixels of one colour: red is the time, green the return plus 100 (both
    modulo 256).

    Args:
        length: Steps of an episode.
        draws: `pictures`, or what is wrong with them: `nothing`, `text`, `no method`, `no package`,
            `no pygame`, `an error`, `shares`.
        render_mode: As Gymnasium has it.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(
        self, length: int = 12, draws: str = "pictures", render_mode: str | None = None
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._length, self._draws = length, draws
        self._time, self._total = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._time, self._total = 0, 0
        return self._observation(), {}

    def step(self, action: int):
        reward = int(self.np_random.integers(-2, 3)) * (1 + int(action))
        self._time, self._total = self._time + 1, self._total + reward
        return self._observation(), float(reward), self._time == self._length, False, {}

    def render(self) -> Any:
        if self.render_mode != "rgb_array" or self._draws == "nothing":
            return None
        if self._draws == "no method":
            return super().render()
        if self._draws in ("no package", "no pygame"):
            missing = "pygame" if self._draws == "no pygame" else "paint"
            raise gymnasium.error.DependencyNotInstalled(
                f"{missing} is not installed: ask its maker"
            )
        if self._draws == "text":
            return f"time {self._time}"
        if self._draws == "an error":
            raise RuntimeError("gladLoadGL error")
        if self._draws == "shares":
            return np.zeros((6, 10, 3), np.float32)
        picture = np.zeros((6, 10, 3), np.uint8)
        picture[:, :, 0], picture[:, :, 1] = self._time % 256, (self._total + 100) % 256
        return picture

    def _observation(self):
        return np.array([self._time, self._total], np.float32)


DIARY = f"{__name__}:Diary-v0"
if "Diary-v0" not in gymnasium.registry:
    gymnasium.register("Diary-v0", entry_point=f"{__name__}:Diary")
