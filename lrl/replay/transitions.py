"""The rule by which rows of streams become transitions: which rows may start one, and its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrl.functional.returns import n_step_return
from lrl.replay.streams import (
    BOUNDARY_FLAGS,
    GAP_FLAGS,
    PREFIX_FLAGS,
    TERMINATED,
    TRUNCATED,
    IndexArray,
    Streams,
)
from lrl.types import Batch, leaves_from


class Windows(ABC):
    """What a sampler may draw from streams: windows of rows, named by the key of one of them.

    They are looked at when they are drawn, so `n_step` and `gamma` may change in between.

    Args:
        streams: The rows.
        frame_stack: Frames in an observation.
        n_step: Environment steps of a transition, unless the episode ends earlier.
        gamma: Discount of one environment step.
    """

    def __init__(self, streams: Streams, frame_stack: int, n_step: int, gamma: float) -> None:
        self.streams = streams
        self.frame_stack = frame_stack
        self.n_step = n_step
        self.gamma = gamma
        self._known: tuple[tuple[int, int], int] | None = None

    @property
    @abstractmethod
    def needs(self) -> str:
        """What one needs, in words."""

    @abstractmethod
    def stored_samplable(self, keys: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which of these keys, drawn here, may be sampled now."""

    @abstractmethod
    def became_samplable(self, counts_before: IndexArray) -> IndexArray:
        """List the keys that became samplable since the streams had `counts_before` rows."""

    @abstractmethod
    def keys_between(self, start: IndexArray, stop: IndexArray) -> IndexArray:
        """List the keys from `start[s]` to `stop[s] - 1` of every stream s."""

    @abstractmethod
    def batch(self, keys: IndexArray, weights: npt.NDArray[np.float32]) -> Any:
        """Build the batch of samplable keys: of what kind, the subclass says."""

    def no_longer_samplable(self, oldest_before: IndexArray) -> IndexArray:
        """List the keys that were overwritten, or lost a row of their stack, since then."""
        oldest = self.streams.oldest
        stop = np.where(oldest > oldest_before, oldest + self.frame_stack - 1, oldest_before)
        return self.keys_between(oldest_before, stop)

    def draw(self, count: int, generator: torch.Generator) -> IndexArray:
        """Draw keys uniformly, with replacement, of which some may not be sampled."""
        return self.streams.draw(count, generator)

    def samplable(self, keys: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which keys `[count, 2]` may be sampled now; overwritten and future rows may not."""
        return self.streams.stored(keys) & self.stored_samplable(keys)

    def samplable_keys(self) -> IndexArray:
        """List every key that may be sampled now. Goes through all rows: for fallback and tests."""
        found = [keys[self.stored_samplable(keys)] for keys in self.streams.all_keys()]
        return np.concatenate([np.empty((0, 2), np.int64), *found])

    def any_samplable(self) -> bool:
        """Tell whether at least one row may be sampled; costs little once one was found."""
        if self._known is not None:
            (stream, row), n_step = self._known
            # A row that may be sampled stays so while its stack is stored.
            first = row - self.frame_stack + 1
            is_stored = self.streams.oldest[stream] <= first and row < self.streams.counts[stream]
            if n_step == self.n_step and is_stored:
                return True
        self._known = None
        for keys in self.streams.all_keys(chunk_rows=4096):
            found = keys[self.stored_samplable(keys)]
            if len(found):
                stream, row = found[-1]
                self._known = (int(stream), int(row)), self.n_step
                return True
        return False


class Transitions(Windows):
    """Transitions over streams: the rows of one, and those of both its stacks.

    Created by the replay and read by its sampler. A STEP row i is samplable when the
    `frame_stack` rows up to it are stored without a gap, and its window is complete: m rows of
    kind STEP from row i on, where m is the first with an episode's end or else `n_step`; then
    either that last row terminated, or row i+m exists and is a STEP or BOUNDARY row, from which
    the value is bootstrapped. Prefix rows make sure that a stack stays in one episode. See
    `Windows` for the arguments.
    """

    def __init__(self, streams: Streams, frame_stack: int, n_step: int, gamma: float) -> None:
        super().__init__(streams, frame_stack, n_step, gamma)
        self._both_stacks = np.arange(1 - frame_stack, 2)  # rows of a transition of one step

    @property
    def needs(self) -> str:
        """What a transition needs, in words."""
        return (
            f"a transition needs {self.n_step} step(s) of one episode and the observation after "
            "them"
        )

    def stored_samplable(self, keys: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which of these keys of stored rows, drawn from the streams, may be sampled now."""
        if self.n_step > 1:
            return self._inspect(keys)[0]
        # What `_inspect` tells, in two thirds of the time: every uniform batch asks.
        flags = self.streams.flags(self.streams.slots(keys[:, 0], keys[:, 1:] + self._both_stacks))
        here = flags[:, -2]
        samplable = flags[:, :-1].max(axis=1) < GAP_FLAGS
        samplable &= here < BOUNDARY_FLAGS
        samplable &= (flags[:, -1] < PREFIX_FLAGS) | (here & TERMINATED).view(np.bool_)
        return samplable

    def became_samplable(self, counts_before: IndexArray) -> IndexArray:
        """List the keys that became samplable since the streams had `counts_before` rows."""
        counts, oldest = self.streams.counts, self.streams.oldest
        start = np.maximum(counts_before - self.n_step, oldest)
        keys = key_ranges(np.where(counts > counts_before, start, counts), counts)
        samplable, last = self._inspect(keys)
        return keys[samplable & (last >= counts_before[keys[:, 0]])]

    def keys_between(self, start: IndexArray, stop: IndexArray) -> IndexArray:
        """List the keys of all rows between."""
        return key_ranges(start, stop)

    def batch(self, keys: IndexArray, weights: npt.NDArray[np.float32]) -> Batch:
        """Build the transitions of samplable keys.

        Observation and next observation are views of one newly allocated block of frames, and
        overlap with `n_step` 1: read them, do not write into them.
        """
        streams = self.streams
        slots, reward, discount = self._one_step(keys) if self.n_step == 1 else self._n_step(keys)
        start = slots[:, self.frame_stack - 1]
        stacks = {n: self.both(slots, column.stack) for n, column in streams.carried.items()}
        numbers = {
            "action": torch.from_numpy(streams.actions(start)),
            "reward": reward,
            "discount": discount,
            "weights": torch.from_numpy(weights),
        }
        return self.assembled(streams.take(stacks, numbers), torch.from_numpy(keys))

    def assembled(self, taken: Mapping[str, Tensor], keys: Tensor) -> Batch:
        """Cut what was taken of rows into a batch.

        Args:
            taken: What rows carry, in the slots that `both` says; `"action"`, `"reward"`,
                `"discount"` and `"weights"`.
            keys: Keys of the transitions.
        """
        here: dict[str, Tensor] = {}
        there: dict[str, Tensor] = {}
        for name, column in self.streams.carried.items():
            block, stack = taken[name], column.stack
            if stack == 1:
                here[name], there[name] = block[:, 0], block[:, -1]
            else:
                here[name] = block.narrow(1, 0, stack)
                there[name] = block.narrow(1, -stack, stack)
        if "action_mask" in there:  # where nothing is bootstrapped all actions are allowed
            there["action_mask"] = there["action_mask"] | (taken["discount"] == 0)[:, None]
        return Batch(
            observation=leaves_from("frame", here),
            action=taken["action"],
            reward=taken["reward"],
            discount=taken["discount"],
            weights=taken["weights"],
            next_observation=leaves_from("frame", there),
            keys=keys,
            action_mask=here.get("action_mask"),
            next_action_mask=there.get("action_mask"),
            memory=leaves_from("memory", here) or None,
            next_memory=leaves_from("memory", there) or None,
        )

    def both(self, slots: Any, stack: int, join: Callable[..., Any] = np.concatenate) -> Any:
        """Return the slots of a column at both observations.

        Args:
            slots: Slots of both stacks, as `_one_step` and `_n_step` return them.
            stack: Rows that make one value of this column.
            join: Joins slots along an axis.
        """
        frames = self.frame_stack
        if stack < frames and self.n_step == 1:
            return slots[:, frames - stack :]
        if stack < frames:
            return join((slots[:, frames - stack : frames], slots[:, -stack:]), 1)
        return slots

    def _one_step(self, keys: IndexArray) -> tuple[IndexArray, Tensor, Tensor]:
        """Return the slots of both stacks, which overlap, the reward and the discount.

        What `_n_step` returns for one step, in a third of the time: small operations dominate.
        """
        streams = self.streams
        slots = streams.slots(keys[:, 0], keys[:, 1:] + self._both_stacks)
        start = slots[:, -2]
        terminated = (streams.flags(start) & TERMINATED).view(np.bool_)
        # Where nothing is bootstrapped, the row after may not exist: stay on the first.
        np.copyto(slots[:, -1], start, where=terminated)
        discount = ~terminated * np.float32(self.gamma)
        return slots, torch.from_numpy(streams.rewards(start)), torch.from_numpy(discount)

    def _n_step(self, keys: IndexArray) -> tuple[IndexArray, Tensor, Tensor]:
        """Return the slots of both stacks one after the other, the return and the discount."""
        streams, stream, number = self.streams, keys[:, 0], keys[:, 1]
        window = streams.slots(stream, number[:, None] + np.arange(self.n_step))
        flags = streams.flags(window)
        returns, discount, steps = n_step_return(
            torch.from_numpy(streams.rewards(window)),
            torch.from_numpy((flags & TERMINATED).view(np.bool_)),
            torch.from_numpy((flags & TRUNCATED) != 0),
            self.gamma,
        )
        final = number + steps.numpy() - (discount.numpy() == 0)
        stack = np.arange(1 - self.frame_stack, 1)
        rows = np.concatenate((number[:, None] + stack, final[:, None] + stack), axis=1)
        return streams.slots(stream, rows), returns, discount

    def _inspect(self, keys: IndexArray) -> tuple[npt.NDArray[np.bool_], IndexArray]:
        """Tell which stored keys are samplable, and the number of the last row each one needs.

        Rows before the oldest and after the newest read GAP, so they need no check.
        """
        frames, n = self.frame_stack, self.n_step
        stream, number = keys[:, 0], keys[:, 1]
        rows = number[:, None] + np.arange(1 - frames, n + 1)
        flags = self.streams.flags(self.streams.slots(stream, rows))
        # The transition ends at the first row that is anything but a plain STEP row.
        stops = flags[:, frames - 1 : -1] != 0
        stops[:, -1] = True
        steps = stops.argmax(axis=1) + 1
        after = np.arange(frames - 1, flags.size, frames + n) + steps  # of row i+m in flat flags
        last_flags = flags.take(after - 1)
        terminated = last_flags & TERMINATED
        samplable = flags[:, :frames].max(axis=1) < GAP_FLAGS
        samplable &= last_flags < BOUNDARY_FLAGS
        samplable &= (flags.take(after) < PREFIX_FLAGS) | terminated.view(np.bool_)
        return samplable, number + steps - terminated


def key_ranges(start: IndexArray, stop: IndexArray) -> IndexArray:
    """List the keys `start[s]` to `stop[s] - 1` of every stream s."""
    lengths = np.maximum(stop - start, 0)
    stream = np.arange(len(start)).repeat(lengths)
    first = lengths.cumsum() - lengths
    return np.stack((stream, np.arange(len(stream)) + (start - first)[stream]), axis=1)
