"""The transport between real processes: nothing lost, nothing doubled, nobody blocked."""

import contextlib
import multiprocessing
import queue
import random
import resource
import sys
import time

import pytest
from helpers.transport_actors import SPEC, Learner, learn_and_die, names_in, note_the_end

from benchmark.leftovers import named_segments, segments_since
from lrl.transport import Channel, ChunkLayout, ChunkQueue

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /dev/shm")


@pytest.fixture(params=["forkserver", "spawn"])
def learner(request):
    made = Learner(method=request.param)
    yield made
    made.close()


def exchange(learner: Learner, rows_each: int) -> None:
    for actor, rows_per_put in enumerate((1, 7, 32, 500)):
        rows = rows_each // 20 if rows_per_put == 1 else rows_each
        learner.start(actor, total=rows, rows_per_put=rows_per_put)
    learner.drain()
    for (actor, _), entry in learner.chunk_queue.ledger().items():
        assert entry.produced == (rows_each // 20 if actor == 0 else rows_each)
        assert entry.received == entry.sent == entry.produced
        assert entry.dropped == entry.lost == entry.in_flight == 0


def test_no_row_is_lost_or_doubled(learner):
    exchange(learner, rows_each=35_000 if learner.method == "forkserver" else 10_000)


@pytest.mark.slow
def test_no_row_of_a_million_is_lost_or_doubled():
    learner = Learner()
    exchange(learner, rows_each=330_000)
    assert learner.chunk_queue.totals().received >= 1_000_000
    learner.close()


def kill_often(learner: Learner, kills: int, actors: int = 4) -> None:
    """Kill random actors at random moments and start their next incarnations."""
    rng = random.Random(0)
    incarnations = dict.fromkeys(range(actors), 0)
    for actor in range(actors):
        learner.start(actor, rows_per_put=5, pause_seconds=0.001)
    for _ in range(kills):
        victim = rng.randrange(actors)
        while learner.channels[victim].counters["rows_produced"] < 64:
            learner.take()
        deadline = time.monotonic() + rng.random() * 0.03
        while time.monotonic() < deadline:
            learner.take()
        learner.processes[victim].kill()
        survivors = set(range(actors)) - {victim}
        while survivors:
            survivors.discard(learner.take()[0])
        learner.processes[victim].join()
        incarnations[victim] += 1
        learner.start(victim, incarnations[victim], rows_per_put=5, pause_seconds=0.001)
    learner.stop()
    ledger = learner.chunk_queue.ledger()
    assert len(ledger) == actors + kills
    assert not learner.chunk_queue.chunks_dropped
    for (actor, incarnation), entry in ledger.items():
        assert entry.received == learner.next_number.get((actor, incarnation), 0)
        assert entry.produced == entry.received + entry.lost
        # A whole chunk of 32 is lost by a kill between its last row and its message.
        assert entry.lost <= (32 if incarnation < incarnations[actor] else 0)


def test_killed_actors_lose_at_most_a_chunk_and_stall_nobody():
    learner = Learner()
    kill_often(learner, kills=20)
    learner.close()


@pytest.mark.slow
def test_two_hundred_kills():
    learner = Learner()
    kill_often(learner, kills=200)
    learner.close()


def test_full_ring_blocks_its_actor_alone_and_memory_stays_flat(learner):
    learner.start(0, chunks=4)
    channel = learner.channels[0]
    while channel.counters["wait_seconds"] == 0:
        time.sleep(0.01)
    produced = channel.counters["rows_produced"]
    assert 32 < produced <= 4 * 32  # a chunk may have been sent half full
    assert learner.chunk_queue.fill == 1.0
    heartbeat = channel.counters["heartbeat"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while channel.counters["heartbeat"] < heartbeat + 0.25:
        time.sleep(0.01)
    assert channel.counters["rows_produced"] == produced
    for _ in range(500):
        learner.take()
    learner.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB
    entry = learner.chunk_queue.totals()
    assert entry.produced == entry.received >= 500 * 32


def test_stop_sends_the_last_partial_chunk(learner):
    learner.start(0, rows_per_put=3, total=100)
    learner.start(1, rows_per_put=3, pause_seconds=0.001)
    while learner.next_number.get((0, 0)) != 100 or (1, 0) not in learner.next_number:
        learner.take()
    learner.stop()
    totals = learner.chunk_queue.totals()
    assert totals.produced == totals.received


def test_killed_learner_ends_a_waiting_writer(tmp_path):
    path = tmp_path / "end"
    process = multiprocessing.get_context("spawn").Process(target=learn_and_die, args=(path,))
    process.start()
    process.join(100)
    assert process.exitcode == -9
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.read_text() == "LearnerGone"


def test_closed_queue_ends_its_actors(tmp_path):
    path = tmp_path / "end"
    channel = Channel(ChunkLayout(SPEC, 16, 4), 0, 0)
    process = multiprocessing.get_context("forkserver").Process(
        target=note_the_end, args=(channel.actor_end, path)
    )
    process.start()
    channel.started()
    chunk_queue = ChunkQueue()
    chunk_queue.add(channel)
    chunk_queue.get(20).release()
    chunk_queue.close()
    process.join(100)
    assert path.read_text() == "LearnerGone"


@linux
def test_nothing_is_left_behind():
    names = named_segments()

    def run(incarnations: int) -> int:
        learner = Learner()
        for incarnation in range(incarnations):
            learner.start(0, incarnation, rows_per_put=64)
            learner.take()
            assert segments_since(names) == []
            learner.processes[0].kill()
            learner.processes[0].join()
            learner.processes[0].close()
            del learner.processes[0]
            with contextlib.suppress(queue.Empty):
                while True:
                    learner.take(timeout=0)
        learner.close()
        return len(names_in("/proc/self/fd"))

    descriptors = run(1)  # the fork server stays
    assert run(5) == descriptors
