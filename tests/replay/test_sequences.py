"""Sequences of rows against their naive twin, and what is asked of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.replay_rows import Expected, NaiveReplay, RandomStream, Row, episode, leaves, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import (
    NotEnoughRows,
    PrioritizedSampler,
    RankSampler,
    Replay,
    ReplayConfig,
    SequenceConfig,
    UniformSampler,
)
from lrl.schedules import Constant, Linear
from lrl.types import ActionSpec, Column, ConfigError, EnvSpec, RowKind, Rows, SequenceBatch

SHORT = SequenceConfig(length=6, overlap=3, burn_in=2)


def make_spec(frame_stack: int) -> EnvSpec:
    """Two leaves, one stacked and one not, a memory and action masks."""
    return EnvSpec(
        observation={
            "alone": Column("float32", (1,)),
            "stacked": Column("float32", (2,), frame_stack),
        },
        action=ActionSpec((5,), masks=True),
        memory={"hidden": Column("float32", (3,)), "steps": Column("int64")},
    )


def mask_of(name: float) -> list[bool]:
    return [bool((int(name) >> bit) & 1) for bit in range(5)]


def pack_all(rows: list[tuple[int, Row]]) -> Rows:
    """Every column of a row follows from the name of its frame."""
    plain = pack(rows)
    names = plain.frame[:, 0]
    return replace(
        plain,
        frame={"alone": names[:, None] + 0.5, "stacked": plain.frame},
        action_mask=np.array([mask_of(name) for name in names]).reshape(-1, 5),
        memory={
            "hidden": np.repeat(names[:, None] / 4, 3, axis=1),
            "steps": names.astype(np.int64) * 7,
        },
    )


class NaiveSequences(NaiveReplay):
    """Looks at every row of every window for each question."""

    def sequences(
        self, config: SequenceConfig, n_step: int, gamma: float
    ) -> dict[tuple[int, int], dict[int, Expected]]:
        """By key: the transitions by their row in the window."""
        found = {}
        rows_of_window = config.burn_in + config.length + n_step
        for stream, rows in enumerate(self.streams):
            oldest = max(0, len(rows) - self.rows_per_stream)
            for start in range(0, len(rows), config.length - config.overlap):
                first, stop = start - self.frame_stack + 1, start + rows_of_window
                if first < oldest or stop > len(rows):
                    continue
                if any(row.kind == RowKind.GAP for row in rows[first:stop]):
                    continue
                learnt = {}
                for row in range(config.burn_in, config.burn_in + config.length):
                    transition = self._transition(rows[:stop], oldest, start + row, n_step, gamma)
                    if transition is not None:
                        learnt[row] = transition
                if learnt:
                    found[stream, start] = learnt
        return found


def assert_equals_twin(
    batch: SequenceBatch, twin: NaiveSequences, config: SequenceConfig, n_step: int, gamma: float
) -> None:
    expected = twin.sequences(config, n_step, gamma)
    stack, (count, time) = twin.frame_stack, batch.kind.shape
    assert time == config.burn_in + config.length + n_step
    assert batch.burn_in == config.burn_in
    observation: Any = batch.observation
    assert observation["stacked"].shape == (count, time, *((stack, 2) if stack > 1 else (2,)))
    assert batch.memory is not None
    assert batch.action_mask is not None
    for index, (stream, number) in enumerate(batch.keys.tolist()):
        rows = twin.streams[stream]
        window = rows[number : number + time]
        names = [row.name for row in window]
        assert batch.kind[index].tolist() == [row.kind for row in window]
        assert observation["alone"][index, :, 0].tolist() == [name + 0.5 for name in names]
        stacks = observation["stacked"][index].reshape(time, stack, 2)[..., 0].tolist()
        before = [number + row - stack + 1 for row in range(time)]
        assert stacks == [[row.name for row in rows[at : at + stack]] for at in before]
        assert batch.action_mask[index].tolist() == [mask_of(name) for name in names]
        kept = config.memory == "stored"
        assert batch.memory["hidden"][index].tolist() == [names[0] / 4 * kept] * 3
        assert batch.memory["steps"][index] == names[0] * 7 * kept
        for place, row in enumerate(range(config.burn_in, config.burn_in + config.length)):
            transition = expected[stream, number].get(row)
            assert batch.learns[index, place] == (transition is not None)
            assert batch.action[index, place] == window[row].action
            if transition is None:
                assert batch.reward[index, place] == batch.discount[index, place] == 0
                assert batch.next_row[index, place] == row
                continue
            assert batch.reward[index, place] == transition.reward
            assert batch.discount[index, place] == transition.discount
            if transition.discount:
                assert stacks[batch.next_row[index, place]] == transition.next_observation
        begins = [False] + [row.kind in (RowKind.BOUNDARY, RowKind.PREFIX) for row in window[:-1]]
        assert batch.begins[index].tolist() == begins


def as_set(keys: Any) -> set[tuple[int, int]]:
    return {(stream, number) for stream, number in keys.tolist()}


@settings(max_examples=60)
@given(
    lengths=st.tuples(st.integers(1, 8), st.integers(0, 7), st.integers(0, 5)),
    frame_stack=st.integers(1, 4),
    n_steps=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    num_streams=st.integers(1, 3),
    extra_rows=st.integers(0, 60),
    chunk_rows=st.integers(1, 60),
    hazard=st.sampled_from([0.0, 0.02, 0.2]),
    memory=st.sampled_from(["stored", "zero"]),
    sampler=st.sampled_from([UniformSampler, PrioritizedSampler, RankSampler]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sequences_equal_twin(
    lengths,
    frame_stack,
    n_steps,
    num_streams,
    extra_rows,
    chunk_rows,
    hazard,
    memory,
    sampler,
    seed,
) -> None:
    """Over ends, truncations, life losses, lost rows, restarts, wraps and another n_step."""
    length, overlap, burn_in = lengths
    config = SequenceConfig(length, min(overlap, length - 1), burn_in, memory)
    n_step, next_n_step = n_steps
    rng = np.random.default_rng(seed)
    rows_per_stream = frame_stack + config.rows(max(n_steps)) + config.period + extra_rows
    buffer = Replay(
        make_spec(frame_stack), rows_per_stream * num_streams, num_streams,
        n_step=n_step, gamma=0.5, sampler=sampler(), sequences=config,
    )  # fmt: skip
    for name in ("frame.alone", "frame.stacked", "memory.hidden"):
        buffer.streams.columns[name].fill_(torch.nan)
    twin = NaiveSequences(rows_per_stream, num_streams, frame_stack)
    environments = [RandomStream(rng, frame_stack, hazard) for _ in range(num_streams)]
    for chunk in range(8):
        streams = rng.integers(num_streams, size=chunk_rows)
        rows = [(int(stream), environments[stream].next_row()) for stream in streams]
        twin.append(rows)
        buffer.add(pack_all(rows))
        if chunk == 4:
            buffer.n_step = n_step = next_n_step
        expected = twin.sequences(config, n_step, 0.5)
        keys = buffer.samplable_keys()
        assert as_set(keys) == expected.keys()
        if sampler is not UniformSampler:
            assert leaves(buffer).keys() == expected.keys()
        assert buffer.can_draw() == (len(expected) > 0)
        if not expected:
            with pytest.raises(NotEnoughRows, match="a sequence needs"):
                buffer.sample(4)
            continue
        weights = np.ones(len(keys), np.float32)
        every = buffer._windows.batch(keys.numpy(), weights)
        assert isinstance(every, SequenceBatch)
        assert_equals_twin(every, twin, config, n_step, 0.5)
        assert_equals_twin(buffer.sample(4), twin, config, n_step, 0.5)
        priorities = torch.rand(len(keys), dtype=torch.float64) + 0.1
        buffer.learnt(keys, priorities)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), frame_stack=st.integers(1, 3), n_step=st.integers(1, 4))
def test_rows_of_any_kind_in_any_order_equal_twin(seed: int, frame_stack: int, n_step: int) -> None:
    rng = np.random.default_rng(seed)
    environment = RandomStream(rng, frame_stack, 0.3)
    rows = []
    for _ in range(80):
        row = environment.next_row()
        row.kind = RowKind(int(rng.choice(4, p=[0.8, 0.09, 0.09, 0.02])))
        row.truncated = bool(rng.random() < 0.1)
        rows.append((0, row))
    buffer = Replay(make_spec(frame_stack), 60, 1, n_step=n_step, gamma=0.5, sequences=SHORT)
    twin = NaiveSequences(60, 1, frame_stack)
    for start in range(0, 80, 20):
        twin.append(rows[start : start + 20])
        buffer.add(pack_all(rows[start : start + 20]))
        expected = twin.sequences(SHORT, n_step, 0.5)
        keys = buffer.samplable_keys()
        assert as_set(keys) == expected.keys()
        if expected:
            batch: Any = buffer._windows.batch(keys.numpy(), np.ones(len(keys), np.float32))
            assert_equals_twin(batch, twin, SHORT, n_step, 0.5)


def filled(steps: int, config: SequenceConfig = SHORT, **more: Any) -> Replay:
    buffer = Replay(make_spec(1), 400, 1, n_step=2, gamma=0.5, sequences=config, **more)
    buffer.add(pack_all([(0, row) for row in episode([1.0] * steps, "open")]))
    return buffer


def test_every_sequence_is_equally_likely():
    buffer = filled(100)
    drawn = buffer.sample(9000).keys[:, 1]
    numbers, counts = drawn.unique(return_counts=True)
    assert numbers.tolist() == list(range(0, 91, 3))  # the last ones end at row 99
    assert 210 < counts.min() <= counts.max() < 380


def test_priorities_are_of_whole_sequences():
    buffer = filled(40, sampler=PrioritizedSampler(1.0, Constant(1.0), epsilon=1e-9))
    keys = buffer.samplable_keys()
    priorities = torch.zeros(len(keys))
    priorities[3] = 3.0
    priorities[5] = 1.0
    buffer.learnt(keys, priorities)
    batch = buffer.sample(4000)
    numbers, counts = batch.keys[:, 1].unique(return_counts=True)
    assert numbers.tolist() == [9, 15]
    assert counts.tolist() == pytest.approx([3000, 1000], abs=100)
    assert batch.weights[batch.keys[:, 1] == 9].unique().tolist() == pytest.approx([1 / 3])


def test_a_batch_is_split_and_counted_by_its_rows():
    replay = filled(60, batch_size=3)
    assert replay.samples_per_batch == 3 * 6
    one, two = replay.draw(2)
    for part in (one, two):
        assert isinstance(part, SequenceBatch)
        assert part.kind.shape == (3, 2 + 6 + 2)
        assert part.observation["stacked"].shape == (3, 10, 2)
        assert (part.burn_in, part.eta) == (2, 0.9)
    assert not torch.equal(one.keys, two.keys)
    moved: Any = one.to("meta")
    assert moved.frame["alone"].is_meta
    assert not moved.kind.is_meta
    assert not moved.keys.is_meta
    assert "burn_in" not in one.columns()


def test_what_is_annealed_holds_for_the_next_batch():
    buffer = Replay(
        make_spec(1), 400, 1, n_step=Linear(3.0, 1.0, 10), gamma=Linear(0.0, 1.0, 10),
        sequences=SHORT,
    )  # fmt: skip
    buffer.add(pack_all([(0, row) for row in episode([1.0] * 60, "open")]))
    assert buffer.sample(1).kind.shape == (1, 11)
    assert buffer.sample(1).reward.unique().tolist() == [1.0]
    buffer.anneal(10)
    assert buffer.sample(1).kind.shape == (1, 9)
    assert buffer.sample(1).discount.unique().tolist() == [1.0]


def test_saved_rows_are_of_the_same_sequences():
    plain = Replay(make_spec(1), 400, 1)
    assert "sequences" not in plain.settings()["replay"]
    assert filled(1).settings() != plain.settings()
    other = filled(1, SequenceConfig(length=7, overlap=3, burn_in=2))
    assert filled(1).settings() != other.settings()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, r"replay\.sequences\.length must be at least 1, got 0"),
        ({"length": 10, "overlap": 10}, r"overlap must be at least 0 and below the length 10, got"),
        ({"overlap": -1}, r"replay\.sequences\.overlap must be at least 0"),
        ({"burn_in": -1}, r"replay\.sequences\.burn_in must be at least 0, got -1"),
        ({"memory": "learnt"}, r"memory must be 'stored' or 'zero', got 'learnt'"),
        ({"eta": 1.5}, r"replay\.sequences\.eta must be between 0 and 1, got 1\.5"),
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        SequenceConfig(**wrong)


def test_a_replay_too_small_for_one_sequence_says_how_large_it_has_to_be():
    message = r"sequences of 2 \+ 6 and n_step 2 need 14: set replay\.capacity to at least 28"
    with pytest.raises(ConfigError, match=message):
        Replay(make_spec(1), 26, 2, n_step=2, sequences=SHORT)
    buffer = Replay(make_spec(1), 28, 2, n_step=2, sequences=SHORT)
    for row in episode([1.0] * 100, "open"):  # wherever the ring is cut, one fits
        buffer.add(pack_all([(0, row), (1, row)]))
        if buffer.streams.num_rows == 28:
            assert buffer.can_draw()
    assert ReplayConfig(sequences=SHORT).sequences == SHORT
