"""Episodes and rows of streams: what goes out comes back, however rows end or are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.replay_rows import RandomStream, Row, episode, filled, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.offline.episodes import RecordedEpisode, episodes_of, num_rows, rows_of
from lrl.pools.row_check import check_rows
from lrl.replay import Replay
from lrl.types import ActionSpec, Column, EnvSpec, RowKind

GAP = Row(RowKind.GAP, 99.0)


def transitions(replay: Replay) -> list[list[Any]]:
    """All that can be drawn, in an order that compares; where nothing is bootstrapped, no next."""
    keys = replay.samplable_keys().numpy()
    batch: Any = replay._windows.batch(keys, np.ones(len(keys), np.float32))
    found = []
    for index in range(len(keys)):
        columns = {n: c[index].tolist() for n, c in batch.columns().items() if n != "keys"}
        if columns["discount"] == 0.0:
            columns = {n: c for n, c in columns.items() if not n.startswith("next")}
        found.append(sorted(columns.items()))
    return sorted(found)


def again(replay: Replay, spec: EnvSpec, **more: Any) -> Replay:
    """What the replay's episodes make of an empty one."""
    taken = list(episodes_of(replay.streams, spec))
    copy = Replay(spec, 10_000, 1, **more)
    for one in taken:
        copy.add(rows_of(one, spec))
    assert copy.streams.num_rows == num_rows(len(taken), sum(map(len, taken)), spec)
    return copy


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.integers(30, 120))
def test_a_replay_comes_back_with_all_its_transitions(seed: int, stack: int, count: int):
    """Of a terminated step without a row after it, whose next observation nobody knows, is left."""
    environment = RandomStream(np.random.default_rng(seed), stack, 0.1)
    rows = [environment.next_row() for _ in range(count)]
    kept = rows[max(0, count - 60) :]
    for index, row in enumerate(kept):
        after = kept[index + 1].kind if index + 1 < len(kept) else RowKind.GAP
        if row.kind == RowKind.STEP and after > RowKind.BOUNDARY:
            row.terminated = False
    replay = filled(rows, capacity=60, frame_stack=stack, n_step=1)
    assert transitions(again(replay, make_spec(stack), n_step=1)) == transitions(replay)
    longer = filled(rows, capacity=60, frame_stack=stack, n_step=3)
    found = transitions(again(replay, make_spec(stack), n_step=3))
    assert [one for one in transitions(longer) if one not in found] == []


def flags_of(*rows: list[Row], capacity: int = 100) -> list[tuple[list[float], str]]:
    """Names of the observations of all episodes, and how they end."""
    replay = filled(*rows, capacity=capacity)
    ends = []
    for one in episodes_of(replay.streams, make_spec()):
        assert not (one.terminated | one.truncated)[:-1].any()
        assert one.terminated[-1] != one.truncated[-1]
        end = "terminated" if one.terminated[-1] else "truncated"
        ends.append((one.observation[:, 0].tolist(), end))
    return ends


def test_where_episodes_begin_and_end():
    lost = [*episode([1, 1, 1], "open"), GAP, *episode([1, 1], "truncated", first=10)]
    assert flags_of(lost) == [([0, 1, 2], "truncated"), ([10, 11, 12], "truncated")]
    life = episode([1, 1, 1, 1])
    life[1].terminated = True
    assert flags_of(life) == [([0, 1, 2], "terminated"), ([2, 3, 4], "terminated")]
    assert flags_of(episode([1, 1, 1]), capacity=3) == [([1, 2, 3], "terminated")]
    assert flags_of(episode([1], "open")) == []
    unseen = [*episode([1, 1])[:2], GAP]  # nobody knows what came after its end
    assert flags_of(unseen) == [([0, 1], "truncated")]


def test_returns_of_three_steps_by_hand():
    """Rewards 1, 2, 4, 8 with gamma 0.5; the end tells how far values reach."""
    spec = make_spec()
    observation = np.arange(5, dtype=np.float32)[:, None] * np.array([1, -1], np.float32)
    no, last = np.zeros(4, np.bool_), np.array([False, False, False, True])
    rewards = np.array([1.0, 2.0, 4.0, 8.0])
    whole = {0: (3.0, 0.125, 3.0), 1: (6.0, 0.125, 4.0)}
    expected = {
        "terminated": {**whole, 1: (6.0, 0.0, None), 2: (8.0, 0.0, None), 3: (8.0, 0.0, None)},
        "truncated": {**whole, 2: (8.0, 0.25, 4.0), 3: (8.0, 0.5, 4.0)},
        "neither": whole,  # what comes behind the last step is not known
    }
    for end, transitions_by_start in expected.items():
        replay = Replay(spec, 100, 1, n_step=3, gamma=0.5)
        terminated, truncated = (last if end == one else no for one in ("terminated", "truncated"))
        replay.add(
            rows_of(
                RecordedEpisode(
                    observation, np.arange(4, dtype=np.int32), rewards, terminated, truncated
                ),
                spec,
            )
        )
        keys = replay.samplable_keys().numpy()
        batch: Any = replay._windows.batch(keys, np.ones(len(keys), np.float32))
        found = {}
        for index in range(len(keys)):
            start, discount = int(batch.observation[index, 0]), float(batch.discount[index])
            after = float(batch.next_observation[index, 0]) if discount else None
            found[start] = (float(batch.reward[index]), discount, after)
            assert batch.action[index] == start
        assert found == transitions_by_start, end


def test_frames_of_a_stack_must_follow_each_other():
    spec = make_spec(frame_stack=2)
    stacks = np.array([[[7, 7], [0, 0]], [[0, 0], [1, 1]], [[5, 5], [2, 2]]], np.float32)
    ends = np.array([False, True])
    made = RecordedEpisode(stacks, np.zeros(2, np.int32), np.ones(2), ends, ~ends)
    with pytest.raises(ValueError, match="frame is no stack of frames that follow each other"):
        rows_of(made, spec)
    stacks[2, 0] = 1
    rows = rows_of(made, spec)
    assert rows.frame[:, 0].tolist() == [7, 0, 1, 2]  # the first stack may hold anything
    assert rows.kind.tolist() == [RowKind.PREFIX, RowKind.STEP, RowKind.STEP, RowKind.BOUNDARY]


def test_a_final_mask_that_allows_nothing_allows_all():
    """As board games have them; a loss over no action would be NaN."""
    spec = EnvSpec({"": Column("float32", (1,))}, ActionSpec((2, 3), masks=True))
    mask = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0]], np.bool_)
    ends = np.ones(1, np.bool_)
    frames, action = np.zeros((2, 1), np.float32), np.zeros((1, 2), np.int32)
    made = RecordedEpisode(frames, action, np.ones(1, np.float32), ends, ~ends, mask)
    rows = rows_of(made, spec)
    assert rows.action_mask is not None
    assert rows.action_mask.astype(int).tolist() == [[1, 0, 1, 1, 0], [1, 1, 0, 1, 0]]
    assert not mask[1, :2].any()  # the dataset's own
    check_rows(rows, spec)
    rows.action_mask[0, 2:] = False
    with pytest.raises(ValueError, match="action_mask of row 0, a STEP, allows nothing"):
        check_rows(rows, spec)


def test_leaves_masks_and_branches_come_back():
    columns = {"a": Column("float32", (2,)), "b": Column("int8", (), categories=(3,))}
    spec = EnvSpec(columns, ActionSpec((2, 3), masks=True))
    rng, steps = np.random.default_rng(0), 6
    ends = np.arange(steps) == steps - 1
    made = RecordedEpisode(
        {
            "a": rng.normal(size=(7, 2)).astype(np.float32),
            "b": rng.integers(3, size=7, dtype=np.int8),
        },
        rng.integers(2, size=(steps, 2), dtype=np.int32),
        rng.normal(size=steps).astype(np.float32),
        ends,
        ~ends & False,
        rng.random((7, 5)) < 0.5,
    )
    replay = Replay(spec, 100, 1)
    replay.add(rows_of(made, spec))
    (found,) = episodes_of(replay.streams, spec)
    torch.testing.assert_close(found._asdict(), made._asdict(), rtol=0, atol=0)
