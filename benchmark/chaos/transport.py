"""Actors killed while they do nothing but send rows.

Four actors send what `LedgerEnv` gave as fast as they can, in chunks of 200 B to 300 kB, and the
learner checks every row. After each kill all others must go on.
"""

from __future__ import annotations

import copy
import multiprocessing
import queue
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from lrl.actors.actor import Actor, FunctionPolicy
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.processes.child import LearnerGone, StopRequested
from lrl.schedules import Constant
from lrl.testing import Ledger, LedgerEnv
from lrl.transport import ActorEnd, Channel, ChunkLayout, ChunkQueue
from lrl.types import EnvSpec, Rows

SIZES = ((8, 1), (32, 8), (64, 60), (64, 240))
"""Of each actor: rows in a chunk, and copies of the 20 bytes that a frame has."""
_ROWS = 20_000
_STALL_SECONDS = 30.0


def kill_in_transport(kills: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """Kill actors at random moments inside the transport, each followed by a new one.

    Args:
        kills: How many.
        folder: Takes a file of rows.
        seed: Of victims and moments.

    Returns:
        `kills`; `stalls`: after how many another actor gave nothing for half a minute; `rows` that
        came, with the ledger's faults; `lost` rows, and `lost_chunks`: the most that one actor
        lost, in chunks.
    """
    path = folder / "rows.npz"
    np.savez(path, **_record(_ROWS).columns())
    learner = _Learner(path)
    try:
        for actor in range(len(SIZES)):
            learner.start(actor)
        return learner.attack(kills, random.Random(seed))
    finally:
        learner.close()


class _Learner:
    """Takes all chunks and checks each incarnation with a ledger of its own.

    Between two kills it only copies: a learner that checks is slower than the actors, which would
    then all be killed where they wait for room.
    """

    def __init__(self, path: Path) -> None:
        self.chunks = ChunkQueue()
        self._path = path
        self._context: Any = multiprocessing.get_context("forkserver")
        # Each process imports the main module, too, which takes seconds unless it is there before.
        self._context.set_forkserver_preload([__name__, "benchmark.chaos.scenarios"])
        self._processes: dict[int, BaseProcess] = {}
        self._incarnations: dict[int, int] = {}
        self._ledgers: dict[tuple[int, int], Ledger] = {}
        self._received: Counter[tuple[int, int]] = Counter()
        self._unchecked: list[tuple[tuple[int, int], Rows]] = []

    def start(self, actor: int) -> None:
        incarnation = self._incarnations[actor] = self._incarnations.get(actor, -1) + 1
        chunk_rows, copies = SIZES[actor]
        layout = ChunkLayout(EnvSpec.box((5 * copies, 4), "uint8", 3), chunk_rows, 8)
        channel = Channel(layout, actor, incarnation)
        arguments = (channel.actor_end, self._path, copies)
        process = self._context.Process(target=_send, args=arguments, daemon=True)
        process.start()
        channel.started()
        self.chunks.add(channel)
        self._processes[actor] = process
        self._ledgers[actor, incarnation] = Ledger(LedgerEnv())

    def attack(self, kills: int, rng: random.Random) -> dict[str, int]:
        stalls = made = 0
        while made < kills:
            victim = rng.randrange(len(SIZES))
            while not self._received[victim, self._incarnations[victim]]:
                if self._take() is None:
                    raise TimeoutError(f"no actor sends anything after {made} kills")
            deadline = time.monotonic() + rng.random() * 0.03
            while time.monotonic() < deadline:
                self._take()
            killed = self._processes[victim]
            killed.kill()
            waited_for = set(self._processes) - {victim}
            while waited_for:
                actor = self._take()
                if actor is None:
                    stalls += 1
                    break
                waited_for.discard(actor)
            killed.join()
            made += killed.exitcode == -signal.SIGKILL  # not ended by itself
            if self._processes[victim] is killed:  # else its last rows came, and it has a successor
                self.start(victim)
            self._check()
        return {"kills": made, "stalls": stalls, **self._stop()}

    def close(self) -> None:
        self.chunks.close()
        for process in self._processes.values():
            process.kill()
            process.join()

    def _take(self) -> int | None:
        """Copy the next chunk; return its actor, None if nothing came for too long."""
        key = self._copy(_STALL_SECONDS)
        if key is None:
            return None
        actor, incarnation = key
        if self._received[key] == _ROWS and self._incarnations[actor] == incarnation:
            self._processes[actor].join()
            self.start(actor)  # it has sent all it had
        return actor

    def _copy(self, timeout: float) -> tuple[int, int] | None:
        try:
            chunk = self.chunks.get(timeout)
        except queue.Empty:
            return None
        key = chunk.actor, chunk.incarnation
        with chunk:
            self._unchecked.append((key, copy.deepcopy(chunk.rows)))
        self._received[key] += len(chunk)
        return key

    def _check(self) -> None:
        for key, rows in self._unchecked:
            self._ledgers[key].take(rows)
        self._unchecked.clear()

    def _stop(self) -> dict[str, int]:
        for actor, process in self._processes.items():
            process.kill()
            process.join()
            self.chunks.retire(actor, self._incarnations[actor])
        while self.chunks.qsize():
            self._copy(0.1)
        self._check()
        entries = self.chunks.ledger()
        faults = {
            name: sum(ledger.counts[name] for ledger in self._ledgers.values())
            for name in ("rows", "corrupt", "duplicated", "missing")
        }
        lost_chunks = max(
            -(-entry.lost // SIZES[actor][0]) for (actor, _), entry in entries.items()
        )
        totals = self.chunks.totals()
        return {
            **faults,
            "received": totals.received,
            "dropped_chunks": sum(self.chunks.chunks_dropped.values()),
            "lost": totals.lost,
            "lost_chunks": lost_chunks,
        }


def _record(count: int) -> Rows:
    """Return the first rows of one environment."""
    parts: list[Rows] = []

    class Sink:
        def put(self, rows: Rows) -> None:
            parts.append(copy.deepcopy(rows))

        def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
            pass

    envs = make_envs(EnvConfig("lrl/Ledger-v0"), 1, training=True)
    values = np.zeros((1, 3), np.float32)
    policy = EpsilonGreedy(Constant(1.0))
    actor = Actor(envs, FunctionPolicy(lambda _: values), policy, Sink(), ActorSlot(0))
    for _ in range(count):
        actor.step()
    columns = [part.columns() for part in parts[:count]]
    return Rows.of({name: np.concatenate([c[name] for c in columns]) for name in columns[0]})


def _send(end: ActorEnd, path: Path, copies: int) -> None:
    """Put the recorded rows in pieces of random size, as fast as the learner takes them."""
    with np.load(path, allow_pickle=False) as columns:
        rows = Rows.of(columns)
    rng = random.Random(end.incarnation)
    writer = end.open()
    try:
        start = 0
        while start < len(rows) and not writer.stop_requested:
            piece = rows[start : start + rng.randint(1, 100)]
            frame = np.tile(piece.frame, (1, copies, 1))
            writer.put(replace(piece, frame=frame))
            start += len(piece)
        writer.close()
    except (StopRequested, LearnerGone):
        pass
