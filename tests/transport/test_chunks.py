import copy
import pickle
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from helpers.transport_actors import SPEC, assert_rows_equal, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

import lrl.processes.shared_memory
from lrl.processes.child import LearnerGone, StopRequested
from lrl.transport import Channel, Chunk, ChunkLayout, ChunkQueue, ChunkWriter
from lrl.types import ConfigError, Rows

NEVER = float("inf")


class Loop:
    """A writer and a queue in one process, over one channel."""

    def __init__(self, chunk_rows: int, chunks: int, max_age_seconds: float = NEVER) -> None:
        self.channel = Channel(ChunkLayout(SPEC, chunk_rows, chunks), actor=3, incarnation=2)
        self.queue = ChunkQueue()
        self.queue.add(self.channel)
        self.writer = ChunkWriter(self.channel.actor_end, max_age_seconds, stop_grace_seconds=0.05)
        self.layout = self.channel.layout
        self.rows: list[Rows] = []
        self.episodes: list[tuple[float, int, float]] = []

    def take(self) -> Chunk:
        return self.queue.get(timeout=5)

    def drain(self) -> list[int]:
        """Copy and release all chunks that wait; return their sizes."""
        sizes: list[int] = []
        while self.queue.qsize():
            with self.take() as chunk:
                sizes.append(len(chunk))
                self.rows.append(copy.deepcopy(chunk.rows))
                columns = (chunk.episode_return, chunk.episode_length, chunk.episode_start_value)
                self.episodes += zip(*(column.tolist() for column in columns), strict=True)
        return sizes

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()
        self.channel.close()


def test_every_array_is_aligned_and_none_overlap():
    layout = ChunkLayout(SPEC, chunk_rows=5, chunks=3)
    channel = Channel(layout, 0, 0)
    spans = []
    for slot in layout.slots(channel.block):
        for array in (
            *slot.columns,
            slot.episode_return,
            slot.episode_length,
            slot.episode_start_value,
        ):
            address = array.__array_interface__["data"][0]
            assert address % 64 == 0
            spans.append((address, address + array.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] - spans[0][0] <= layout.nbytes
    # 192 of counters; columns of 5 rows fit in 64 bytes each, 7 + 3 of them; frames 5 * 30 -> 192.
    assert layout.nbytes == 192 + 3 * (10 * 64 + 192)
    channel.close()


def test_small_bytes_hold_everything_except_frames():
    layout = ChunkLayout(SPEC, chunk_rows=5, chunks=2)
    channel = Channel(layout, 0, 0)
    slot = layout.slots(channel.block)[1]
    slot.rows.frame[:] = 255
    assert not slot.small.any()
    slot.episode_length[4] = 1
    slot.rows.stream[0] = 1
    assert slot.small.sum() == 2
    channel.close()


def test_put_larger_than_several_chunks_is_split():
    with Loop(chunk_rows=4, chunks=8) as loop:
        loop.writer.put(numbered(0, 11))
        assert loop.drain() == [4, 4]
        loop.writer.put(numbered(11, 1))
        assert loop.drain() == [4]
        for rows, first in zip(loop.rows, (0, 4, 8), strict=True):
            assert_rows_equal(rows, numbered(first, 4))


def test_flush_sends_a_partial_chunk_and_nothing_when_empty():
    with Loop(chunk_rows=4, chunks=4) as loop:
        loop.writer.flush()
        assert loop.queue.qsize() == 0
        loop.writer.put(numbered(0, 3))
        loop.writer.flush()
        loop.writer.flush()
        assert loop.drain() == [3]


def test_old_chunk_is_sent_by_the_next_put():
    with Loop(chunk_rows=4, chunks=4, max_age_seconds=0.0) as loop:
        loop.writer.put(numbered(0, 1))
        loop.writer.put(numbered(1, 2))
        assert loop.drain() == [1, 2]


def test_episodes_travel_with_their_chunk():
    with Loop(chunk_rows=2, chunks=4) as loop:
        loop.writer.put(numbered(0, 1))
        loop.writer.put_episode(-1.5, 7, 2.5)
        loop.writer.put(numbered(1, 1))
        for length in (1, 2, 3):  # more than a chunk holds
            loop.writer.put_episode(0.25, length, -0.5 * length)
        loop.writer.close()
        assert loop.drain() == [2, 0, 0]
        assert loop.episodes == [
            (-1.5, 7, 2.5), (0.25, 1, -0.5), (0.25, 2, -1.0), (0.25, 3, -1.5),
        ]  # fmt: skip
        assert loop.channel.counters["episodes"] == 4


def test_counters_say_what_was_made_and_sent():
    with Loop(chunk_rows=4, chunks=4) as loop:
        counters = loop.channel.counters
        assert counters["policy_version"] == -1
        assert counters["started"] == 1
        assert counters["heartbeat"] == 0
        loop.writer.put(numbered(0, 6))
        loop.writer.counters["env_steps"] += 6
        assert counters["rows_produced"] == 6
        assert counters["rows_sent"] == 4
        assert counters["chunks_sent"] == 1
        assert counters["env_steps"] == 6
        assert 0 <= time.monotonic() - counters["heartbeat"] < 10
        with pytest.raises(KeyError):
            counters["env_step"] = 1
        loop.channel.close()
        assert loop.channel.counters["rows_produced"] == 6
        assert loop.channel.counters.as_dict()["rows_sent"] == 4


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("action", np.zeros(3, dtype=np.int64), r"rows\.action is int64\[3\], expected int32\[3\]"),
        ("reward", np.zeros(2, dtype=np.float32), r"rows\.reward is float32\[2\]"),
        ("frame", np.zeros((1, 6, 5), dtype=np.uint8), r"rows\.frame .* expected uint8\[3, 6, 5\]"),
        ("frame", np.zeros((3, 6, 5), dtype=np.float32), r"rows\.frame is float32"),
    ],
)
def test_rows_of_another_type_or_shape_are_refused_where_they_are_made(column, value, text):
    rows = Rows(**{**vars(numbered(0, 3)), column: value})
    with Loop(chunk_rows=4, chunks=4) as loop:
        with pytest.raises(ValueError, match=text):
            loop.writer.put(rows)
        assert loop.channel.counters["rows_produced"] == 0


def test_full_ring_blocks_until_a_chunk_is_released():
    with Loop(chunk_rows=2, chunks=2) as loop:
        thread = threading.Thread(target=loop.writer.put, args=(numbered(0, 10),))
        thread.start()
        while loop.channel.counters["wait_seconds"] == 0:
            time.sleep(0.01)
        assert loop.channel.counters["rows_produced"] == 4
        assert loop.queue.fill == 1.0
        first, second = loop.take(), loop.take()
        assert loop.queue.qsize() == 0
        assert_rows_equal(second.rows, numbered(2, 2))
        second.release()  # out of order: chunks come back as they are
        third = loop.take()
        assert_rows_equal(first.rows, numbered(0, 2))
        assert_rows_equal(third.rows, numbered(4, 2))
        first.release()
        third.release()
        while thread.is_alive():
            loop.drain()
        loop.drain()
        assert_rows_equal(loop.rows[-1], numbered(8, 2))
        assert loop.queue.totals().received == 10


def test_blocked_writer_stops_after_the_time_of_grace():
    with Loop(chunk_rows=2, chunks=2) as loop:
        loop.writer.put(numbered(0, 4))
        assert not loop.writer.stop_requested
        loop.channel.request_stop()
        assert loop.writer.stop_requested
        with pytest.raises(StopRequested):
            loop.writer.put(numbered(4, 1))
        assert loop.channel.counters["wait_seconds"] >= 0.05


def test_stop_does_not_disturb_a_writer_that_has_room():
    with Loop(chunk_rows=2, chunks=4) as loop:
        loop.channel.request_stop()
        loop.writer.put(numbered(0, 3))
        loop.writer.close()
        loop.writer.close()
        assert loop.drain() == [2, 1]


def test_learner_that_closes_ends_the_writer():
    with Loop(chunk_rows=2, chunks=2) as loop:
        loop.writer.put(numbered(0, 3))
        loop.channel.full.close()
        loop.channel.free.close()
        with pytest.raises(LearnerGone):
            loop.writer.put(numbered(3, 1))
        loop.writer.close()


def test_waiting_writer_sees_the_learner_close():
    with Loop(chunk_rows=2, chunks=2) as loop:
        loop.writer.put(numbered(0, 4))
        closer = threading.Timer(0.05, loop.channel.free.close)
        closer.start()
        with pytest.raises(LearnerGone):
            loop.writer.put(numbered(4, 1))
        closer.join()


def test_channel_and_its_end_do_not_pickle_outside_of_process_start():
    channel = Channel(ChunkLayout(SPEC, 2, 2), 0, 0)
    with pytest.raises(TypeError, match="actor_end"):
        pickle.dumps(channel)
    with pytest.raises(RuntimeError):
        pickle.dumps(channel.actor_end)
    channel.close()


@pytest.mark.parametrize(
    ("chunk_rows", "chunks", "text"),
    [(0, 2, "chunk_rows is 0"), (1, 1, "chunks is 1"), (1, 1025, "chunks is 1025")],
)
def test_impossible_layouts_are_refused(chunk_rows, chunks, text):
    with pytest.raises(ConfigError, match=text):
        ChunkLayout(SPEC, chunk_rows, chunks)


def test_ring_that_does_not_fit_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(lrl.processes.shared_memory, "available_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match=r"shared memory are needed, .* free: lower chunk_rows"):
        Channel(ChunkLayout(SPEC, 64, 16), 0, 0)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("episode"), st.integers(0, 100)),
        st.tuples(st.just("drain"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(chunk_rows=st.integers(1, 7), operations=operations)
def test_any_sequence_of_calls_arrives_as_it_was_put(chunk_rows, operations):
    episodes: list[tuple[float, int, float]] = []
    made = 0
    with Loop(chunk_rows, chunks=64) as loop:
        for name, value in operations:
            if name == "put":
                loop.writer.put(numbered(made, value, actor=3))
                made += value
            elif name == "flush":
                loop.writer.flush()
            elif name == "episode":
                episodes.append((value / 4, value, -value / 8))
                loop.writer.put_episode(*episodes[-1])
            if loop.queue.fill > 0.5 or name == "drain":
                assert all(size <= chunk_rows for size in loop.drain())
            entry = loop.queue.ledger()[3, 2]
            assert entry.produced == made
            assert entry.produced == entry.received + entry.in_flight
            assert entry.in_flight < chunk_rows + chunk_rows * 64
        loop.writer.close()
        loop.drain()
        first = 0
        for rows in loop.rows:
            assert_rows_equal(rows, numbered(first, len(rows), actor=3))
            first += len(rows)
        assert first == made
        assert loop.episodes == episodes
        assert loop.queue.totals().received == made
