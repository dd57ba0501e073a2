import queue
import threading
import time
from itertools import count

import pytest
from helpers.transport_actors import SPEC, numbered

from lrl.transport import Channel, ChunkLayout, ChunkQueue, ChunkWriter, LedgerEntry
from lrl.transport.layout import MESSAGE, checksum


def open_actor(
    chunk_queue: ChunkQueue, actor: int, chunks: int = 8, incarnation: int = 0
) -> tuple[Channel, ChunkWriter]:
    """A channel of chunks of 4 rows, and its writer in this process."""
    channel = Channel(ChunkLayout(SPEC, 4, chunks), actor, incarnation)
    chunk_queue.add(channel)
    return channel, ChunkWriter(channel.actor_end, max_age_seconds=float("inf"))


@pytest.fixture
def chunk_queue():
    made = ChunkQueue()
    yield made
    made.close()


def test_empty_queue_says_so(chunk_queue):
    for timeout in (0, 0.01):
        with pytest.raises(queue.Empty):
            chunk_queue.get(timeout)
    assert chunk_queue.qsize() == 0
    assert chunk_queue.fill == 0.0
    open_actor(chunk_queue, 0)
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)


def test_size_and_fill_follow_the_chunks(chunk_queue):
    _, writer = open_actor(chunk_queue, 0, chunks=4)
    open_actor(chunk_queue, 1, chunks=4)
    writer.put(numbered(0, 9))
    assert chunk_queue.qsize() == 2
    assert chunk_queue.fill == 2 / 8
    chunk = chunk_queue.get()
    assert chunk_queue.qsize() == 1
    assert chunk_queue.fill == 2 / 8
    chunk_queue.release(chunk)
    chunk.release()
    assert chunk_queue.fill == 1 / 8


def test_ready_actors_take_turns_and_a_late_one_need_not_wait(chunk_queue):
    writers = [open_actor(chunk_queue, actor, chunks=16)[1] for actor in range(3)]
    writers[0].put(numbered(0, 16))
    writers[1].put(numbered(0, 12))
    order = []
    for turn in count():
        if turn == 2:
            writers[2].put(numbered(0, 4))
        try:
            with chunk_queue.get(0) as chunk:
                order.append((chunk.actor, chunk.sequence))
                writers[0].put(numbered(0, 4) if turn < 10 else numbered(0, 0))  # always ready
        except queue.Empty:
            break
    assert order[:2] == [(0, 0), (1, 0)]
    assert order.index((2, 0)) < 9
    for actor in range(3):
        sequences = [sequence for other, sequence in order if other == actor]
        assert sequences == list(range(len(sequences)))
    assert len(order) == 4 + 3 + 1 + 10


def test_channel_may_be_added_while_the_learner_waits(chunk_queue):
    writers = []

    def add() -> None:
        _, writer = open_actor(chunk_queue, 5)
        writer.put(numbered(0, 4))
        writers.append(writer)

    timer = threading.Timer(0.05, add)
    timer.start()
    with chunk_queue.get(timeout=10) as chunk:
        assert chunk.actor == 5
    timer.join()


def test_ended_actor_is_drained_then_dropped_and_stays_in_the_ledger(chunk_queue):
    channel, writer = open_actor(chunk_queue, 0)
    writer.put(numbered(0, 7))
    channel.started()  # what the death of a process does: 3 rows are never sent
    assert chunk_queue.totals() == LedgerEntry(7, 4, 0, 0, in_flight=7, lost=0)
    chunk = chunk_queue.get(0)
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)
    assert chunk.rows.action.tolist() == [0, 1, 2, 3]  # readable though its channel is gone
    chunk.release()
    assert chunk_queue.ledger() == {(0, 0): LedgerEntry(7, 4, 4, 0, in_flight=0, lost=3)}
    assert channel.counters["rows_produced"] == 7
    channel.request_stop()
    _, writer = open_actor(chunk_queue, 0, incarnation=1)
    writer.put(numbered(0, 4))
    assert chunk_queue.totals() == LedgerEntry(11, 8, 4, 0, in_flight=4, lost=3)


def test_retired_actor_is_drained_then_dropped_though_its_pipe_stays_open(chunk_queue):
    _, writer = open_actor(chunk_queue, 0)
    writer.put(numbered(0, 5))
    chunk_queue.retire(0, 0)
    chunk_queue.get(0).release()
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)
    assert chunk_queue.ledger() == {(0, 0): LedgerEntry(5, 4, 4, 0, in_flight=0, lost=1)}


def test_an_incarnation_comes_only_once(chunk_queue):
    channel, _ = open_actor(chunk_queue, 0)
    with pytest.raises(ValueError, match="actor 0, incarnation 0 was added before"):
        chunk_queue.add(channel)


@pytest.mark.parametrize("column", ["stream", "reward", "policy_version"])
def test_changed_byte_is_dropped_counted_and_leaves_a_gap(chunk_queue, column):
    channel, writer = open_actor(chunk_queue, 0, chunks=2)
    writer.put(numbered(0, 8))
    slot = channel.layout.slots(channel.block)[0]
    getattr(slot.rows, column).view("uint8")[5] ^= 1
    with chunk_queue.get(0) as chunk:
        assert chunk.sequence == 1
        assert chunk.after_gap
    writer.put(numbered(8, 8))  # the dropped chunk was given back
    for _ in range(2):
        with chunk_queue.get(0) as chunk:
            assert not chunk.after_gap
    assert chunk_queue.chunks_dropped == {"checksum": 1}
    assert chunk_queue.rows_dropped == 4
    assert chunk_queue.totals() == LedgerEntry(16, 16, 12, 4, in_flight=0, lost=0)


@pytest.mark.parametrize(
    ("index", "rows", "episodes", "incarnation", "sequence", "reason"),
    [
        (2, 4, 0, 0, 0, "size"),
        (0, 5, 0, 0, 0, "size"),
        (0, 4, 5, 0, 0, "size"),
        (0, 4, 0, 1, 0, "incarnation"),
        (0, 4, 0, 0, 1, "sequence"),
    ],
)
def test_wrong_message_is_dropped_by_reason(
    chunk_queue, index, rows, episodes, incarnation, sequence, reason
):
    channel, _ = open_actor(chunk_queue, 0, chunks=2)
    slot = channel.layout.slots(channel.block)[0]
    message = MESSAGE.pack(index, rows, episodes, incarnation, sequence)
    channel.actor_end.full.send_bytes(message + checksum(message, slot))
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)
    assert chunk_queue.chunks_dropped == {reason: 1}


def test_message_of_another_size_is_dropped_and_a_long_one_ends_the_channel(chunk_queue):
    channel, _ = open_actor(chunk_queue, 0)
    channel.actor_end.full.send_bytes(b"short")
    channel.actor_end.full.send_bytes(b"x" * 100)
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)
    assert chunk_queue.chunks_dropped == {"message": 1}
    assert channel.full.closed


def test_close_wakes_a_waiting_learner_and_is_idempotent():
    chunk_queue = ChunkQueue()
    channel, _ = open_actor(chunk_queue, 0)
    timer = threading.Timer(0.05, chunk_queue.close)
    timer.start()
    with pytest.raises(ValueError, match="closed"):
        chunk_queue.get(timeout=30)
    timer.join()
    chunk_queue.close()
    assert channel.full.closed
    with pytest.raises(ValueError, match="closed"):
        chunk_queue.get(0)
    late = Channel(ChunkLayout(SPEC, 4, 2), 1, 0)
    chunk_queue.add(late)
    assert late.full.closed


def test_rows_not_received_before_close_count_as_lost():
    chunk_queue = ChunkQueue()
    _, writer = open_actor(chunk_queue, 0)
    writer.put(numbered(0, 6))
    chunk_queue.get(0).release()
    chunk_queue.close()
    assert chunk_queue.totals() == LedgerEntry(6, 4, 4, 0, in_flight=0, lost=2)


def test_get_does_not_outstay_its_timeout_when_only_woken(chunk_queue):
    stop = threading.Event()

    def wake() -> None:
        while not stop.wait(0.005):
            chunk_queue.retire(9, 9)

    thread = threading.Thread(target=wake)
    thread.start()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        chunk_queue.get(0.1)
    assert 0.05 < time.monotonic() - began < 10
    stop.set()
    thread.join()


def test_a_dead_actor_counts_until_its_end_was_seen(chunk_queue):
    """A learner that only takes what waits must come to forget it, or it is never restarted."""
    channel, writer = open_actor(chunk_queue, 0)
    writer.put(numbered(0, 2))  # not sent: lost with the actor
    assert chunk_queue.qsize() == 0
    channel.started()
    chunk_queue.retire(0, 0)
    assert chunk_queue.qsize() == 1
    with pytest.raises(queue.Empty):
        chunk_queue.get(0)
    assert chunk_queue.qsize() == 0
    assert chunk_queue.ledger()[0, 0].in_flight == 0
