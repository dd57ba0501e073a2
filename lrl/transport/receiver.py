"""The learner's half of one channel: receives chunks, verifies them, and counts rows."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lrl.transport.chunks import Channel
from lrl.transport.layout import CHECKSUM_BYTES, FREE, MESSAGE, checksum
from lrl.types import Rows

DropReason = Literal["message", "size", "incarnation", "sequence", "checksum"]


@dataclass(frozen=True)
class LedgerEntry:
    """Where the rows of one actor incarnation, or of all, are.

    `produced == received + dropped + in_flight + lost`, always.

    Attributes:
        produced: Rows the actor copied into its ring.
        sent: Rows of chunks the actor announced.
        received: Rows handed out by `ChunkQueue.get`.
        dropped: Rows of chunks that did not pass verification.
        in_flight: Rows on their way, in a chunk being filled or waiting; 0 once the actor ended.
        lost: Rows that an actor which ended had not sent: at most one chunk, if it was killed.
    """

    produced: int
    sent: int
    received: int
    dropped: int
    in_flight: int
    lost: int

    def __add__(self, other: LedgerEntry) -> LedgerEntry:
        mine, theirs = vars(self), vars(other)
        return LedgerEntry(**{name: mine[name] + theirs[name] for name in mine})


class Chunk:
    """Rows as they came from one actor; use it as a context manager, or `release` it.

    Attributes:
        rows: Views into shared memory, valid until the chunk is released.
        episode_return: Raw returns of episodes that finished meanwhile; a copy.
        episode_length: Their lengths in environment steps; a copy.
        episode_start_value: The highest action values at their first observations; a copy.
        actor: Index of the actor.
        incarnation: Its incarnation.
        sequence: Number of the chunk within the incarnation.
        after_gap: Whether a chunk just before this one was dropped: none of the actor's streams
            may be joined to its earlier rows.
    """

    def __init__(
        self, receiver: Receiver, index: int, rows: int, episodes: int, sequence: int
    ) -> None:
        slot = receiver.slots[index]
        self.rows: Rows = slot.rows if rows == len(slot.rows) else slot.rows[:rows]
        self.episode_return: npt.NDArray[np.float64] = slot.episode_return[:episodes].copy()
        self.episode_length: npt.NDArray[np.int64] = slot.episode_length[:episodes].copy()
        self.episode_start_value: npt.NDArray[np.float64] = slot.episode_start_value[
            :episodes
        ].copy()
        self.actor = receiver.channel.actor
        self.incarnation = receiver.channel.incarnation
        self.sequence = sequence
        self.after_gap = receiver.after_gap
        self._receiver = receiver
        self._index: int | None = index

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def release(self) -> None:
        """Give the chunk back to its actor, which will overwrite it. Idempotent."""
        if self._index is not None:
            self._receiver.give_back(self._index)
            self._index = None

    def __enter__(self) -> Chunk:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Receiver:
    """The learner's half of one channel: receives, verifies and counts.

    Args:
        channel: The channel; the receiver closes nothing of it.
        drop_reasons: Chunks dropped, by reason; shared by all receivers of a queue.
    """

    def __init__(self, channel: Channel, drop_reasons: Counter[DropReason]) -> None:
        self.channel = channel
        self.slots = channel.layout.slots(channel.block)
        self.credits = 0  # chunks to take before waiting again
        self.ended = False  # the process is known to be dead
        self.after_gap = False
        self._drop_reasons = drop_reasons
        self._messages = self._sequence = self._received = self._dropped = 0
        # Chunks the actor has, in the order in which it fills them; messages may be damaged.
        self._order = deque(range(len(self.slots)))

    @property
    def waiting(self) -> int:
        """Chunks that can be received at once: they are counted after they are sent."""
        return max(0, int(self.channel.counters["chunks_sent"]) - self._messages)

    @property
    def occupied(self) -> int:
        """Chunks that the actor cannot fill now."""
        counters = self.channel.counters
        return max(0, int(counters["chunks_sent"] - counters["chunks_released"]))

    def receive(self) -> Chunk | None:
        """Return the next chunk, or None if it had to be dropped.

        Raises:
            EOFError: The actor ended and everything it sent was received.
            OSError: The channel is closed.
        """
        message = self.channel.full.recv_bytes(MESSAGE.size + CHECKSUM_BYTES)
        self._messages += 1
        sent = self._order.popleft() if self._order else None
        if len(message) != MESSAGE.size + CHECKSUM_BYTES:
            return self._drop("message", 0, sent)
        head, crc = message[: MESSAGE.size], message[MESSAGE.size :]
        index, rows, episodes, incarnation, sequence = MESSAGE.unpack(head)
        expected, self._sequence = self._sequence, sequence + 1
        if index >= len(self.slots) or max(rows, episodes) > self.channel.layout.chunk_rows:
            return self._drop("size", 0, sent)
        fault: DropReason | None = None
        if incarnation != self.channel.incarnation:
            fault = "incarnation"
        elif (sequence, index) != (expected, sent):
            fault = "sequence"
        elif crc != checksum(head, self.slots[index]):
            fault = "checksum"
        if fault is not None:
            return self._drop(fault, rows, sent)
        self._received += rows
        chunk = Chunk(self, index, rows, episodes, sequence)
        self.after_gap = False
        return chunk

    def give_back(self, index: int) -> None:
        """Let the actor fill a chunk again, if it still lives."""
        self._order.append(index)
        try:
            self.channel.free.send_bytes(FREE.pack(index))
        except OSError:
            return  # the actor ended: nobody will fill the chunk again
        self.channel.counters["chunks_released"] += 1

    def entry(self, ended: bool) -> LedgerEntry:
        """Return where the rows are; those that an ended actor had not sent are lost."""
        received, dropped = self._received, self._dropped  # before what they can never exceed
        counters = self.channel.counters
        produced = int(counters["rows_produced"])
        rest = produced - received - dropped
        # A process killed between sending and counting has sent more than it counted.
        sent = max(int(counters["rows_sent"]), received + dropped)
        return LedgerEntry(produced, sent, received, dropped, *((0, rest) if ended else (rest, 0)))

    def _drop(self, reason: DropReason, rows: int, index: int | None) -> None:
        if index is not None:
            self.give_back(index)
        self.after_gap = True
        self._dropped += rows
        self._drop_reasons[reason] += 1
