"""Rows of a user's own pool: how they must follow each other, against a row-by-row twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.pools.row_check import RowCheck
from lrl.types import RowKind, Rows

STEP, BOUNDARY, PREFIX, GAP = RowKind


def rows_of(*rows: tuple[int, RowKind, bool, bool], reward: float = 0.0) -> Rows:
    """Return rows given as (stream, kind, terminated, truncated)."""
    stream, kind, terminated, truncated = map(np.array, zip(*rows, strict=True))
    count = len(rows)
    return Rows(
        stream.astype(np.int32),
        kind.astype(np.uint8),
        np.zeros((count, 1), np.float32),
        np.zeros(count, np.int32),
        np.full(count, reward, np.float32),
        terminated,
        truncated,
        np.zeros(count, np.int64),
    )


def test_an_episode_that_is_cut_off_needs_its_final_observation():
    check = RowCheck(2)
    check(rows_of((0, STEP, False, True), (1, STEP, True, False)))
    check(rows_of((1, STEP, False, False), (0, BOUNDARY, False, False), (0, STEP, False, True)))
    check(rows_of((0, GAP, False, False), (0, PREFIX, False, False), (0, STEP, False, True)))
    with pytest.raises(ValueError, match="in stream 0 a PREFIX comes behind a row that is trunc"):
        check(rows_of((1, STEP, False, False), (0, PREFIX, False, False)))
    last = (1, STEP, False, True)
    with pytest.raises(ValueError, match="in stream 1 a STEP comes behind"):
        RowCheck(2)(rows_of(last, (0, STEP, False, False), last))


@pytest.mark.parametrize("stream", [-1, 2])
def test_a_stream_that_does_not_exist_is_refused(stream):
    with pytest.raises(ValueError, match=rf"stream {stream} is none of the pool's, .* 0 to 1"):
        RowCheck(2)(rows_of((stream, STEP, False, False)))


def test_rewards_have_to_be_clipped():
    RowCheck(1, 0.1)(rows_of((0, STEP, False, False), reward=-0.1))  # above 0.1 in float32
    row = rows_of((0, STEP, False, False))
    RowCheck(1, 0.7)(replace(row, reward=np.array([0.7])))  # below 0.7 in float32
    RowCheck(1, 0.1)(rows_of((0, BOUNDARY, False, False), reward=3.0))  # is no reward
    with pytest.raises(ValueError, match=r"reward is 3\.0, but env\.reward_clip is 0\.1"):
        RowCheck(1, 0.1)(rows_of((0, STEP, False, False), reward=3.0))


ROW = st.tuples(st.integers(0, 2), st.sampled_from(RowKind), st.booleans(), st.booleans())


def is_right(rows: list[Any], cut_off: dict[int, bool]) -> bool:
    """The naive twin: one row after the other."""
    for stream, kind, terminated, truncated in rows:
        if cut_off.get(stream) and kind in (STEP, PREFIX):
            return False
        cut_off[stream] = kind == STEP and truncated and not terminated
    return True


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=6), max_size=4))
def test_it_finds_what_a_row_by_row_look_finds(deliveries):
    check, cut_off = RowCheck(3), {}
    for rows in deliveries:
        if not is_right(rows, cut_off):
            with pytest.raises(ValueError, match="comes behind a row that is truncated"):
                check(rows_of(*rows))
            return
        check(rows_of(*rows))
