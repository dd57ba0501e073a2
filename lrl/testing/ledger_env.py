"""An environment whose every observation says where it is from."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from lrl.types import ConfigError

REMEMBERED_ACTIONS = 8
"""Actions that a frame remembers, 4 bits each: the longest window that can be checked alone."""
_MAX_ACTIONS = 16
_NUMBERS = struct.Struct(">5I")
_WEIGHTS = np.array([256**3, 256**2, 256, 1])
_MASK = 2**32 - 1

Number = TypeVar("Number", int, npt.NDArray[np.int64])


class LedgerEnv(gymnasium.Env):
    """Every observation says where it is from, and with the action what has to follow.

    Registered as `lrl/Ledger-v0`. A frame is uint8 `[5 * copies, 4]`. Its first five rows are
    numbers in base 256, highest digit first: the instance (the seed of the last seeded reset,
    modulo 2**32), the episode (0 for the seeded reset, then counting), the step within the
    episode, the last 8 actions of the episode (4 bits each, newest lowest), and a checksum of
    these four, which no change of one of them leaves alone. Rewards and ends are functions of
    instance, episode, step and action. `Ledger` checks what became of it all.

    No two environments of a run have the same seed, whatever their rank, actor or incarnation, so
    the instance stands for all of these; `ActorSlot.place_of` translates it.

    Args:
        end_probability: Chance per step that the episode ends, half of them by termination and
            half by truncation; its mean length is the inverse.
        num_actions: Number of actions, at most 16.
        copies: How often the five rows are repeated, for frames of any size.
    """

    def __init__(self, end_probability: float = 0.1, num_actions: int = 3, copies: int = 1) -> None:
        if not 1 <= num_actions <= _MAX_ACTIONS:
            raise ConfigError(f"num_actions is {num_actions}; it must be from 1 to {_MAX_ACTIONS}")
        if copies < 1:
            raise ConfigError(f"copies is {copies}; it must be at least 1")
        self.observation_space = Box(0, 255, (5 * copies, 4), np.uint8)
        self.action_space = Discrete(num_actions)
        self.optimal_return = float("nan")  # rewards are labels
        self._end_probability, self._copies = end_probability, copies
        self._instance = self._episode = self._time = self._actions = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin the next episode, or the first of an instance if there is a seed."""
        super().reset(seed=seed)
        self._episode += 1
        if seed is not None:
            self._instance, self._episode = seed & _MASK, 0
        self._time = self._actions = 0
        return self._frame(), {}

    def step(self, action: int):
        """Count a step, and remember the action."""
        action = int(action)
        reward = self.reward(self._episode, self._time, action)
        ends, by_termination = self._end(self._instance, self._episode, self._time, action)
        self._time += 1
        self._actions = (self._actions << 4 | action) & _MASK
        return self._frame(), reward, ends and by_termination, ends and not by_termination, {}

    @staticmethod
    def reward(episode: Number, time: Number, action: Number) -> Any:
        """Reward of an action taken at a step of an episode: a whole number from -8 to 8.

        Example:
            >>> LedgerEnv.reward(1, 2, 1)
            6.0
        """
        return ((31 * episode + 7 * time + 3 * action) % 17 - 8) * 1.0

    def ends(
        self, place: npt.NDArray[np.int64], action: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Tell which actions terminate and which truncate their episodes.

        Args:
            place: What `decode` read in the frames in which they were taken, `[..., 3]`.
            action: The actions `[...]`.
        """
        instance, episode, time = np.moveaxis(place, -1, 0)
        end, by_termination = self._end(instance, episode, time, action)
        return end & by_termination, end & ~by_termination

    @staticmethod
    def decode(frame: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        """Read frames `[..., 5 * copies, 4]` as `[..., 3]`: instance, episode, step.

        Example:
            >>> frame, _ = LedgerEnv().reset(seed=258)
            >>> frame[:3].tolist(), LedgerEnv.decode(frame).tolist()
            ([[0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]], [258, 0, 0])
        """
        return frame[..., :3, :].astype(np.int64) @ _WEIGHTS

    @staticmethod
    def decode_actions(frame: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        """Read the last actions before frames, newest first: `[..., 8]`; 0 where there were none.

        Example:
            >>> env = LedgerEnv(end_probability=0.0)
            >>> _ = env.reset(seed=0)
            >>> for action in (2, 0, 1):
            ...     frame = env.step(action)[0]
            >>> LedgerEnv.decode_actions(frame).tolist()
            [1, 0, 2, 0, 0, 0, 0, 0]
        """
        packed = frame[..., 3, :].astype(np.int64) @ _WEIGHTS
        return packed[..., None] >> 4 * np.arange(REMEMBERED_ACTIONS) & 15

    @staticmethod
    def intact(frame: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        """Tell which frames `[..., 5 * copies, 4]` have the right checksum in equal copies.

        Example:
            >>> frame, _ = LedgerEnv(copies=2).reset(seed=258)
            >>> torn = frame.copy()
            >>> torn[7, 3] += 1
            >>> LedgerEnv.intact(np.stack([frame, torn])).tolist()
            [True, False]
        """
        copies = frame.reshape(*frame.shape[:-2], -1, 5, 4)
        numbers = copies[..., 0, :, :].astype(np.int64) @ _WEIGHTS
        *contents, checksum = np.moveaxis(numbers, -1, 0)
        equal = (copies == copies[..., :1, :, :]).all(axis=(-1, -2, -3))
        return equal & (_mix(*contents) == checksum)

    def _end(
        self, instance: Number, episode: Number, time: Number, action: Number
    ) -> tuple[Any, Any]:
        """Return whether an action ends its episode, and whether that would be by termination."""
        drawn = _mix(instance, episode, time, action + 1000)
        return drawn < self._end_probability * 2**32, drawn & 1 == 0

    def _frame(self) -> npt.NDArray[np.uint8]:
        numbers = (self._instance, self._episode, self._time, self._actions)
        digits = bytearray(_NUMBERS.pack(*numbers, _mix(*numbers)) * self._copies)
        return np.frombuffer(digits, np.uint8).reshape(-1, 4)


def _mix(first: Number, second: Number, third: Number, fourth: Number) -> Number:
    """Return 32 bits that depend on all bits of four numbers below 2**32, as one or as arrays.

    Every step is a bijection of each number while the others stay; no product exceeds 63 bits.
    """
    bits = first * 0x1F123BB5 + second * 0x05491333 + third * 0x1B873593 + fourth * 0x0C1B3C6D
    bits = bits & _MASK
    bits = (bits ^ (bits >> 15)) * 0x2C1B3C6D & _MASK
    bits = (bits ^ (bits >> 12)) * 0x297A2D39 & _MASK
    return bits ^ (bits >> 15)
