"""Action masks and boolean frames on their way through a ring of chunks."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from helpers.transport_actors import SPEC, assert_rows_equal, numbered

from lrl.transport import Channel, ChunkLayout, ChunkQueue, ChunkWriter
from lrl.transport.layout import MESSAGE, checksum
from lrl.types import ActionSpec, Column, EnvSpec, Rows

MASKED = replace(SPEC, action=ActionSpec(SPEC.action.branches, True))  # 3 actions


def masked(first: int, count: int) -> Rows:
    number = np.arange(first, first + count)
    return replace(numbered(first, count), action_mask=number[:, None] % 3 != np.arange(3))


def through(spec: EnvSpec, *puts: Rows, chunk_rows: int = 4) -> list[Rows]:
    """Put rows into a ring; return copies of what comes out, one for each chunk."""
    channel, queue = Channel(ChunkLayout(spec, chunk_rows, 16), 0, 0), ChunkQueue()
    queue.add(channel)
    writer = ChunkWriter(channel.actor_end, max_age_seconds=float("inf"))
    for rows in puts:
        writer.put(rows)
    writer.close()
    received = []
    while queue.qsize():
        with queue.get(0) as chunk:
            received.append(copy.deepcopy(chunk.rows))
    queue.close()
    return received


def test_masks_take_room_only_where_there_are_any():
    plain, with_masks = (ChunkLayout(spec, 30, 4) for spec in (SPEC, MASKED))
    assert with_masks.columns.pop("action_mask") == Column("bool", (3,), missing=1)
    assert "action_mask" not in plain.columns
    assert with_masks.nbytes - plain.nbytes == 4 * 128  # 90 bytes, aligned
    assert through(SPEC, numbered(0, 2))[0].action_mask is None


def test_masks_arrive_as_they_were_put():
    received = through(MASKED, masked(0, 3), masked(3, 7))
    for rows, first, count in zip(received, (0, 4, 8), (4, 4, 2), strict=True):
        assert_rows_equal(rows, masked(first, count))


def test_rows_without_a_mask_allow_everything():
    (rows,) = through(MASKED, masked(0, 2), numbered(2, 1), masked(3, 1))
    np.testing.assert_array_equal(
        rows.action_mask,
        [[False, True, True], [True, False, True], [True, True, True], [False, True, True]],
    )


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (np.ones((2, 4), bool), r"rows\.action_mask is bool\[2, 4\], expected bool\[2, 3\]"),
        (np.ones((2, 3), np.int8), r"rows\.action_mask is int8\[2, 3\]"),
    ],
)
def test_masks_of_another_type_or_shape_are_refused(mask, text):
    with pytest.raises(ValueError, match=text):
        through(MASKED, replace(numbered(0, 2), action_mask=mask))


def test_the_checksum_covers_masks():
    layout = ChunkLayout(MASKED, 4, 2)
    channel = Channel(layout, 0, 0)
    slot, message = layout.slots(channel.block)[0], MESSAGE.pack(0, 4, 0, 0, 0)
    before = checksum(message, slot)
    assert slot.rows.action_mask is not None
    slot.rows.action_mask[3, 2] = True
    assert checksum(message, slot) != before
    channel.close()


def test_a_boolean_frame_takes_a_byte_a_cell():
    frame = np.random.default_rng(0).random((3, 6, 5)) < 0.5
    bits, octets = (replace(SPEC, observation={"": Column(t, (6, 5))}) for t in ("bool", "uint8"))
    (rows,) = through(bits, replace(numbered(0, 3), frame=frame))
    assert rows.frame.dtype == np.bool_
    np.testing.assert_array_equal(rows.frame, frame)
    assert ChunkLayout(bits, 8, 2).nbytes == ChunkLayout(octets, 8, 2).nbytes
