"""The learner's side of the transport: one queue over the channels of all actors."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from multiprocessing.connection import Connection, Pipe, wait

from lrl.transport.chunks import Channel
from lrl.transport.receiver import Chunk, DropReason, LedgerEntry, Receiver

# Pipes alone tell of an actor's end: they are looked at this often though chunks keep coming.
_ROUNDS_PER_LOOK = 16


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
