"""Replays of random leaves against the naive twin: rows, stacks and n-step transitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from helpers.replay_rows import NaiveReplay, RandomStream, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import Replay
from lrl.types import ActionSpec, Column, EnvSpec, Rows, leaves_of, whole_of

NAMES = st.text("abz.", min_size=1, max_size=3)
LARGEST = {"bool": 1, "uint8": 255, "int8": 100, "int16": 300, "float32": 2**20}


@st.composite
def leaves(draw: st.DrawFn, frame_stack: int) -> dict[str, Column]:
    """Columns of any order, types and shapes; at least one has the whole stack."""
    names = (
        draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)) if draw(st.booleans()) else [""]
    )
    columns: dict[str, Column] = {}
    for index, name in enumerate(names):
        dtype = draw(st.sampled_from(sorted(LARGEST)))
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        stack = frame_stack if index == 0 or draw(st.booleans()) else 1
        counts = (LARGEST[dtype],) * int(np.prod(shape)) if dtype in ("int8", "int16") else ()
        columns[name] = Column(dtype, shape, stack, categories=counts)
    return columns


def value_of(name: str, column: Column, row: float) -> np.ndarray:
    """Return what a leaf shows in the row of a name: other numbers in each place."""
    places = np.arange(int(np.prod(column.shape))).reshape(column.shape)
    numbers = 7 * int(row) + 3 * len(name) + places
    return (numbers % (LARGEST[column.dtype] + (column.dtype != "int8"))).astype(column.dtype)


def packed(rows: list[tuple[int, Any]], columns: Mapping[str, Column]) -> Rows:
    frames = {
        name: np.stack([value_of(name, column, row.name) for _, row in rows])
        for name, column in columns.items()
    }
    return replace(pack(rows), frame=whole_of(frames))


def assert_shows(
    observation: Any, index: int, rows: list[float], columns: Mapping[str, Column]
) -> None:
    """Check one observation of a batch, whose stack is made of the rows of these names."""
    found = leaves_of(observation)
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        frames = [value_of(name, column, row) for row in rows[-column.stack :]]
        stacked = torch.from_numpy(np.stack(frames))
        expected = stacked if column.stack > 1 else stacked[0]
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name][index], expected)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    data=st.data(),
    frame_stack=st.integers(1, 3),
    n_step=st.integers(1, 5),
    num_streams=st.integers(1, 3),
    extra_rows=st.integers(0, 30),
    chunk_rows=st.integers(1, 60),
    hazard=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_twin(
    data: st.DataObject,
    frame_stack: int,
    n_step: int,
    num_streams: int,
    extra_rows: int,
    chunk_rows: int,
    hazard: float,
    seed: int,
) -> None:
    columns = data.draw(leaves(frame_stack))
    rng = np.random.default_rng(seed)
    rows_per_stream = frame_stack + n_step + 1 + extra_rows
    spec = EnvSpec(columns, ActionSpec((5,)))
    replay = Replay(spec, rows_per_stream * num_streams, num_streams, n_step=n_step, gamma=0.5)
    twin = NaiveReplay(rows_per_stream, num_streams, frame_stack)
    environments = [RandomStream(rng, frame_stack, hazard) for _ in range(num_streams)]
    for _ in range(4):
        streams = rng.integers(num_streams, size=chunk_rows)
        rows = [(int(stream), environments[stream].next_row()) for stream in streams]
        twin.append(rows)
        given_rows = packed(rows, columns)
        replay.add(given_rows)
        for leaf in leaves_of(given_rows.frame).values():
            leaf[...] = 1  # as an actor does with a chunk that was given back
        expected = twin.transitions(n_step, 0.5)
        keys = replay.samplable_keys()
        assert {(stream, number) for stream, number in keys.tolist()} == set(expected)
        if not expected:
            continue
        batch = replay.sample(8)
        for index, (stream, number) in enumerate(batch.keys.tolist()):
            transition = expected[stream, number]
            assert batch.action[index] == transition.action
            assert batch.reward[index] == transition.reward
            assert batch.discount[index] == transition.discount
            assert_shows(batch.observation, index, transition.observation, columns)
            if transition.discount:
                assert_shows(batch.next_observation, index, transition.next_observation, columns)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data(), frame_stack=st.integers(1, 3), order=st.randoms())
def test_what_is_saved_has_its_columns_in_one_order(
    data: st.DataObject, frame_stack: int, order: Any
) -> None:
    columns = data.draw(leaves(frame_stack))
    names = list(columns)
    order.shuffle(names)
    shuffled = {name: columns[name] for name in names}
    memory = {"b": Column("float32", (2,)), "a": Column("float32")}
    action = ActionSpec((2,), masks=True)
    one, other = (
        Replay(EnvSpec(leaves, action, remembered), 40, 1).streams.columns
        for leaves, remembered in (
            (columns, memory),
            (shuffled, dict(reversed(memory.items()))),
        )
    )
    assert list(one) == list(other)
    assert [one[name].dtype for name in one] == [other[name].dtype for name in one]
