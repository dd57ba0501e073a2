"""Sequences: windows of rows in time order, for agents that remember (`data.replay.sequences`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
from lrl.replay.transitions import Windows, key_ranges
from lrl.types import ConfigError, Memory, SequenceBatch, leaves_from

_Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SequenceConfig:
    """How rows are cut into sequences, which go through episodes' ends.

    Reference: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning" (R2D2), https://openreview.net/forum?id=r1lyTjAqYX: section 3, and the defaults.
    """

    length: int = 80
    """Rows of a sequence that are learnt from; each counts as a sample of `rate`."""
    overlap: int = 40
    """Rows of them that the next sequence of the same stream has as well."""
    burn_in: int = 40
    """Rows before them, from which the memory at the first of them is gathered with the weights
    of today; nothing else is learnt from them."""
    memory: Literal["stored", "zero"] = "stored"
    """Memory before the burn-in: what the policy remembered there, or nothing."""
    eta: float = 0.9
    """Share of the largest TD error in the priority of a sequence; the rest is their mean."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.length < 1:
            raise ConfigError(f"replay.sequences.length must be at least 1, got {self.length}")
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"replay.sequences.overlap must be at least 0 and below the length {self.length}, "
                f"got {self.overlap}"
            )
        if self.burn_in < 0:
            raise ConfigError(f"replay.sequences.burn_in must be at least 0, got {self.burn_in}")
        if self.memory not in ("stored", "zero"):
            raise ConfigError(
                f"replay.sequences.memory must be 'stored' or 'zero', got {self.memory!r}"
            )
        if not 0.0 <= self.eta <= 1.0:
            raise ConfigError(f"replay.sequences.eta must be between 0 and 1, got {self.eta}")

    @property
    def period(self) -> int:
        """Rows from the beginning of a sequence to that of the next one."""
        return self.length - self.overlap

    def rows(self, n_step: int) -> int:
        """Return the rows of a window, with those in which its last transitions bootstrap."""
        return self.burn_in + self.length + n_step


class Sequences(Windows):
    """Windows of `burn_in + length + n_step` rows, named by their first row.

    Created by the replay and read by its sampler. They begin at every `period`-th row of a
    stream, whatever that row is, and are samplable when all their rows, and the earlier frames of
    the first stack, are stored without a gap, and at least one row is learnt from. Of the `length`
    rows behind the burn-in those are which start a complete transition, as `Transitions` defines
    it, within the window.

    Args:
        streams: See `Windows`, as for the next three.
        frame_stack: See `Windows`.
        n_step: See `Windows`.
        gamma: See `Windows`.
        config: Lengths of the parts.
    """

    def __init__(
        self, streams: Streams, frame_stack: int, n_step: int, gamma: float, config: SequenceConfig
    ) -> None:
        super().__init__(streams, frame_stack, n_step, gamma)
        self.config = config

    @property
    def needs(self) -> str:
        """What a sequence needs, in words."""
        rows = self.config.rows(self.n_step)
        return f"a sequence needs {rows} rows of one stream, of which none is lost"

    def draw(self, count: int, generator: torch.Generator) -> IndexArray:
        """Draw a row and take the sequence that begins there or at the nearest row before it.

        Each is equally likely: a window is longer than the rows by which sequences are apart.
        """
        keys = super().draw(count, generator)
        keys[:, 1] -= keys[:, 1] % self.config.period
        return keys

    def stored_samplable(self, keys: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which of these keys name sequences that may be sampled now."""
        samplable = keys[:, 1] % self.config.period == 0
        samplable &= keys[:, 1] >= self.streams.oldest.take(keys[:, 0])
        flags = self.streams.flags(self._slots(keys[samplable]))
        found = flags.max(axis=1) < GAP_FLAGS
        found &= self._transitions(flags[:, self.frame_stack - 1 :])[0].any(axis=1)
        samplable[samplable] = found
        return samplable

    def became_samplable(self, counts_before: IndexArray) -> IndexArray:
        """List the keys that became samplable since the streams had `counts_before` rows."""
        rows = self.config.rows(self.n_step)
        start = np.maximum(counts_before - rows + 1, self.streams.oldest)
        keys = self.keys_between(start, self.streams.counts - rows + 1)
        return keys[self.stored_samplable(keys)]

    def keys_between(self, start: IndexArray, stop: IndexArray) -> IndexArray:
        """List the keys between of rows where a sequence begins."""
        keys = key_ranges(-(-start // self.config.period), -(-stop // self.config.period))
        keys[:, 1] *= self.config.period
        return keys

    def batch(self, keys: IndexArray, weights: npt.NDArray[np.float32]) -> SequenceBatch:
        """Build the sequences of samplable keys: each frame once, however many stacks have it."""
        streams, stack = self.streams, self.frame_stack
        slots = self._slots(keys)
        own = slots[:, stack - 1 :]
        wanted = {
            n: own[:, :1] if n.startswith("memory") else slots[:, stack - column.stack :]
            for n, column in streams.carried.items()
        }
        flags, first = streams.flags(own), self.config.burn_in
        learns, reward, discount, next_row = self._learnt(flags, streams.rewards(own))
        action = streams.actions(own[:, first : first + self.config.length])
        numbers = {
            "action": torch.from_numpy(action),
            "reward": reward,
            "discount": discount,
            "next_row": next_row,
            "learns": learns,
            "weights": torch.from_numpy(weights),
        }
        taken = streams.take(wanted, numbers)
        return SequenceBatch(
            kind=torch.from_numpy(flags >> 2),
            frame=leaves_from("frame", taken),
            **{name: taken[name] for name in numbers},
            keys=torch.from_numpy(keys),
            burn_in=first,
            eta=self.config.eta,
            action_mask=taken.get("action_mask"),
            memory=self._memory(taken),
        )

    def _slots(self, keys: IndexArray) -> IndexArray:
        """Return where the rows of windows lie, with the earlier frames of their first stacks."""
        rows = np.arange(1 - self.frame_stack, self.config.rows(self.n_step))
        return self.streams.slots(keys[:, 0], keys[:, 1:] + rows)

    def _memory(self, taken: Mapping[str, Tensor]) -> Memory | None:
        found = {n: value[:, 0] for n, value in taken.items() if n.startswith("memory")}
        if self.config.memory == "zero":
            found = {name: torch.zeros_like(value) for name, value in found.items()}
        return leaves_from("memory", found) or None

    def _transitions(self, flags: _Flags) -> tuple[npt.NDArray[np.bool_], _Flags]:
        """Tell which rows behind the burn-in start a complete transition.

        Args:
            flags: Of all rows of the windows, `[batch, time]`.

        Returns:
            A flag for each, `[batch, length]`, and the flags of the rows that the next `n_step`
            steps would be, `[batch, length, n_step]`.
        """
        ahead = np.lib.stride_tricks.sliding_window_view(
            flags[:, self.config.burn_in :], self.n_step + 1, axis=1
        )
        now = ahead[..., :-1]
        stops = now != 0
        stops[..., -1] = True
        last = stops.argmax(axis=-1)[..., None]
        last_flags = np.take_along_axis(ahead, last, axis=-1)[..., 0]
        after = np.take_along_axis(ahead, last + 1, axis=-1)[..., 0]
        complete = last_flags < BOUNDARY_FLAGS
        complete &= (after < PREFIX_FLAGS) | (last_flags & TERMINATED).view(np.bool_)
        return complete, now

    def _learnt(
        self, flags: _Flags, rewards: npt.NDArray[np.float32]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return which rows are learnt from, their returns, discounts and bootstrap rows."""
        complete, now = self._transitions(flags)
        shape, n_step = complete.shape, self.n_step
        ahead = torch.from_numpy(rewards[:, self.config.burn_in :]).unfold(1, n_step + 1, 1)
        returns, discount, steps = n_step_return(
            ahead[..., :-1].reshape(-1, n_step),
            torch.from_numpy((now & TERMINATED).view(np.bool_).reshape(-1, n_step)),
            torch.from_numpy(((now & TRUNCATED) != 0).reshape(-1, n_step)),
            self.gamma,
        )
        learns = torch.from_numpy(complete)
        own = self.config.burn_in + torch.arange(shape[1])
        further = (steps - (discount == 0).long()).view(shape)
        zero = returns.new_zeros(())
        return (
            learns,
            torch.where(learns, returns.view(shape), zero),
            torch.where(learns, discount.view(shape), zero),
            torch.where(learns, own + further, own),
        )
