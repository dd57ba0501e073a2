"""Damaged messages do not confuse which chunks the actor may fill."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.transport_actors import SPEC, numbered

from lrl.transport import Channel, ChunkLayout
from lrl.transport.layout import FREE, MESSAGE
from lrl.transport.queue import Receiver

CHUNK_ROWS = 16


def naming(chunk: int, message: bytes) -> bytes:
    _, *others = MESSAGE.unpack(message[: MESSAGE.size])
    return MESSAGE.pack(chunk, *others) + message[MESSAGE.size :]


@pytest.mark.parametrize(
    "damaged",
    [
        lambda message: naming(0, message),
        lambda message: naming(2, message),
        lambda message: naming(2**31, message),
        lambda message: message[:-9],
    ],
    ids=["names a chunk in use", "names a free chunk", "names no chunk", "is cut"],
)
def test_a_damaged_message_frees_the_chunk_that_was_sent_and_no_other(damaged):
    """The actor would fill a chunk that is freed too early while the learner reads it."""
    channel = Channel(ChunkLayout(SPEC, CHUNK_ROWS, 4), 0, 0)
    receiver, writer = Receiver(channel, Counter()), channel.actor_end.open()
    writer.put(numbered(0, 2 * CHUNK_ROWS))
    in_use = receiver.receive()
    assert in_use is not None
    channel.actor_end.full.send_bytes(damaged(channel.full.recv_bytes()))
    assert receiver.receive() is None
    in_use.release()
    freed = []
    while channel.actor_end.free.poll():
        freed += FREE.unpack(channel.actor_end.free.recv_bytes())
    assert freed == [1, 0]
    assert channel.counters["chunks_released"] == 2
    channel.close()
