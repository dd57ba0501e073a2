"""The rule by which rows of streams become transitions: which rows may start one, and its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.functional.returns import n_step_return
from lrl.replay.streams import KIND_BITS, TERMINATED, TRUNCATED, Streams
from lrl.types import Batch, RowKind


class Transitions:
    """Transitions over streams, computed when they are sampled, so `n_step` and `gamma` may change.

    Created by the replay buffer and read by its sampler. A STEP row i is samplable when the
    `frame_stack` rows up to it are stored without a gap, and its window is complete: m rows of
    kind STEP from row i on, where m is the first with an episode's end or else `n_step`; then
    either that last row terminated, or row i+m exists and is a STEP or BOUNDARY row, from which
    the value is bootstrapped. Prefix rows make sure that a stack stays in one episode.

    Args:
        streams: The rows.
        frame_stack: Frames in an observation.
        n_step: Steps of a transition, unless the episode ends earlier.
        gamma: Discount of one step.
    """

    def __init__(self, streams: Streams, frame_stack: int, n_step: int, gamma: float) -> None:
        self.streams = streams
        self.frame_stack = frame_stack
        self.n_step = n_step
        self.gamma = gamma
        self._known_key: Tensor | None = None

    def samplable(self, keys: Tensor) -> Tensor:
        """Tell which keys `[count, 2]` may be sampled now; overwritten and future rows may not."""
        return self._inspect(keys)[0]

    def samplable_keys(self) -> Tensor:
        """List every key that may be sampled now. Goes through all rows: for fallback and tests."""
        found = [keys[self.samplable(keys)] for keys in self.streams.all_keys()]
        return torch.cat(found) if found else torch.empty((0, 2), dtype=torch.int64)

    def any_samplable(self) -> bool:
        """Tell whether at least one row may be sampled; costs little once one was found."""
        if self._known_key is not None and self.samplable(self._known_key).item():
            return True
        self._known_key = None
        for keys in self.streams.all_keys(chunk_rows=1024):
            keys = keys[self.samplable(keys)]
            if len(keys):
                self._known_key = keys[-1:]
                return True
        return False

    def became_samplable(self, counts_before: Tensor) -> Tensor:
        """List the keys that became samplable since the streams had `counts_before` rows."""
        start = (counts_before - self.n_step).maximum(self.streams.oldest)
        keys = _ranges(start, self.streams.counts)
        samplable, last = self._inspect(keys)
        return keys[samplable & (last >= counts_before.take(keys[:, 0]))]

    def no_longer_samplable(self, oldest_before: Tensor) -> Tensor:
        """List the keys that lost a row of their stack since `oldest_before` were the oldest."""
        lost = self.frame_stack - 1
        return _ranges(oldest_before, self.streams.oldest + lost * (self.streams.oldest > 0))

    def batch(self, keys: Tensor, weights: Tensor) -> Batch:
        """Build the transitions of samplable keys.

        Observation and next observation are views of one newly allocated block of frames, and
        overlap with `n_step` 1: read them, do not write into them.
        """
        stream, number = keys.unbind(1)
        window = self.streams.slots(stream, number.unsqueeze(1) + self._arange(0, self.n_step))
        flags = self.streams.flags(window)
        reward, discount, steps = n_step_return(
            self.streams.reward(window),
            (flags & TERMINATED).bool(),
            (flags & TRUNCATED).bool(),
            self.gamma,
        )
        # Where nothing is bootstrapped, the row after the last may not exist: stay on the last.
        final = number + steps - (discount == 0).long()
        frames = self.frame_stack
        stack = self._arange(1 - frames, 1)
        rows = [number.unsqueeze(1) + stack]
        rows.append(final.unsqueeze(1) + (stack if self.n_step > 1 else stack[-1:]))
        block = self.streams.frames(self.streams.slots(stream, torch.cat(rows, dim=1)))
        return Batch(
            observation=block[:, :frames] if frames > 1 else block[:, 0],
            action=self.streams.action(window[:, 0]),
            reward=reward,
            discount=discount,
            next_observation=block[:, -frames:] if frames > 1 else block[:, -1],
            weights=weights,
            keys=keys,
        )

    def _inspect(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which keys are samplable and the number of the last row that each one needs."""
        frames, n = self.frame_stack, self.n_step
        stream, number = keys.unbind(1)
        rows = number.unsqueeze(1) + self._arange(1 - frames, n + 1)
        flags = self.streams.flags(self.streams.slots(stream, rows))
        stack_ok = (flags[:, :frames] & KIND_BITS != RowKind.GAP).all(1)
        # The window ends at the first row that is anything but a plain STEP row (flags 0).
        stops = flags[:, frames - 1 : -2] != 0  # row i to i+n-2: one after which it would go on
        steps = (stops.cumsum(1) == 0).sum(1) + 1
        end = flags.gather(1, (steps + (frames - 2)).unsqueeze(1)).squeeze(1)
        after = flags.gather(1, (steps + (frames - 1)).unsqueeze(1)).squeeze(1)
        terminated = (end & TERMINATED).bool()
        complete = (end & KIND_BITS == RowKind.STEP) & (
            terminated | (after & KIND_BITS <= RowKind.BOUNDARY)
        )
        in_ring = self.streams.stored(keys) & (rows[:, 0] >= self.streams.oldest.take(stream))
        return in_ring & stack_ok & complete, number + steps - terminated.long()

    def _arange(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.streams.device)


def _ranges(start: Tensor, stop: Tensor) -> Tensor:
    """List the keys `start[s]` to `stop[s] - 1` of every stream s."""
    lengths = (stop - start).clamp(min=0)
    stream = torch.arange(len(start), device=start.device).repeat_interleave(lengths)
    position = torch.arange(len(stream), device=start.device)
    first = lengths.cumsum(0) - lengths
    return torch.stack((stream, position - first[stream] + start[stream]), dim=1)
