"""An environment whose observations are a Dict, and an encoder for them; actors import this."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from lrl.networks import Encoder

LENGTH, SIGNALS = 10, 4


class Signals(gymnasium.Env):
    """Answer the signal that is lit; where the direction is -1, count signals from the other end.

    What is right follows from both leaves together: whoever sees one of them alone is right in half
    of the steps at most. Both tell the step of the episode, so that they can be found to belong
    together.
    """

    observation_space = Dict(
        {
            "image": Box(0, 255, (SIGNALS, 5, 5), np.uint8),
            "speed": Box(-1.0, 1.0, (2,), np.float32),
        }
    )
    action_space = Discrete(SIGNALS)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self):
        return np.full((8, 8, 3), self._step, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._step = 0
        return self._next(), {}

    def step(self, action: int):
        reward = float(action == self._right)
        self._step += 1
        return self._next(), reward, self._step == LENGTH, False, {}

    def _next(self) -> dict[str, Any]:
        signal, forward = self.np_random.integers(SIGNALS), self.np_random.integers(2)
        self._right = signal if forward else SIGNALS - 1 - signal
        image = np.zeros((SIGNALS, 5, 5), np.uint8)
        image[signal, 1:] = 255
        image[:, 0] = self._step
        speed = np.array([2 * forward - 1, self._step / LENGTH], np.float32)
        return {"speed": speed, "image": image}  # not in the order of the space


class BothLeaves(Encoder):
    """Layers of their own for image and speed, then one for both together."""

    def __init__(self, observation_shape: Mapping[str, tuple[int, ...]], units: int = 32) -> None:
        super().__init__()
        self.image = nn.Linear(prod(observation_shape["image"]), units)
        self.speed = nn.Linear(prod(observation_shape["speed"]), units)
        self.both = nn.Linear(2 * units, units)
        self.num_features = units

    def encode(self, observation: Mapping[str, Tensor]) -> Tensor:
        image, speed = (observation[name].flatten(1) for name in ("image", "speed"))
        assert image.dtype == speed.dtype == torch.float32
        assert image.max() <= 1.0
        parts = torch.cat((self.image(image), self.speed(speed)), dim=1)
        return self.both(parts.relu()).relu()
