"""Rubbish on every way between processes: nothing of it is accepted, and nothing crashes.

`test_transport_fuzz` changes single messages; here they come in any length, by way of the queue,
and the doorbells and slots of central inference get their share.
"""

from __future__ import annotations

import contextlib
import queue
import random
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.inference import ECHO_SPEC, requesters, signed
from helpers.transport_actors import SPEC, assert_rows_equal, numbered

from lrl.inference.request_queue import RequestQueue
from lrl.inference.requests import RequestLayout, RequestSlots
from lrl.transport import Channel, ChunkLayout, ChunkQueue
from lrl.transport.layout import CHECKSUM_BYTES, MESSAGE

FEW, MANY = 2_000, 100_000
COUNTS = [FEW, pytest.param(MANY, marks=pytest.mark.slow)]
MESSAGE_BYTES = MESSAGE.size + CHECKSUM_BYTES


@pytest.fixture
def slots() -> Iterator[RequestSlots]:
    made = RequestSlots(RequestLayout(ECHO_SPEC, slots=4, rows=1))
    yield made
    made.close()


def new_channel(incarnation: int) -> Channel:
    return Channel(ChunkLayout(SPEC, 8, 4), actor=0, incarnation=incarnation)


def taken_without_waiting(chunks: ChunkQueue) -> int:
    """Number of chunks that the queue hands out now."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            chunks.get(timeout=0).release()
            count += 1
    return count


@pytest.mark.parametrize("count", COUNTS)
def test_noise_of_any_length_is_dropped_and_the_next_chunk_arrives(count):
    rng = random.Random(0)
    chunks, channel = ChunkQueue(), new_channel(0)
    chunks.add(channel)
    for _ in range(count // 100):
        for _ in range(100):
            length = rng.choice((rng.randrange(MESSAGE_BYTES), MESSAGE_BYTES))
            channel.actor_end.full.send_bytes(rng.randbytes(length))
        assert taken_without_waiting(chunks) == 0
        while channel.actor_end.free.poll():
            channel.actor_end.free.recv_bytes()
    assert sum(chunks.chunks_dropped.values()) == count // 100 * 100
    writer = channel.actor_end.open()
    for first in (0, 8):  # the first does not follow what the noise announced
        writer.put(numbered(first, 8))
    with chunks.get(timeout=5) as chunk:
        assert chunk.after_gap
        assert_rows_equal(chunk.rows, numbered(8, 8))
    chunks.close()


def test_messages_that_are_too_long_end_their_channel_alone():
    rng = random.Random(0)
    chunks, steady = ChunkQueue(), Channel(ChunkLayout(SPEC, 8, 4), actor=1, incarnation=0)
    chunks.add(steady)
    writer = steady.actor_end.open()
    for incarnation in range(40):
        channel = new_channel(incarnation)
        chunks.add(channel)
        channel.actor_end.full.send_bytes(rng.randbytes(MESSAGE_BYTES + 1 + rng.randrange(10_000)))
        writer.put(numbered(8 * incarnation, 8))
        with chunks.get(timeout=5) as chunk:
            assert chunk.actor == 1
        assert taken_without_waiting(chunks) == 0
        channel.actor_end.close()
    assert {actor for actor, _ in chunks.ledger()} == {0, 1}
    assert chunks.totals().received == 40 * 8
    chunks.close()


@pytest.mark.parametrize("count", COUNTS)
def test_rings_without_a_request_bring_nothing(slots, count):
    """A token is one byte: any slot, also one that is not there."""
    rng = random.Random(0)
    requests, actors = RequestQueue(slots, batch_requests=4), requesters(slots)
    for _ in range(count // 200):
        for token in rng.randbytes(200):
            slots.bell.ring(token)
        requests.collect(0.0)
        assert requests.seconds_waited() is None
    actors[2].ask(signed(2, 1))
    requests.collect(0.0)
    assert requests.take().slots.tolist() == [2]


@pytest.mark.parametrize("count", COUNTS)
def test_replies_to_other_requests_are_never_taken(slots, count):
    """Late ones, those to other incarnations, and numbers that nobody ever wrote."""
    rng = np.random.default_rng(0)
    (actor, *_) = requesters(slots, incarnation=3)
    reply = slots.layout.views(slots.block).reply[:1]
    for number in range(1, 8):
        actor.ask(signed(0, number))
    incarnations = rng.choice([0, 2, 3, 4, 2**40], count)
    numbers = rng.choice([0, 1, 6, 7, 8, -7, 2**62], count)
    for incarnation, number in zip(incarnations.tolist(), numbers.tolist(), strict=True):
        reply["incarnation"], reply["number"] = incarnation, number
        if number % 97 == 0:
            slots.reply_bells[0].ring(0)
        assert (actor.wait(0.0) is not None) == ((incarnation, number) == (3, 7))
