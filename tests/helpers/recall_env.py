"""An environment that cannot be solved without memory; actors import this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

RECALL = "helpers.recall_env:Recall-v0"


class Recall(gymnasium.Env):
    """A cue is shown once; when it is asked for, some steps later, it must be named.

    The best return is 1; whoever has forgotten the cue gets 1 / cues on average.
    """

    def __init__(self, cues: int = 3, delay: int = 2, truncate: bool = False) -> None:
        self.observation_space = Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = Discrete(cues)
        self._cues, self._delay, self._truncate = cues, delay, truncate
        self._cue = self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self._cues))
        self._time = 0
        observation = self._blank()
        observation[self._cue] = 1.0
        return observation, {}

    def step(self, action: int):
        is_asked = self._time == self._delay
        self._time += 1
        observation = self._blank()
        observation[-1] = float(self._time == self._delay)
        reward = float(is_asked and action == self._cue)
        ends = is_asked and not self._truncate, is_asked and self._truncate
        return observation, reward, *ends, {}

    def _blank(self) -> npt.NDArray[np.float32]:
        return np.zeros(self._cues + 1, np.float32)


if "Recall-v0" not in gymnasium.registry:
    gymnasium.register("Recall-v0", entry_point=f"{__name__}:Recall")
