"""Ring storage of streams: the rows of every environment in time order, each frame kept once."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrl.types import EnvSpec, RowKind, Rows

KIND_BITS = 3
"""Mask of a row's kind in its flags byte."""
TERMINATED = 4
TRUNCATED = 8

_SMALL_COLUMNS_BYTES = 1 + 4 + 4  # flags, action, reward


class Streams:
    """Rows of all streams: one ring per stream, as columns of torch tensors on one device.

    Created and used by the replay buffer alone, in the learner process; not thread-safe.
    A row is named by a key `(stream, number)`, where `number` counts the rows of its stream from
    0 for ever; the newest `rows_per_stream` of each stream are stored. The policy version of a
    row is not stored: it only serves statistics, which are taken when rows arrive.

    Each ring has one slot more than it holds rows. That slot, where the next row will be
    written, always reads GAP: a window of rows can never join the newest row to the oldest one,
    and rows that are not there yet need no case of their own.

    Args:
        spec: Shape and type of a frame.
        rows_per_stream: Rows that each stream keeps.
        num_streams: Streams, numbered from 0.
        device: Where the columns live; index arithmetic runs there too.
    """

    def __init__(
        self, spec: EnvSpec, rows_per_stream: int, num_streams: int, device: str = "cpu"
    ) -> None:
        self.rows_per_stream = rows_per_stream
        self.num_streams = num_streams
        self.device = torch.device(device)
        self.num_steps = 0
        """STEP rows stored now."""
        self._slots_per_stream = rows_per_stream + 1
        self._frame_shape = spec.frame_shape
        self._frame_dtype = np.dtype(spec.observation_dtype)
        slots = num_streams * self._slots_per_stream
        # Not zeroed: the system hands out pages as rows arrive, and no unwritten row is ever read.
        # From numpy on a CPU, since it asks for huge pages: a fault per page of torch.empty takes
        # longer than the copy of the frame.
        shape = (slots, prod(self._frame_shape))
        if self.device.type == "cpu":
            self._frame = torch.from_numpy(np.empty(shape, self._frame_dtype))
        else:
            dtype = getattr(torch, spec.observation_dtype)
            self._frame = torch.empty(shape, dtype=dtype, device=self.device)
        self._action = torch.zeros(slots, dtype=torch.int32, device=self.device)
        self._reward = torch.zeros(slots, dtype=torch.float32, device=self.device)
        # Flags and bookkeeping are also needed on the host: on a CPU both names share memory.
        self._host_flags = np.full(slots, RowKind.GAP, dtype=np.uint8)
        self._flags = torch.from_numpy(self._host_flags).to(self.device)
        self._host_index = np.zeros((4, num_streams), dtype=np.int64)
        self._index = torch.from_numpy(self._host_index).to(self.device)

    @staticmethod
    def bytes_needed(spec: EnvSpec, capacity: int, num_streams: int = 1) -> int:
        """Return the bytes that `capacity` rows in `num_streams` streams take."""
        slots = (capacity // num_streams + 1) * num_streams
        return slots * (spec.frame_bytes + _SMALL_COLUMNS_BYTES)

    @property
    def columns(self) -> dict[str, Tensor]:
        """The storage itself, by name: with `counts`, all that a saved copy would hold."""
        return {
            "frame": self._frame,
            "flags": self._flags,
            "action": self._action,
            "reward": self._reward,
        }

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take."""
        return sum(column.nbytes for column in self.columns.values())

    @property
    def counts(self) -> Tensor:
        """Rows ever appended to each stream, int64 `[num_streams]`; a view that changes."""
        return self._index[0]

    @property
    def oldest(self) -> Tensor:
        """Number of the oldest stored row of each stream, int64; a view that changes."""
        return self._index[1]

    @property
    def num_rows(self) -> int:
        """Rows of any kind stored now."""
        return int(self._host_index[2, -1])

    def append(self, rows: Rows) -> int:
        """Copy rows in, over the oldest ones of their streams; return how many are STEP rows."""
        self._check(rows)
        steps = 0
        # In pieces no longer than a ring, so that no slot is written twice at once.
        for start in range(0, len(rows), self.rows_per_stream):
            steps += self._append(rows[start : start + self.rows_per_stream])
        return steps

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw keys of stored rows uniformly, with replacement; at least one must be stored."""
        position = torch.randint(self.num_rows, (count,), generator=generator, device=self.device)
        stream = torch.searchsorted(self._index[2], position, right=True)
        return torch.stack((stream, position - self._index[3].take(stream)), dim=1)

    def all_keys(self, chunk_rows: int = 65_536) -> Iterator[Tensor]:
        """Go through the keys of all stored rows, in chunks of at most `chunk_rows`."""
        for start in range(0, self.num_rows, chunk_rows):
            stop = min(start + chunk_rows, self.num_rows)
            position = torch.arange(start, stop, device=self.device)
            stream = torch.searchsorted(self._index[2], position, right=True)
            yield torch.stack((stream, position - self._index[3].take(stream)), dim=1)

    def stored(self, keys: Tensor) -> Tensor:
        """Tell which keys name a row that is stored now."""
        stream, number = keys.unbind(1)
        return (number >= self.oldest.take(stream)) & (number < self.counts.take(stream))

    def slots(self, stream: Tensor, numbers: Tensor) -> Tensor:
        """Locate rows `numbers` `[batch, window]` of streams `[batch]`, stored or not."""
        return (numbers % self._slots_per_stream).add_(stream.unsqueeze(1) * self._slots_per_stream)

    def flags(self, slots: Tensor) -> Tensor:
        """Read kind and end flags; the write position reads GAP."""
        return self._flags.take(slots)

    def reward(self, slots: Tensor) -> Tensor:
        """Read rewards."""
        return self._reward.take(slots)

    def action(self, slots: Tensor) -> Tensor:
        """Read actions as int64."""
        return self._action.take(slots).long()

    def frames(self, slots: Tensor) -> Tensor:
        """Copy the frames of `[batch, window]` slots into one new block."""
        if self.device.type == "cpu":
            # numpy, since torch splits this copy over OpenMP threads, and those wait for each
            # other at a barrier: beside one busy process that took 20 times as long.
            block = torch.from_numpy(self._frame.numpy().take(slots.reshape(-1).numpy(), axis=0))
        else:
            block = self._frame.index_select(0, slots.reshape(-1))
        return block.view(*slots.shape, *self._frame_shape)

    def _check(self, rows: Rows) -> None:
        shape, dtype = (len(rows), *self._frame_shape), self._frame_dtype
        if rows.frame.shape != shape or rows.frame.dtype != dtype:
            raise ValueError(
                f"rows.frame is {rows.frame.dtype} {rows.frame.shape}, but the environment's "
                f"frames are {dtype} {shape}: build the replay from the specification of the "
                "environment that the actors step"
            )
        if len(rows) and not 0 <= rows.stream.min() <= rows.stream.max() < self.num_streams:
            raise ValueError(
                f"rows.stream is between {rows.stream.min()} and {rows.stream.max()}, but this "
                f"replay holds streams 0 to {self.num_streams - 1}: num_streams must be the "
                "number of environments of all its actors"
            )

    def _append(self, rows: Rows) -> int:
        stream = rows.stream.astype(np.int64)
        number, added = self._number(stream)
        base = stream * self._slots_per_stream
        slot = base + number % self._slots_per_stream
        # Writing row r pushes row r - rows_per_stream out, which sits in the slot after it.
        evicted = self._host_flags[base + (number + 1) % self._slots_per_stream]
        is_step = rows.kind == RowKind.STEP
        num_steps = int(is_step.sum())
        self.num_steps += num_steps - int((evicted & KIND_BITS == RowKind.STEP).sum())
        self._write(self._frame, slot, rows.frame.reshape(len(rows), -1))
        self._write(self._action, slot, rows.action)
        self._write(self._reward, slot, rows.reward)
        self._write_flags(slot, rows, self._host_index[0] + added)
        self._advance(added)
        return num_steps

    def _number(self, stream: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Number the rows of a mix of streams; also count the rows of each stream."""
        added = np.bincount(stream, minlength=self.num_streams)
        by_stream = np.argsort(stream, kind="stable")
        rank = np.empty_like(stream)
        rank[by_stream] = np.arange(len(stream)) - (added.cumsum() - added)[stream[by_stream]]
        return self._host_index[0][stream] + rank, added

    def _write_flags(
        self, slot: npt.NDArray[np.int64], rows: Rows, counts: npt.NDArray[np.int64]
    ) -> None:
        flags = rows.kind + rows.terminated * np.uint8(TERMINATED)
        flags += rows.truncated * np.uint8(TRUNCATED)
        heads = np.arange(self.num_streams) * self._slots_per_stream
        heads += counts % self._slots_per_stream
        self._host_flags[slot] = flags
        self._host_flags[heads] = RowKind.GAP
        if self.device.type != "cpu":
            changed = np.concatenate((slot, heads))
            self._write(self._flags, changed, self._host_flags[changed])

    def _write(
        self, column: Tensor, slot: npt.NDArray[np.int64], values: npt.NDArray[np.generic]
    ) -> None:
        if self.device.type == "cpu":
            column.numpy()[slot] = values
        else:
            copy = torch.from_numpy(np.array(values)).to(self.device, column.dtype)
            column.index_copy_(0, torch.from_numpy(slot).to(self.device), copy)

    def _advance(self, added: npt.NDArray[np.int64]) -> None:
        counts, oldest, ends, shift = self._host_index
        counts += added
        np.maximum(counts - self.rows_per_stream, 0, out=oldest)
        stored = counts - oldest
        np.cumsum(stored, out=ends)
        np.subtract(ends - stored, oldest, out=shift)
        if self.device.type != "cpu":
            self._index.copy_(torch.from_numpy(self._host_index))
