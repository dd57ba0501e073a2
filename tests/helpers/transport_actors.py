"""Numbered rows, actors that send them from processes of their own, and a learner that checks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from lrl.processes.child import LearnerGone, StopRequested
from lrl.transport import ActorEnd, Channel, Chunk, ChunkLayout, ChunkQueue, ChunkWriter
from lrl.types import EnvSpec, Rows

SPEC = EnvSpec.box((4, 6, 5), "uint8", num_actions=3, frame_stack=4)


def numbered(first: int, count: int, actor: int = 0, incarnation: int = 0) -> Rows:
    """Rows whose every column tells their number, actor and incarnation."""
    number = np.arange(first, first + count, dtype=np.int64)
    frame = np.empty((count, 6, 5), dtype=np.uint8)
    frame[:] = (number % 251)[:, None, None]
    return Rows(
        stream=np.full(count, actor, dtype=np.int32),
        kind=(number % 4).astype(np.uint8),
        frame=frame,
        action=number.astype(np.int32),
        reward=(number % 1000).astype(np.float32),
        terminated=number % 2 == 0,
        truncated=number % 3 == 0,
        policy_version=number + incarnation * 10**12,
    )


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def assert_rows_equal(actual: Rows, expected: Rows) -> None:
    for name, values in vars(expected).items():
        np.testing.assert_array_equal(getattr(actual, name), values, err_msg=name)


def send_numbers(end: ActorEnd, total: int, rows_per_put: int, pause_seconds: float = 0.0) -> None:
    """Put `total` numbered rows, or rows until stopped if it is negative."""
    writer = end.open()
    made = 0
    try:
        while made != total and not writer.stop_requested:
            count = rows_per_put if total < 0 else min(rows_per_put, total - made)
            writer.put(numbered(made, count, end.actor, end.incarnation))
            made += count
            if made % 1000 < count:
                writer.put_episode(float(made), made, -float(made))
            time.sleep(pause_seconds)
        writer.close()
    except (StopRequested, LearnerGone):
        pass


def note_the_end(end: ActorEnd, path: Path) -> None:
    """Put rows until an exception says why not, and write its name to a file."""
    writer = ChunkWriter(end)
    try:
        while True:
            writer.put(numbered(0, 16))
    except (StopRequested, LearnerGone) as error:
        path.write_text(type(error).__name__)


def learn_and_die(path: Path) -> None:
    """Be a learner with one actor, and be killed once the actor has filled its ring."""
    channel = Channel(ChunkLayout(SPEC, 16, 4), 0, 0)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=note_the_end, args=(channel.actor_end, path), daemon=True)
    process.start()
    channel.started()
    while channel.counters["chunks_sent"] < 4:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Learner:
    """Starts actors, takes everything they send, and checks every row of it."""

    method: str = "forkserver"
    chunk_queue: ChunkQueue = field(default_factory=ChunkQueue)
    next_number: dict[tuple[int, int], int] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    processes: dict[int, BaseProcess] = field(default_factory=dict)

    def start(
        self,
        actor: int,
        incarnation: int = 0,
        *,
        total: int = -1,
        rows_per_put: int = 8,
        pause_seconds: float = 0.0,
        chunk_rows: int = 32,
        chunks: int = 8,
    ) -> None:
        context = multiprocessing.get_context(self.method)
        channel = Channel(ChunkLayout(SPEC, chunk_rows, chunks), actor, incarnation)
        process = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=send_numbers,
            args=(channel.actor_end, total, rows_per_put, pause_seconds),
            daemon=True,
        )
        process.start()
        channel.started()
        self.chunk_queue.add(channel)
        self.channels[actor], self.processes[actor] = channel, process

    def take(self, timeout: float = 20.0) -> tuple[int, int]:
        """Take a chunk; return its actor and incarnation."""
        with self.chunk_queue.get(timeout) as chunk:
            self.check(chunk)
            return chunk.actor, chunk.incarnation

    def check(self, chunk: Chunk) -> None:
        key = (chunk.actor, chunk.incarnation)
        first = self.next_number.get(key, 0)
        assert_rows_equal(chunk.rows, numbered(first, len(chunk), *key))
        self.next_number[key] = first + len(chunk)

    def drain(self) -> None:
        """Take all that comes until every actor has ended."""
        while any(entry.in_flight for entry in self.chunk_queue.ledger().values()) or any(
            process.is_alive() for process in self.processes.values()
        ):
            with contextlib.suppress(queue.Empty):
                self.take(timeout=0.05)

    def stop(self) -> None:
        for channel in self.channels.values():
            channel.request_stop()
        self.drain()
        for process in self.processes.values():
            process.join(100)
        codes = {key: process.exitcode for key, process in self.processes.items()}
        assert set(codes.values()) <= {0}, codes

    def close(self) -> None:
        self.chunk_queue.close()
        for process in self.processes.values():
            process.kill()
            process.join()
