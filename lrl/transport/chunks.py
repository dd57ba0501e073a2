"""One actor's way to the learner: its channel, and the writer that fills chunks in the actor."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from lrl.processes.child import LearnerGone, StopRequested
from lrl.processes.shared_memory import SharedBlock
from lrl.transport.layout import FREE, MESSAGE, ChunkLayout, Slot, checksum
from lrl.types import Rows

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ActorEnd:
    """The actor's half of a channel: all that an actor process needs to send chunks.

    Picklable while a child process is started, by spawn or forkserver.
    """

    layout: ChunkLayout
    block: SharedBlock
    full: Connection
    free: Connection
    actor: int
    incarnation: int

    def open(self, max_age_seconds: float = 0.25, stop_grace_seconds: float = 2.0) -> ChunkWriter:
        """Return the writer, in the actor process. See `ChunkWriter`."""
        return ChunkWriter(self, max_age_seconds, stop_grace_seconds)

    def close(self) -> None:
        """Close this process's copies of the half. Idempotent."""
        self.full.close()
        self.free.close()


class Channel:
    """The way of one actor incarnation to the learner: a ring in shared memory and two pipes.

    Created by the learner. Nothing in it is shared with another actor, and nothing is locked.

    Args:
        layout: Layout of the ring.
        actor: Index of the actor.
        incarnation: 0 for the actor's first process, one more with every restart.

    Raises:
        ConfigError: There is not enough memory for the ring.

    Example::

        channel = Channel(layout, actor=0, incarnation=0)
        process = context.Process(target=act, args=(channel.actor_end,))
        process.start()
        channel.started()
        chunk_queue.add(channel)
    """

    def __init__(self, layout: ChunkLayout, actor: int, incarnation: int) -> None:
        self.layout = layout
        self.actor = actor
        self.incarnation = incarnation
        self.block = SharedBlock(layout.nbytes, "lower chunk_rows, chunks, or the number of actors")
        self.counters = layout.counters(self.block)
        self.counters["policy_version"] = -1
        self.full, actor_full = Pipe(duplex=False)
        actor_free, self.free = Pipe(duplex=False)
        self.actor_end = ActorEnd(layout, self.block, actor_full, actor_free, actor, incarnation)

    def started(self) -> None:
        """Close the learner's copy of the actor's half. Call it once the process is started.

        Only then does the end of the process end the channel.
        """
        self.actor_end.close()

    def request_stop(self) -> None:
        """Ask the actor to send what it has and to finish."""
        self.counters["stop"] = 1

    def close(self) -> None:
        """Close the learner's half and free the ring; counters keep their last values. Idempotent.

        Chunks that were not released stay readable.
        """
        self.counters = self.counters.copy()
        self.full.close()
        self.free.close()
        self.actor_end.close()
        self.block.close()

    def __getstate__(self) -> None:
        raise TypeError("a Channel stays in the learner: pass `channel.actor_end` to the actor")


class ChunkWriter:
    """Fills chunks with rows and sends them to the learner: the actor's sink.

    Lives in the actor process. A chunk is sent when it is full, and by the first `put` that finds
    it older than `max_age_seconds`. `put` and `put_episode` block while the ring is full; they
    then look every 0.1 s at `stop`, refresh the heartbeat and count `wait_seconds`.

    The actor's loop polls `stop_requested` and finishes with `close`, which sends the last partial
    chunk. An actor that is blocked when the learner asks it to stop waits on for
    `stop_grace_seconds`, so that the learner can drain the ring; then `StopRequested` is raised.

    Args:
        end: The actor's half of a channel.
        max_age_seconds: Age of a chunk's oldest row at which it is sent though not full.
        stop_grace_seconds: How long a blocked writer waits on after the learner asked it to stop.
    """

    def __init__(
        self, end: ActorEnd, max_age_seconds: float = 0.25, stop_grace_seconds: float = 2.0
    ) -> None:
        self.counters = end.layout.counters(end.block)
        self.counters["started"] = 1
        self.max_age_seconds = max_age_seconds
        self.stop_grace_seconds = stop_grace_seconds
        self._end = end
        self._chunk_rows = end.layout.chunk_rows
        self._expected = end.layout.columns
        self._slots = end.layout.slots(end.block)
        self._free = deque(range(end.layout.chunks))
        self._chunk: int | None = None  # the one being filled
        self._rows = self._episodes = self._sequence = self._freed = 0
        self._began = 0.0

    @property
    def stop_requested(self) -> bool:
        """Whether the learner asked the actor to stop."""
        return self.counters["stop"] != 0

    def put(self, rows: Rows) -> None:
        """Copy rows into the ring, over several chunks if need be.

        Raises:
            ValueError: A column has another type or shape than the layout.
            StopRequested: The ring stayed full after the learner asked to stop.
            LearnerGone: The learner is gone.
        """
        columns = rows.complete(self._expected)
        count = len(rows)
        done = 0
        while done < count:
            slot = self._open_chunk()
            start = self._rows
            take = min(count - done, self._chunk_rows - start)
            for name, target in zip(self._expected, slot.columns, strict=True):
                target[start : start + take] = columns[name][done : done + take]
            done += take
            self._rows = start + take
            self.counters["rows_produced"] += take
            if self._rows == self._chunk_rows:
                self.flush()
        self._refresh()

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Report a finished episode.

        Args:
            episode_return: Its raw return.
            length: Its environment steps.
            start_value: The highest value of an action at its first observation.

        Raises:
            StopRequested: The ring stayed full after the learner asked to stop.
            LearnerGone: The learner is gone.
        """
        slot = self._open_chunk()
        slot.episode_return[self._episodes] = episode_return
        slot.episode_length[self._episodes] = length
        slot.episode_start_value[self._episodes] = start_value
        self._episodes += 1
        self.counters["episodes"] += 1
        if self._episodes == self._chunk_rows:
            self.flush()

    def flush(self) -> None:
        """Send the current chunk, also if it is not full; nothing if it is empty. Never blocks.

        Raises:
            LearnerGone: The learner is gone.
        """
        if self._chunk is None:
            return
        # The order is the protocol: payload, then message, then counters.
        message = MESSAGE.pack(
            self._chunk, self._rows, self._episodes, self._end.incarnation, self._sequence
        )
        try:
            self._end.full.send_bytes(message + checksum(message, self._slots[self._chunk]))
        except OSError as error:
            raise LearnerGone("the learner no longer receives chunks") from error
        self.counters["rows_sent"] += self._rows
        self.counters["chunks_sent"] += 1
        self._sequence += 1
        self._chunk = None
        self._rows = self._episodes = 0

    def close(self) -> None:
        """Send what is left, unless the learner is gone, and close the actor's half. Idempotent."""
        try:
            self.flush()
        except LearnerGone:
            self._chunk = None
        self._end.close()

    def _refresh(self) -> None:
        now = time.monotonic()
        self.counters["heartbeat"] = now
        if self._chunk is not None and now - self._began >= self.max_age_seconds:
            self.flush()

    def _open_chunk(self) -> Slot:
        """Return the chunk being filled, taking a free one first if there is none."""
        if self._chunk is None:
            if not self._free:
                self._take_back()
            self._chunk = self._free.popleft()
            self._began = time.monotonic()
        return self._slots[self._chunk]

    def _take_back(self) -> None:
        """Collect chunks that the learner released; block until there is at least one."""
        if self.counters["chunks_released"] <= self._freed:
            self._wait()
        try:
            while True:
                (chunk,) = FREE.unpack(self._end.free.recv_bytes(FREE.size))
                self._free.append(chunk)
                self._freed += 1
                # Released chunks are counted after they are sent: this many receives do not block.
                if self.counters["chunks_released"] <= self._freed:
                    return
        except (EOFError, OSError) as error:
            raise LearnerGone("the learner no longer releases chunks") from error

    def _wait(self) -> None:
        """Block until the pipe of free chunks has something to say, if only its end."""
        stop_deadline: float | None = None
        before = time.monotonic()
        try:
            while not self._end.free.poll(_POLL_SECONDS):
                now = time.monotonic()
                self.counters["wait_seconds"] += now - before
                self.counters["heartbeat"] = before = now
                if self.stop_requested:
                    stop_deadline = stop_deadline or now + self.stop_grace_seconds
                    if now >= stop_deadline:
                        raise StopRequested("the learner asked to stop and the ring stayed full")
        except OSError as error:
            raise LearnerGone("the learner no longer releases chunks") from error
        self.counters["wait_seconds"] += time.monotonic() - before
