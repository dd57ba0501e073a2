"""Small environments with a known best return, for tests and first steps.

| id | what it needs | observation |
| --- | --- | --- |
| `lrl/Identity-v0` | the immediate reward only | one-hot float32 |
| `lrl/Chain-v0` | bootstrapping over several steps | one-hot float32 |
| `lrl/Catch-v0` | credit for early moves, images | uint8 image |
| `lrl/Signpost-v0` | both leaves of a Dict, neither helps alone | uint8 image and float32 vector |
| `lrl/Masked-v0` | action masks, in acting and in targets | one-hot float32 |
| `lrl/Dials-v0` | the right choice in each of two branches at once | one-hot float32 |
| `lrl/Recall-v0` | a memory | one-hot float32 |
| `lrl/Ledger-v0` | nothing to learn: see `lrl.testing` | uint8 image |

Every instance has an `optimal_return`: the undiscounted return of the best policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from typing_extensions import override


def register_toys() -> None:
    """Register the toy environments with Gymnasium; a second call does nothing."""
    entry_points = {toy.__name__: f"{__name__}:{toy.__name__}" for toy in _TOYS}
    for name, entry_point in {**entry_points, "Ledger": "lrl.testing:LedgerEnv"}.items():
        if (toy_id := f"lrl/{name}-v0") not in gymnasium.registry:
            gymnasium.register(toy_id, entry_point=entry_point)


class Identity(gymnasium.Env):
    """Name the context that is shown: reward 1 for the matching action, else 0.

    The next context is drawn evenly, whatever the action, so a discount of 0 suffices.

    Args:
        num_contexts: Contexts, and actions.
        length: Environment steps of an episode; also the optimal return.
        truncate: The end of an episode is a truncation, else a termination.
    """

    def __init__(self, num_contexts: int = 4, length: int = 10, truncate: bool = False) -> None:
        self.observation_space = Box(0.0, 1.0, (num_contexts,), np.float32)
        self.action_space = Discrete(num_contexts)
        self.optimal_return = float(length)
        self._num_contexts, self._length, self._truncate = num_contexts, length, truncate
        self._context = self._time = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._time = 0
        return self._next_observation(), {}

    @override
    def step(self, action: int):
        reward = float(action == self._context)
        self._time += 1
        end = self._time >= self._length
        ends = end and not self._truncate, end and self._truncate
        return self._next_observation(), reward, *ends, {}

    def _next_observation(self) -> npt.NDArray[np.float32]:
        self._context = int(self.np_random.integers(self._num_contexts))
        return _one_hot(self._context, self._num_contexts)


class Chain(gymnasium.Env):
    """Walk right (action 1) from the first place to the last; action 0 walks left.

    A move costs 0.1, except the one that reaches the last place: it pays 1 and terminates. All
    other rewards are equal, so a discount of 0 learns nothing but the last move.

    Args:
        length: Places; the optimal return is 1 - 0.1 * (length - 2).
        max_moves: Moves after which an episode is truncated.
    """

    def __init__(self, length: int = 6, max_moves: int = 50) -> None:
        self.observation_space = Box(0.0, 1.0, (length,), np.float32)
        self.action_space = Discrete(2)
        self.optimal_return = 1.0 - 0.1 * (length - 2)
        self._length, self._max_moves = length, max_moves
        self._place = self._time = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._place = self._time = 0
        return _one_hot(self._place, self._length), {}

    @override
    def step(self, action: int):
        self._place = max(self._place + (1 if action == 1 else -1), 0)
        self._time += 1
        terminated = self._place == self._length - 1
        truncated = self._time >= self._max_moves and not terminated
        reward = 1.0 if terminated else -0.1
        return _one_hot(self._place, self._length), reward, terminated, truncated, {}


class Catch(gymnasium.Env):
    """Catch a falling ball with a paddle (after Catch in bsuite, Osband et al. 2020).

    The ball starts in a random column of the top row and falls one row a step. The paddle is in
    the bottom row and starts in the middle; actions 0, 1, 2 move it left, leave it, move it right.
    When the ball arrives, the episode terminates with reward 1 (caught) or -1.

    Args:
        rows: Height of the board in cells; an episode has rows - 1 steps.
        columns: Width of the board in cells.
        cell_pixels: Pixels along each side of a cell.
        channel_axis: The image is `[1, height, width]`; without, `[height, width]`, which a frame
            stack turns into `[frame_stack, height, width]`.
    """

    optimal_return = 1.0

    def __init__(
        self, rows: int = 10, columns: int = 5, cell_pixels: int = 1, channel_axis: bool = True
    ) -> None:
        shape = (rows * cell_pixels, columns * cell_pixels)
        self.observation_space = Box(0, 255, (1, *shape) if channel_axis else shape, np.uint8)
        self.action_space = Discrete(3)
        self._rows, self._columns, self._cell_pixels = rows, columns, cell_pixels
        self._ball_row = self._ball_column = self._paddle = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._ball_row, self._paddle = 0, self._columns // 2
        self._ball_column = int(self.np_random.integers(self._columns))
        return self._image(), {}

    @override
    def step(self, action: int):
        self._paddle = int(np.clip(self._paddle + action - 1, 0, self._columns - 1))
        self._ball_row += 1
        terminated = self._ball_row == self._rows - 1
        reward = 1.0 if self._paddle == self._ball_column else -1.0
        return self._image(), reward if terminated else 0.0, terminated, False, {}

    def _image(self) -> npt.NDArray[np.uint8]:
        board = np.zeros((self._rows, self._columns), np.uint8)
        board[self._ball_row, self._ball_column] = 255
        board[-1, self._paddle] = 255
        cell = np.ones((self._cell_pixels, self._cell_pixels), np.uint8)
        return np.kron(board, cell).reshape(self.observation_space.shape)


class Masked(Chain):
    """Walk to the last place, where each place allows two actions of its own; others raise.

    At place p, action `p % num_actions` walks right and the next one walks left. A move costs 1, so
    that all values are below 0: an action that is never tried stays near 0 and looks like the best
    one. Reaching the last place terminates; the mask forbids every action there.

    Args:
        length: Places; the optimal return is 1 - length.
        num_actions: Number of actions, at least 3.
        max_moves: Moves after which an episode is truncated.
    """

    def __init__(self, length: int = 6, num_actions: int = 4, max_moves: int = 50) -> None:
        super().__init__(length, max_moves)
        self.action_space = Discrete(num_actions)
        self.optimal_return = 1.0 - length
        self._num_actions = num_actions

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, _ = super().reset(seed=seed)
        return observation, self._info()

    @override
    def step(self, action: int):
        if not self.mask(self._place, self._length, self._num_actions)[action]:
            raise ValueError(f"action {action} is forbidden at place {self._place}")
        right = action == self._place % self._num_actions
        observation, _, terminated, truncated, _ = super().step(int(right))
        return observation, -1.0, terminated, truncated, self._info()

    @staticmethod
    def mask(place: int, length: int = 6, num_actions: int = 4) -> npt.NDArray[np.int8]:
        """Return 1 for each action that is allowed at a place.

        Example:
            >>> [Masked.mask(place).tolist() for place in (0, 3, 5)]
            [[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
        """
        allowed = [place % num_actions, (place + 1) % num_actions] if place < length - 1 else []
        return np.isin(np.arange(num_actions), allowed).astype(np.int8)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask(self._place, self._length, self._num_actions)}


class Signpost(gymnasium.Env):
    """Walk to one of two posts: the board shows where they are, the sign says to which one.

    The leaf `board` is an image `[3, size, size]` of the walker and of each post, the leaf `sign` a
    1 for the right post and a 0 for the other one. Actions walk up, down, left and right, or
    nowhere at the edge. The right post pays 1 and the other one -1, and both terminate. Who does
    not see the board, or not the sign, is right in half of the episodes, and gets 0 in the mean.

    Args:
        size: Cells along each side of the board.
        max_moves: Moves after which an episode is truncated.
    """

    optimal_return = 1.0
    _MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])

    def __init__(self, size: int = 4, max_moves: int = 20) -> None:
        self.observation_space = Dict(
            board=Box(0, 255, (3, size, size), np.uint8), sign=Box(0.0, 1.0, (2,), np.float32)
        )
        self.action_space = Discrete(len(self._MOVES))
        self._size, self._max_moves = size, max_moves
        self._places = np.zeros((3, 2), np.int64)  # of the walker and of the posts
        self._right = self._time = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        cells = self.np_random.choice(self._size**2, 3, replace=False)
        self._places = np.stack(np.divmod(cells, self._size), axis=1)
        self._right, self._time = int(self.np_random.integers(2)), 0
        return self._observation(), {}

    @override
    def step(self, action: int):
        self._places[0] = np.clip(self._places[0] + self._MOVES[action], 0, self._size - 1)
        self._time += 1
        reached = (self._places[1:] == self._places[0]).all(axis=1)
        reward = float(reached[self._right]) - float(reached[1 - self._right])
        terminated = bool(reached.any())
        truncated = self._time >= self._max_moves and not terminated
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self) -> dict[str, npt.NDArray[Any]]:
        board = np.zeros((3, self._size, self._size), np.uint8)
        board[range(3), self._places[:, 0], self._places[:, 1]] = 255
        return {"board": board, "sign": _one_hot(self._right, 2)}


class Dials(gymnasium.Env):
    """Open a row of locks, each by setting all its dials right at once.

    At lock p, dial d has to be set to `(p + d) % sizes[d]`: that opens the lock and leads to the
    next one, any other setting to none. A move costs 1, the last lock terminates. A choice of one
    dial shows its worth only while the others are right, and each lock has another setting.

    Args:
        locks: Number of locks; the optimal return is minus that.
        sizes: Settings of each dial.
        max_moves: Moves after which an episode is truncated.
        masks: Give masks that allow two settings of each dial, the right one and the next; others
            raise.
    """

    def __init__(
        self,
        locks: int = 8,
        sizes: Sequence[int] = (3, 5),
        max_moves: int = 100,
        masks: bool = False,
    ) -> None:
        self.observation_space = Box(0.0, 1.0, (locks + 1,), np.float32)
        self.action_space = MultiDiscrete([*sizes])
        self.optimal_return = float(-locks)
        self._locks, self._sizes, self._max_moves = locks, tuple(sizes), max_moves
        self._masks = masks
        self._opened = self._time = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._opened = self._time = 0
        return self._observation(), self._info()

    @override
    def step(self, action: npt.NDArray[np.integer]):
        masks = zip(action, self.mask(self._opened, self._sizes), strict=True)
        if self._masks and not all(mask[choice] for choice, mask in masks):
            raise ValueError(f"the setting {action} is forbidden at lock {self._opened}")
        self._opened += tuple(action) == self.setting(self._opened, self._sizes)
        self._time += 1
        terminated = self._opened == self._locks
        truncated = self._time >= self._max_moves and not terminated
        return self._observation(), -1.0, terminated, truncated, self._info()

    @staticmethod
    def setting(lock: int, sizes: Sequence[int] = (3, 5)) -> tuple[int, ...]:
        """Return the right setting of each dial.

        Example:
            >>> [Dials.setting(lock) for lock in range(4)]
            [(0, 1), (1, 2), (2, 3), (0, 4)]
        """
        return tuple((lock + dial) % size for dial, size in enumerate(sizes))

    @classmethod
    def mask(cls, lock: int, sizes: Sequence[int] = (3, 5)) -> tuple[npt.NDArray[np.int8], ...]:
        """Return 1 for each setting of each dial that is allowed at a lock.

        Example:
            >>> [mask.tolist() for mask in Dials.mask(2)]
            [[1, 0, 1], [0, 0, 0, 1, 1]]
        """
        settings = zip(cls.setting(lock, sizes), sizes, strict=True)
        return tuple(
            np.isin(np.arange(size), [right, (right + 1) % size]).astype(np.int8)
            for right, size in settings
        )

    def _observation(self) -> npt.NDArray[np.float32]:
        return _one_hot(self._opened, self._locks + 1)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask(self._opened, self._sizes)} if self._masks else {}


class Recall(gymnasium.Env):
    """Name a cue that was shown at the start of the episode, when it is asked for at the end.

    Until then nothing is shown, and what is done does not matter. Who has forgotten the cue gets
    1 / cues on average.

    Args:
        cues: Cues, and actions.
        delay: Environment steps from the cue to the question; an episode has one more.
        truncate: The end of an episode is a truncation, else a termination.
    """

    optimal_return = 1.0

    def __init__(self, cues: int = 4, delay: int = 20, truncate: bool = False) -> None:
        self.observation_space = Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = Discrete(cues)
        self._cues, self._delay, self._truncate = cues, delay, truncate
        self._cue = self._time = 0

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._cue, self._time = int(self.np_random.integers(self._cues)), 0
        return _one_hot(self._cue, self._cues + 1), {}

    @override
    def step(self, action: int):
        is_asked = self._time == self._delay
        self._time += 1
        asks = self._time == self._delay
        observation = np.zeros(self._cues + 1, np.float32)
        observation[-1] = asks
        reward = float(is_asked and action == self._cue)
        ends = is_asked and not self._truncate, is_asked and self._truncate
        return observation, reward, *ends, {}


def _one_hot(index: int, size: int) -> npt.NDArray[np.float32]:
    return np.eye(size, dtype=np.float32)[index]


_TOYS = (Identity, Chain, Catch, Masked, Signpost, Dials, Recall)
