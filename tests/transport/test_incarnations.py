"""Rows of an actor's next incarnation come after all of the one before, whenever both are there."""

from __future__ import annotations

import queue

import pytest
from helpers.transport_actors import SPEC, assert_rows_equal, numbered

from lrl.transport import Channel, ChunkLayout, ChunkQueue, ChunkWriter

CHUNK_ROWS = 4


@pytest.fixture
def chunks():
    made = ChunkQueue()
    yield made
    made.close()


def begin(chunks: ChunkQueue, actor: int, incarnation: int) -> tuple[Channel, ChunkWriter]:
    channel = Channel(ChunkLayout(SPEC, CHUNK_ROWS, 4), actor, incarnation)
    chunks.add(channel)
    return channel, channel.actor_end.open()


def put(writer: ChunkWriter, chunk: int, actor: int, incarnation: int) -> None:
    writer.put(numbered(CHUNK_ROWS * chunk, CHUNK_ROWS, actor, incarnation))


def taken(chunks: ChunkQueue) -> list[tuple[int, int, int]]:
    """Actor, incarnation and sequence of all chunks that can be had now."""
    found = []
    try:
        while True:
            with chunks.get(timeout=0) as chunk:
                found.append((chunk.actor, chunk.incarnation, chunk.sequence))
                expected = numbered(CHUNK_ROWS * chunk.sequence, CHUNK_ROWS, *found[-1][:2])
                assert_rows_equal(chunk.rows, expected)
    except queue.Empty:
        return found


def test_the_successor_waits_until_its_predecessor_is_drained(chunks):
    old, old_writer = begin(chunks, 0, 0)
    _, other_writer = begin(chunks, 1, 0)
    for chunk in range(3):
        put(old_writer, chunk, 0, 0)
    old.started()  # closes the actor's end, as its death does
    _, new_writer = begin(chunks, 0, 1)
    put(new_writer, 0, 0, 1)
    put(other_writer, 0, 1, 0)
    found = taken(chunks)
    assert [place for place in found if place[0] == 0] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0),
    ]  # fmt: skip
    assert (1, 0, 0) in found
    put(new_writer, 1, 0, 1)
    assert taken(chunks) == [(0, 1, 1)]


def test_a_predecessor_whose_pipe_stays_open_is_let_go_when_it_is_retired(chunks):
    _, old_writer = begin(chunks, 0, 0)
    put(old_writer, 0, 0, 0)
    _, new_writer = begin(chunks, 0, 1)
    put(new_writer, 0, 0, 1)
    assert taken(chunks) == [(0, 0, 0)]
    chunks.retire(0, 0)
    assert taken(chunks) == [(0, 1, 0)]


def test_several_that_died_before_anyone_looked_come_in_their_order(chunks):
    for incarnation in range(4):
        channel, writer = begin(chunks, 0, incarnation)
        put(writer, 0, 0, incarnation)
        channel.started()
        chunks.retire(0, incarnation)
    assert taken(chunks) == [(0, incarnation, 0) for incarnation in range(4)]
    assert chunks.totals().received == 4 * CHUNK_ROWS


def test_waiting_chunks_of_a_successor_block_nobody(chunks):
    """They are counted as waiting, though they cannot be had yet."""
    begin(chunks, 0, 0)
    _, new_writer = begin(chunks, 0, 1)
    put(new_writer, 0, 0, 1)
    assert chunks.qsize() == 1
    with pytest.raises(queue.Empty):
        chunks.get(timeout=0.05)
