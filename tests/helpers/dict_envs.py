"""Environments whose observations have leaves, and an encoder for some; actors import this."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from lrl.networks import Encoder
from lrl.testing import LedgerEnv

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


class NestedLedger(LedgerEnv):
    """The ledger's frame as a leaf among others of all kinds, which are functions of it."""

    def __init__(self, end_probability: float = 0.1) -> None:
        super().__init__(end_probability)
        self.observation_space = Dict(
            frame=self.observation_space,
            moods=Tuple((Discrete(3, start=5), Dict(bits=MultiBinary(4), digits=_DIGITS))),
            clock=Box(0, np.inf, (), np.float64),
        )

    def _frame(self) -> Any:
        frame = super()._frame()
        leaves = nested_leaves(frame)
        bits, digits = leaves["moods.1.bits"].astype(np.int8), leaves["moods.1.digits"]
        mood = int(leaves["moods.0"]) + 5
        moods = (mood, {"digits": digits + _DIGITS.start, "bits": bits})
        return {"moods": moods, "clock": np.float64(leaves["clock"]), "frame": frame}


_DIGITS = MultiDiscrete(np.array([[4, 5], [6, 300]]), start=np.array([[1, 0], [-3, 2]]))


def nested_leaves(frame: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the columns of `NestedLedger` hold beside frames `[..., 5, 4]`."""
    _, episode, time = np.moveaxis(LedgerEnv.decode(frame), -1, 0)
    digits = np.stack([time, episode, time, 7 * time], axis=-1) % [4, 5, 6, 300]
    return {
        "clock": time.astype(np.float32),
        "frame": frame,
        "moods.0": time % 3,
        "moods.1.bits": (time[..., None] >> np.arange(4)) % 2 == 1,
        "moods.1.digits": digits.reshape(*digits.shape[:-1], 2, 2),
    }


def assert_nested(leaves: Any) -> np.ndarray:
    """Check that observations or frames belong together, leaf by leaf; return the ledger's."""
    expected = nested_leaves(np.asarray(leaves["frame"]))
    assert list(leaves) == list(expected)
    for name, leaf in expected.items():
        np.testing.assert_array_equal(np.asarray(leaves[name]), leaf, err_msg=name)
    return expected["frame"]
