"""The learner's side of the transport: one queue over the channels of all actors.

Chunks are received and verified, and their rows counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Literal

import numpy as np
import numpy.typing as npt

from lrl.transport.chunks import Channel
from lrl.transport.layout import CHECKSUM_BYTES, FREE, MESSAGE, checksum
from lrl.types import Rows

# Pipes alone tell of an actor's end: they are looked at this often though chunks keep coming.
_ROUNDS_PER_LOOK = 16

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


class ChunkQueue:
    """Chunks from all actors, with the manners of `queue.Queue`.

    Lives in the learner. One thread calls `get` and releases chunks; any thread may call the rest.
    The order is that of sending within an actor, and by turns among actors that have chunks ready.
    An actor's death is seen by the end of its pipe: what it sent is still handed out, then its
    channel is dropped, and the ledger keeps its counters. Rows of its next incarnation come after.
    """

    def __init__(self) -> None:
        self.chunks_dropped: Counter[DropReason] = Counter()
        # Both are replaced, never changed: readable without a lock.
        self._receivers: list[Receiver] = []
        self._oldest: list[Receiver] = []  # of each actor: the others wait for it
        self._ledger: dict[tuple[int, int], LedgerEntry] = {}
        self._turns: deque[Receiver] = deque()
        self._lock = threading.RLock()
        self._get_lock = threading.RLock()
        self._rounds = 0
        self._closed = False
        self._woken = False
        self._wake_reader, self._wake_writer = Pipe(duplex=False)

    def add(self, channel: Channel) -> None:
        """Receive from a channel too, from now on. A closed queue closes it at once."""
        with self._lock:
            if self._closed:
                channel.close()
                return
            key = (channel.actor, channel.incarnation)
            known = {(r.channel.actor, r.channel.incarnation) for r in self._receivers}
            if key in known or key in self._ledger:
                raise ValueError(f"actor {key[0]}, incarnation {key[1]} was added before")
            self._set_receivers([*self._receivers, Receiver(channel, self.chunks_dropped)])
            self._wake()

    def retire(self, actor: int, incarnation: int) -> None:
        """Drop a dead actor's channel once it is drained, without waiting for its pipe's end.

        For an actor whose own child processes may hold its pipe open.
        """
        with self._lock:
            for receiver in self._receivers:
                if (receiver.channel.actor, receiver.channel.incarnation) == (actor, incarnation):
                    receiver.ended = True
            self._wake()

    def get(self, timeout: float | None = None) -> Chunk:
        """Return the next chunk; it must be released.

        Args:
            timeout: Seconds to wait; None waits for ever.

        Raises:
            queue.Empty: Nothing came in time.
            ValueError: The queue is closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._get_lock:
            while not self._closed:
                if not self._turns:
                    self._turns.extend(self._wait(deadline))
                elif (chunk := self._receive(self._turns.popleft())) is not None:
                    return chunk
        raise ValueError("the chunk queue is closed")

    def release(self, chunk: Chunk) -> None:
        """Give a chunk back to its actor. Idempotent."""
        chunk.release()

    def qsize(self) -> int:
        """Return the number of chunks that wait; a dead actor counts until its end was seen."""
        return sum(max(receiver.waiting, receiver.ended) for receiver in self._receivers)

    @property
    def fill(self) -> float:
        """Fraction of all rings that actors cannot fill now; at 1 all actors are blocked."""
        receivers = self._receivers
        capacity = sum(receiver.channel.layout.chunks for receiver in receivers)
        return sum(receiver.occupied for receiver in receivers) / capacity if capacity else 0.0

    def ledger(self) -> dict[tuple[int, int], LedgerEntry]:
        """Return where all rows are, by actor and incarnation."""
        with self._lock:
            live = {
                (receiver.channel.actor, receiver.channel.incarnation): receiver.entry(ended=False)
                for receiver in self._receivers
            }
            return {**self._ledger, **live}

    def totals(self) -> LedgerEntry:
        """Return where all rows are, over all actors and incarnations."""
        return sum(self.ledger().values(), start=LedgerEntry(0, 0, 0, 0, 0, 0))

    @property
    def rows_dropped(self) -> int:
        """Rows of chunks that did not pass verification; `chunks_dropped` has the reasons."""
        return self.totals().dropped

    def close(self) -> None:
        """Drop all channels, which ends their actors, and wake a waiting `get`. Idempotent.

        Chunks not received yet count as lost: to lose none, stop the actors and drain first.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        with self._get_lock:
            for receiver in self._receivers:
                receiver.channel.request_stop()
                self._forget(receiver)
            self._wake_reader.close()
            self._wake_writer.close()

    def _wait(self, deadline: float | None) -> list[Receiver]:
        """Wait for chunks; return whose turn it is (none if only woken)."""
        self._rounds += 1
        if self._rounds % _ROUNDS_PER_LOOK and (turns := self._counted()):
            return turns
        for receiver in self._oldest:
            if receiver.ended and not receiver.channel.full.poll():
                self._forget(receiver)
        receivers = {receiver.channel.full: receiver for receiver in self._oldest}
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait([self._wake_reader, *receivers], remaining)
        if not ready:
            raise queue.Empty
        turns: list[Receiver] = []
        for connection in ready:
            if connection is self._wake_reader:
                with self._lock:
                    self._wake_reader.recv_bytes()
                    self._woken = False
            elif isinstance(connection, Connection):
                receiver = receivers[connection]
                receiver.credits = max(1, receiver.waiting)
                turns.append(receiver)
        return turns

    def _counted(self) -> list[Receiver]:
        """Return who has chunks by the counters in shared memory: cheaper than to ask the pipes."""
        turns: list[Receiver] = []
        for receiver in self._oldest:
            receiver.credits = receiver.waiting
            if receiver.credits:
                turns.append(receiver)
        return turns

    def _receive(self, receiver: Receiver) -> Chunk | None:
        try:
            chunk = receiver.receive()
        except (EOFError, OSError):
            self._forget(receiver)
            return None
        receiver.credits -= 1
        if receiver.credits > 0:
            self._turns.append(receiver)  # after the others that are ready
        return chunk

    def _forget(self, receiver: Receiver) -> None:
        with self._lock:
            self._set_receivers([other for other in self._receivers if other is not receiver])
            key = (receiver.channel.actor, receiver.channel.incarnation)
            self._ledger[key] = receiver.entry(ended=True)
        receiver.channel.close()

    def _set_receivers(self, receivers: list[Receiver]) -> None:
        self._receivers = receivers
        oldest: dict[int, Receiver] = {}
        for receiver in receivers:
            oldest.setdefault(receiver.channel.actor, receiver)
        self._oldest = list(oldest.values())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake_writer.send_bytes(b"\0")
