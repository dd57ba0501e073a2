"""Rows of a user's own pool: how they must follow each other, against a row-by-row twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.pools.row_check import RowCheck, check_rows
from lrl.types import ActionSpec, ConfigError, EnvSpec, RowKind, Rows

SPEC = EnvSpec.box((1,), "float32", num_actions=2)
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


def checked(num_streams: int, reward_clip: float | None = None) -> RowCheck:
    return RowCheck("data.pool Mine", SPEC, num_streams, reward_clip)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("kind", 9, "kind 9 is none of"),
        ("action", 7, "action 7 is not one of the 2 actions"),
        ("action", -1, "action -1 is not one of the 2 actions"),
        ("reward", np.nan, "reward holds NaN"),
        ("frame", np.inf, "frame holds NaN"),
        ("kind", BOUNDARY, "row 1, a BOUNDARY, is terminated or truncated: these belong"),
        ("stream", -1, r"stream -1 is none of the pool's, .* 0 to 1"),
        ("stream", 2, r"stream 2 is none of the pool's, .* 0 to 1"),
    ],
)
def test_a_row_that_no_environment_gives_is_refused(column, value, words):
    rows = rows_of((0, STEP, False, False), (0, STEP, True, False))
    checked(2)(rows)
    getattr(rows, column)[1] = value
    with pytest.raises(ConfigError, match=f"data.pool Mine delivered wrong rows: {words}"):
        checked(2)(rows)


def test_a_reward_that_is_too_large_for_the_replay_is_refused():
    rows = replace(rows_of((0, STEP, False, False)), reward=np.array([1e39]))
    with pytest.raises(ConfigError, match="reward holds NaN or numbers that are infinite in floa"):
        checked(1)(rows)


def test_actions_of_several_branches_are_checked_branch_by_branch():
    spec = replace(SPEC, action=ActionSpec((4, 2)))
    rows = rows_of((0, STEP, False, False), (0, STEP, False, False))
    with pytest.raises(ValueError, match=r"action has the shape \(2,\), expected \(2, 2\)"):
        check_rows(rows, spec)
    rows = replace(rows, action=np.array([[3, 1], [1, 2]], np.int32))
    with pytest.raises(ValueError, match=r"action \[1 2\] is not one of those of branches \(4, 2"):
        check_rows(rows, spec)
    rows.kind[1] = GAP
    check_rows(rows, spec)


def test_an_episode_that_is_cut_off_needs_its_final_observation():
    check = checked(2)
    check(rows_of((0, STEP, False, True), (1, STEP, True, False)))
    check(rows_of((1, STEP, False, False), (0, BOUNDARY, False, False), (0, STEP, False, True)))
    check(rows_of((0, GAP, False, False), (0, PREFIX, False, False), (0, STEP, False, True)))
    with pytest.raises(ValueError, match="in stream 0 a PREFIX comes behind a row that is trunc"):
        check(rows_of((1, STEP, False, False), (0, PREFIX, False, False)))
    last = (1, STEP, False, True)
    with pytest.raises(ValueError, match="in stream 1 a STEP comes behind"):
        checked(2)(rows_of(last, (0, STEP, False, False), last))


def test_rewards_have_to_be_clipped():
    checked(1, 0.1)(rows_of((0, STEP, False, False), reward=-0.1))  # above 0.1 in float32
    row = rows_of((0, STEP, False, False))
    checked(1, 0.7)(replace(row, reward=np.array([0.7])))  # below 0.7 in float32
    checked(1, 0.1)(rows_of((0, BOUNDARY, False, False), reward=3.0))  # is no reward
    with pytest.raises(ValueError, match=r"reward is 3\.0, but env\.reward_clip is 0\.1"):
        checked(1, 0.1)(rows_of((0, STEP, False, False), reward=3.0))


FLAGS = st.one_of(
    st.tuples(st.just(STEP), st.booleans(), st.booleans()),
    st.tuples(st.sampled_from((BOUNDARY, PREFIX, GAP)), st.just(False), st.just(False)),
)
ROW = st.tuples(st.integers(0, 2), FLAGS).map(lambda row: (row[0], *row[1]))


def is_right(rows: list[Any], cut_off: dict[int, bool]) -> bool:
    """The naive twin: one row after the other."""
    for stream, kind, terminated, truncated in rows:
        if cut_off.get(stream) and kind in (STEP, PREFIX):
            return False
        cut_off[stream] = truncated and not terminated
    return True


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=6), max_size=4))
def test_it_finds_what_a_row_by_row_look_finds(deliveries):
    check, cut_off = checked(3), {}
    for rows in deliveries:
        if not is_right(rows, cut_off):
            with pytest.raises(ValueError, match="comes behind a row that is truncated"):
                check(rows_of(*rows))
            return
        check(rows_of(*rows))
