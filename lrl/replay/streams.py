"""Ring storage of streams: the rows of every environment in time order, each frame kept once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrl.parts.device_copies import to_device_together
from lrl.processes.memory import format_bytes
from lrl.types import ConfigError, EnvSpec, RowKind, Rows

# A row's flags in one byte, made so that one comparison tells the kind: 0 is a STEP row on which
# nothing ended, and every STEP row is below BOUNDARY_FLAGS.
TERMINATED = 1
TRUNCATED = 2
BOUNDARY_FLAGS = RowKind.BOUNDARY << 2
PREFIX_FLAGS = RowKind.PREFIX << 2
GAP_FLAGS = RowKind.GAP << 2

IndexArray = npt.NDArray[np.int64]
"""Keys `[count, 2]`, row numbers or slots."""


class Streams:
    """Rows of all streams: one ring per stream, as columns.

    Created and used by the experience alone, in the learner process; not thread-safe.
    A row is named by a key `(stream, number)`, where `number` counts the rows of its stream from
    0 for ever; the newest `rows_per_stream` of each stream are stored. The policy version of a
    row is not stored: it only serves statistics, which are taken when rows arrive.

    What rows carry for networks (frames, memory, masks) are torch tensors on `device`; the other
    columns (9 bytes a row, with one choice) and all index arithmetic are numpy on the host: some 50
    operations on a few hundred numbers, of which each took a third of the time of a torch call, and
    less than a kernel launch.

    Each ring has one slot more than it holds rows. That slot, where the next row will be
    written, always reads GAP: a window of rows can never join the newest row to the oldest one,
    and rows that are not there yet need no case of their own.

    Args:
        spec: Says what rows carry.
        rows_per_stream: Rows that each stream keeps.
        num_streams: Streams, numbered from 0.
        device: Where it lives.
        memory_map: Folder of the file in which frames live instead.

    Raises:
        ConfigError: There is no such folder, no space for the file, or it cannot be written.
    """

    def __init__(
        self,
        spec: EnvSpec,
        rows_per_stream: int,
        num_streams: int,
        device: str = "cpu",
        memory_map: str | None = None,
    ) -> None:
        self.rows_per_stream = rows_per_stream
        self.num_streams = num_streams
        self.device = torch.device(device)
        self.num_steps = 0
        """STEP rows stored now."""
        self.num_rows = 0
        """Rows of any kind stored now."""
        self.counts = np.zeros(num_streams, np.int64)
        """Rows ever appended to each stream."""
        self.oldest = np.zeros(num_streams, np.int64)
        """Number of the oldest stored row of each stream."""
        self.before_overwriting: Callable[[IndexArray], object] | None = None
        """Called with the numbers of the rows that will be the oldest, before others go."""
        self._ends = np.zeros(num_streams, np.int64)  # cumulative sum of rows stored
        self._shift = np.zeros(num_streams, np.int64)  # rows stored in earlier streams - oldest
        self.carried = spec.carried_columns()
        """What rows carry for networks, by the names of their columns."""
        self._ring = rows_per_stream + 1
        self.num_slots = slots = num_streams * self._ring
        """Places for rows; `slots` says which row lies where."""
        self._frames = spec.frame_columns()
        self._carried = {
            name: _allocate(
                (slots, prod(column.shape)),
                column.type,
                self.device,
                memory_map if name in self._frames else None,
            )
            for name, column in self.carried.items()
        }
        self._flags = np.full(slots, GAP_FLAGS, np.uint8)
        self._action = np.zeros((slots, *spec.action.column.shape), np.int32)
        self._reward = np.zeros(slots, np.float32)

    @staticmethod
    def bytes_needed(spec: EnvSpec, capacity: int, num_streams: int = 1) -> int:
        """Return the bytes that `capacity` rows in `num_streams` streams take."""
        slots = (capacity // num_streams + 1) * num_streams
        carried = sum(column.nbytes for column in spec.carried_columns().values())
        return slots * (carried + 1 + spec.action.column.nbytes + 4)  # flags, action, reward

    @property
    def columns(self) -> dict[str, Tensor]:
        """The storage itself, by name: with `counts`, all that a saved copy has to hold.

        Saved copies have no names: they rely on the order, which is frames first and each part by
        name, whichever order a specification has.
        """
        plain = {"flags": self._flags, "action": self._action, "reward": self._reward}
        carried = {name: self._carried[name] for name in sorted(self._carried)}
        frames = {name: carried[name] for name in sorted(self._frames)}
        return frames | {n: torch.from_numpy(a) for n, a in plain.items()} | carried

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take."""
        return sum(column.nbytes for column in self.columns.values())

    def append(self, rows: Rows) -> int:
        """Copy rows in, over the oldest ones of their streams; return how many are STEP rows."""
        self._check(rows)
        if 0 < len(rows) <= self.rows_per_stream:
            return self._append(rows)
        steps = 0
        # In pieces no longer than a ring, so that no slot is written twice at once.
        for start in range(0, len(rows), self.rows_per_stream):
            steps += self._append(rows[start : start + self.rows_per_stream])
        return steps

    def restore(self, counts: IndexArray) -> None:
        """Take over rows that were written to the columns of empty streams, up to these counts."""
        self._advance(counts - self.counts)
        self.num_steps = int(np.count_nonzero(self._flags < BOUNDARY_FLAGS))

    def clear(self) -> None:
        """Forget all rows."""
        self._flags[:] = GAP_FLAGS
        self.restore(np.zeros_like(self.counts))

    def draw(self, count: int, generator: torch.Generator) -> IndexArray:
        """Draw keys of stored rows uniformly, with replacement; at least one must be stored."""
        return self._keys_at(torch.randint(self.num_rows, (count,), generator=generator).numpy())

    def all_keys(self, chunk_rows: int = 65_536) -> Iterator[IndexArray]:
        """Go through the keys of all stored rows, in chunks of at most `chunk_rows`."""
        for start in range(0, self.num_rows, chunk_rows):
            yield self._keys_at(np.arange(start, min(start + chunk_rows, self.num_rows)))

    def stored(self, keys: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which keys name rows that are stored now."""
        stream, number = keys[:, 0], keys[:, 1]
        stored = number >= self.oldest.take(stream)
        stored &= number < self.counts.take(stream)
        return stored

    def keys_in(self, slots: IndexArray) -> IndexArray:
        """Return the keys of the rows that are stored in these slots `[count]`."""
        keys = np.empty((len(slots), 2), np.int64)
        np.floor_divide(slots, self._ring, out=keys[:, 0])
        newest = self.counts.take(keys[:, 0]) - 1
        np.subtract(newest, (newest - slots) % self._ring, out=keys[:, 1])
        return keys

    def slots(self, stream: IndexArray, numbers: IndexArray) -> IndexArray:
        """Locate rows `numbers` `[batch, window]` of streams `[batch]`, stored or not."""
        slots = numbers % self._ring
        slots += (stream * self._ring)[:, None]
        return slots

    def spans(self, start: IndexArray, stop: IndexArray) -> Iterator[slice]:
        """Locate rows `start[s]` to `stop[s] - 1` of every stream s: slices of slots, in order."""
        for stream in range(self.num_streams):
            number, base = int(start[stream]), stream * self._ring
            while number < stop[stream]:
                slot = number % self._ring
                length = min(int(stop[stream]) - number, self._ring - slot)
                yield slice(base + slot, base + slot + length)
                number += length

    def flags(self, slots: IndexArray) -> npt.NDArray[np.uint8]:
        """Read kind and end flags; the write position reads GAP."""
        return self._flags.take(slots)

    def rewards(self, slots: IndexArray) -> npt.NDArray[np.float32]:
        """Read rewards."""
        return self._reward.take(slots)

    def actions(self, slots: IndexArray) -> IndexArray:
        """Read actions `[...]`, or `[..., branches]`."""
        return self._action.take(slots, axis=0).astype(np.int64)

    def take(
        self, slots: Mapping[str, IndexArray], beside: Mapping[str, Tensor] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        """Copy what rows carry into new blocks on `device`.

        Args:
            slots: Where the rows lie, `[batch, window]`, for each of these columns.
            beside: Other tensors that go there too, by other names: all in one copy.
        """
        if self.device.type == "cpu":
            # numpy, since torch splits this copy over OpenMP threads, and those wait for each
            # other at a barrier: beside one busy process that took 20 times as long.
            blocks = {
                name: torch.from_numpy(self._carried[name].numpy().take(index.reshape(-1), axis=0))
                for name, index in slots.items()
            }
        else:
            indices = {name: torch.from_numpy(i.reshape(-1)) for name, i in slots.items()}
            sent = to_device_together({**beside, **indices}, self.device)
            blocks = {name: self._carried[name].index_select(0, sent[name]) for name in slots}
            beside = {name: sent[name] for name in beside}
        return {**beside, **self._shaped(blocks, slots)}

    def take_there(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy what rows carry into new blocks: `take` for slots that are on `device` already."""
        blocks = {n: self._carried[n].index_select(0, i.reshape(-1)) for n, i in slots.items()}
        return self._shaped(blocks, slots)

    def numbers(
        self, slots: IndexArray
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Read flags, actions and rewards, as they are stored."""
        return self._flags.take(slots), self._action.take(slots, axis=0), self._reward.take(slots)

    def _shaped(
        self, blocks: Mapping[str, Tensor], slots: Mapping[str, IndexArray] | Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            name: block.view(*slots[name].shape, *self.carried[name].shape)
            for name, block in blocks.items()
        }

    def _keys_at(self, position: IndexArray) -> IndexArray:
        """Return the keys at positions 0 to `num_rows - 1`, which count stream after stream."""
        keys = np.empty((len(position), 2), np.int64)
        keys[:, 0] = self._ends.searchsorted(position, side="right")
        keys[:, 1] = position - self._shift.take(keys[:, 0])
        return keys

    def _check(self, rows: Rows) -> None:
        if len(rows) and not 0 <= rows.stream.min() <= rows.stream.max() < self.num_streams:
            raise ValueError(
                f"rows.stream is between {rows.stream.min()} and {rows.stream.max()}, but this "
                f"replay holds streams 0 to {self.num_streams - 1}: num_streams must be the "
                "number of environments of all its actors"
            )

    def _append(self, rows: Rows) -> int:
        columns = rows.complete(self.carried)
        stream = rows.stream.astype(np.int64)
        number, added = self._number(stream)
        if self.before_overwriting is not None:
            self.before_overwriting(self.counts + added - self.rows_per_stream)
        base = stream * self._ring
        slot = base + number % self._ring
        flags = (rows.kind << 2) + rows.terminated * np.uint8(TERMINATED)
        flags += rows.truncated * np.uint8(TRUNCATED)
        # Writing row r pushes out row r - rows_per_stream, which lies in the slot after it.
        pushed_out = self._flags[base + (number + 1) % self._ring]
        num_steps = int(np.count_nonzero(flags < BOUNDARY_FLAGS))
        self.num_steps += num_steps - int(np.count_nonzero(pushed_out < BOUNDARY_FLAGS))
        self._write(slot, {name: columns[name].reshape(len(rows), -1) for name in self.carried})
        self._action[slot] = rows.action
        self._reward[slot] = rows.reward
        self._flags[slot] = flags
        self._advance(added)
        return num_steps

    def _number(self, stream: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Number the rows of a mix of streams; also count the rows of each stream."""
        added = np.bincount(stream, minlength=self.num_streams)
        by_stream = np.argsort(stream, kind="stable")
        number = np.empty_like(stream)
        first = self.counts - added.cumsum() + added
        number[by_stream] = np.arange(len(stream)) + first[stream[by_stream]]
        return number, added

    def _write(self, slot: IndexArray, columns: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if self.device.type == "cpu":
            for name, values in columns.items():
                self._carried[name].numpy()[slot] = values
            return
        # Copies first: the rows may be read-only views of shared memory.
        values = {name: torch.from_numpy(column.copy()) for name, column in columns.items()}
        sent = to_device_together({"slot": torch.from_numpy(slot), **values}, self.device)
        for name in columns:
            self._carried[name].index_copy_(0, sent["slot"], sent[name])

    def _advance(self, added: IndexArray) -> None:
        self.counts += added
        np.maximum(self.counts - self.rows_per_stream, 0, out=self.oldest)
        stored = self.counts - self.oldest
        np.cumsum(stored, out=self._ends)
        np.subtract(self._ends - stored, self.oldest, out=self._shift)
        self.num_rows = int(self._ends[-1])
        heads = np.arange(self.num_streams) * self._ring + self.counts % self._ring
        self._flags[heads] = GAP_FLAGS


def keys_without(keys: IndexArray, others: IndexArray) -> IndexArray:
    """Return the keys that are not among the others; each is unique."""
    numbers = max(keys[:, 1].max(initial=0), others[:, 1].max(initial=0)) + 1
    codes, known = keys @ (numbers, 1), others @ (numbers, 1)
    return keys[~np.isin(codes, known, assume_unique=True)]


def _allocate(
    shape: tuple[int, ...], dtype: np.dtype, device: torch.device, folder: str | None
) -> Tensor:
    """Allocate without writing: the system hands out pages as rows arrive."""
    if folder is not None:
        return torch.from_numpy(_mapped(shape, dtype, Path(folder).expanduser()))
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, dtype))  # numpy asks for huge pages, torch does not
    return torch.empty(shape, dtype=getattr(torch, dtype.name), device=device)


def _mapped(shape: tuple[int, ...], dtype: np.dtype, folder: Path) -> npt.NDArray[Any]:
    """Map a file that has no name, and so goes with the process, however that ends."""
    if not folder.is_dir():
        raise ConfigError(
            f"replay.memory_map is {folder}, but there is no such folder: make it, or set "
            "memory_map to null to keep frames in memory"
        )
    needed = prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process (SIGBUS)
                os.posix_fallocate(file.fileno(), 0, needed)
            file.truncate(needed)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        free = shutil.disk_usage(folder).free
        raise ConfigError(
            f"replay.memory_map needs {format_bytes(needed)} in {folder}, where "
            f"{format_bytes(free)} are free: lower replay.capacity, or choose another folder "
            f"({error.strerror})"
        ) from error
