"""Where everything lies in an actor's ring of chunks: counters, columns, finished episodes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from lrl.processes.shared_memory import SharedBlock
from lrl.types import Column, ConfigError, EnvSpec, Rows

CounterName = Literal[
    "rows_produced",  # copied into a chunk, sent or not
    "rows_sent",
    "chunks_sent",
    "env_steps",
    "frames",
    "episodes",
    "policy_version",  # in use; -1 before the first
    "started",  # 1 once the actor process has opened its end
    "wait_seconds",  # blocked on a full ring
    "heartbeat",  # time.monotonic() of the last sign of life; 0 before the first
    "stop",  # 1 asks the actor to finish; written by the learner
    "chunks_released",  # written by the learner
]
MESSAGE = struct.Struct("<IIIIQ")
"""Chunk, rows, episodes, incarnation, sequence: "this chunk is full"; a checksum follows."""
CHECKSUM_BYTES = 4
FREE = struct.Struct("<I")
"""Chunk: "this chunk is free again"."""

_ALIGNMENT = 64
MOST_CHUNKS = 1024  # all messages of a ring fit into a pipe, so that no send ever blocks
_NAMES: tuple[str, ...] = get_args(CounterName)
_FLOATS = ("wait_seconds", "heartbeat")
_LEARNERS = ("stop", "chunks_released")
# The learner's counters come after the actor's, on a cache line of their own.
_OFFSETS = {
    name: 128 + 8 * _LEARNERS.index(name) if name in _LEARNERS else 8 * index
    for index, name in enumerate(_NAMES)
}
_HEADER_BYTES = 192
_EPISODE_COLUMNS = {
    "episode_return": Column("float64"),
    "episode_length": Column("int64"),
    "episode_start_value": Column("float64"),
}


class Counters:
    """The counters of one actor incarnation, by name; each is written by one process only.

    Args:
        buffer: Memory they lie in, shared or not.
    """

    def __init__(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._buffer = buffer
        views = {True: buffer.data.cast("d"), False: buffer.data.cast("q")}
        self._places = {
            name: (views[name in _FLOATS], offset // 8) for name, offset in _OFFSETS.items()
        }

    def __getitem__(self, name: str) -> float:
        """Return a counter: an int, but for `wait_seconds` and `heartbeat`."""
        view, index = self._places[name]
        return view[index]

    def __setitem__(self, name: str, value: float) -> None:
        view, index = self._places[name]
        view[index] = value

    def copy(self) -> Counters:
        """Return the present values in private memory."""
        return Counters(self._buffer.copy())

    def as_dict(self) -> dict[str, float]:
        """Return the present values by name."""
        return {name: self[name] for name in _NAMES}


@dataclass(frozen=True)
class Slot:
    """Views of one chunk's place in the ring, at full length.

    Attributes:
        rows: The columns.
        columns: The same arrays, in the order of the layout's columns.
        episode_return: Raw returns of finished episodes.
        episode_length: Lengths of finished episodes in environment steps.
        episode_start_value: The highest action values at their first observations.
        small: Bytes of everything except frames, which a checksum covers.
    """

    rows: Rows
    columns: tuple[npt.NDArray[np.generic], ...]
    episode_return: npt.NDArray[np.float64]
    episode_length: npt.NDArray[np.int64]
    episode_start_value: npt.NDArray[np.float64]
    small: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ChunkLayout:
    """Fixed layout of one actor's ring: counters, then chunks, every array aligned to 64 bytes.

    Attributes:
        spec: Says which columns a row has.
        chunk_rows: Rows in a chunk.
        chunks: Chunks in the ring.
    """

    spec: EnvSpec
    chunk_rows: int
    chunks: int

    def __post_init__(self) -> None:
        if self.chunk_rows < 1:
            raise ConfigError(f"chunk_rows is {self.chunk_rows}; it must be at least 1")
        if not 2 <= self.chunks <= MOST_CHUNKS:
            raise ConfigError(f"chunks is {self.chunks}; it must be from 2 to {MOST_CHUNKS}")

    @property
    def columns(self) -> dict[str, Column]:
        """Columns of a row, by name."""
        return self.spec.row_columns()

    @property
    def nbytes(self) -> int:
        """Size of the whole ring in bytes."""
        return _HEADER_BYTES + self.chunks * self._chunk_bytes

    def counters(self, block: SharedBlock) -> Counters:
        """Return the counters that lie in a block."""
        return Counters(block.array(np.uint8, _HEADER_BYTES).view(np.uint8))

    def slots(self, block: SharedBlock) -> list[Slot]:
        """Return the views of every chunk of a block."""
        return [self._slot(block, index) for index in range(self.chunks)]

    def _small(self) -> dict[str, Column]:
        """Return what a checksum covers, in its order in memory: all but frames, which follow."""
        frames = self.spec.frame_columns()
        small = {name: column for name, column in self.columns.items() if name not in frames}
        return {**small, **_EPISODE_COLUMNS}

    @property
    def _small_bytes(self) -> int:
        return self._bytes_of(self._small())

    @property
    def _chunk_bytes(self) -> int:
        return self._small_bytes + self._bytes_of(self.spec.frame_columns())

    def _bytes_of(self, columns: Mapping[str, Column]) -> int:
        return sum(_aligned(self.chunk_rows * column.nbytes) for column in columns.values())

    def _slot(self, block: SharedBlock, index: int) -> Slot:
        start = offset = _HEADER_BYTES + index * self._chunk_bytes
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for name, column in (self._small() | self.spec.frame_columns()).items():
            arrays[name] = block.array(column.type, (self.chunk_rows, *column.shape), offset)
            offset += _aligned(arrays[name].nbytes)
        columns = {name: arrays[name] for name in self.columns}
        return Slot(
            rows=Rows.of(columns),
            columns=tuple(columns.values()),
            episode_return=arrays["episode_return"].view(np.float64),
            episode_length=arrays["episode_length"].view(np.int64),
            episode_start_value=arrays["episode_start_value"].view(np.float64),
            small=block.array(np.uint8, self._small_bytes, start).view(np.uint8),
        )


def checksum(message: bytes, slot: Slot) -> bytes:
    """Return the checksum of a message and of the chunk it announces, frames excepted."""
    return zlib.crc32(slot.small.data, zlib.crc32(message)).to_bytes(CHECKSUM_BYTES, "little")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
