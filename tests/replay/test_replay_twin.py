"""The replay buffer against its naive twin, over every kind of end, gap and wrap."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from helpers.replay_rows import Expected, NaiveReplay, RandomStream, leaves, make_spec, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import (
    NotEnoughRows,
    PrioritizedSampler,
    RankSampler,
    Replay,
    Sampler,
    TrackingSampler,
    UniformSampler,
)
from lrl.schedules import Constant
from lrl.types import Batch, Rows


class TellingSampler(UniformSampler, TrackingSampler):
    """Uniform, and keeps the set of samplable keys from what the buffer reports."""

    def __init__(self) -> None:
        self.keys: set[tuple[int, int]] = set()

    def rows_changed(self, added: np.ndarray, removed: np.ndarray) -> None:
        fresh = as_set(added)
        assert not fresh & self.keys
        self.keys = (self.keys - as_set(removed)) | fresh


def as_set(keys: np.ndarray | torch.Tensor) -> set[tuple[int, int]]:
    listed = [(stream, number) for stream, number in keys.tolist()]
    assert len(set(listed)) == len(listed)
    return set(listed)


def make_buffer(
    frame_stack: int, capacity: int, num_streams: int, n_step: int, gamma: float, sampler: Sampler
) -> Replay:
    buffer = Replay(
        make_spec(frame_stack),
        capacity,
        num_streams,
        n_step=n_step,
        gamma=gamma,
        sampler=sampler,
    )
    buffer.streams.columns["frame"].fill_(torch.nan)  # whoever reads an unwritten row gets NaN
    return buffer


def append_and_spoil(buffer: Replay, rows: Rows) -> None:
    """Append, then overwrite the arrays, as an actor does with a chunk that was given back."""
    buffer.add(rows)
    for column in (rows.frame, rows.action, rows.reward, rows.kind, rows.terminated):
        column[...] = 1


def all_transitions(buffer: Replay) -> Batch:
    keys = buffer.samplable_keys().numpy()
    return buffer._windows.batch(keys, np.ones(len(keys), np.float32))


def assert_equals_twin(batch: Batch, expected: dict[tuple[int, int], Expected]) -> None:
    shape = batch.observation.shape
    assert shape == batch.next_observation.shape
    assert torch.isfinite(batch.next_observation).all()
    for row, (stream, number) in enumerate(batch.keys.tolist()):
        transition = expected[stream, number]
        names = batch.observation[row].reshape(-1, 2)[:, 0].tolist()
        next_names = batch.next_observation[row].reshape(-1, 2)[:, 0].tolist()
        assert names == transition.observation
        assert batch.action[row] == transition.action
        assert batch.reward[row] == transition.reward
        assert batch.discount[row] == transition.discount
        if transition.discount:
            assert next_names == transition.next_observation


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 10),
    num_streams=st.integers(1, 4),
    extra_rows=st.integers(0, 100),
    chunk_rows=st.integers(1, 60),
    gamma=st.sampled_from([1.0, 0.5]),
    hazard=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**32 - 1),
    next_n_step=st.integers(1, 10),
)
def test_equals_twin(
    frame_stack: int,
    n_step: int,
    num_streams: int,
    extra_rows: int,
    chunk_rows: int,
    gamma: float,
    hazard: float,
    seed: int,
    next_n_step: int,
) -> None:
    rng = np.random.default_rng(seed)
    rows_per_stream = frame_stack + max(n_step, next_n_step) + 1 + extra_rows
    capacity = rows_per_stream * num_streams + int(rng.integers(num_streams))
    sampler = TellingSampler()
    buffer = make_buffer(frame_stack, capacity, num_streams, n_step, gamma, sampler)
    twin = NaiveReplay(rows_per_stream, num_streams, frame_stack)
    environments = [RandomStream(rng, frame_stack, hazard) for _ in range(num_streams)]
    inserted = 0
    for chunk in range(8):
        streams = rng.integers(num_streams, size=chunk_rows)
        rows = [(int(stream), environments[stream].next_row()) for stream in streams]
        twin.append(rows)
        append_and_spoil(buffer, pack(rows))
        if chunk == 4:
            buffer.n_step = n_step = next_n_step
        expected = twin.transitions(n_step, gamma)
        assert as_set(buffer.samplable_keys()) == set(expected) == sampler.keys
        assert len(buffer) == twin.num_steps()
        inserted += sum(row.kind == 0 for _, row in rows)
        assert buffer.env_steps == inserted
        assert buffer.can_draw() == (len(expected) > 0)
        assert_equals_twin(all_transitions(buffer), expected)
        if expected:
            assert_equals_twin(buffer.sample(8), expected)
        else:
            with pytest.raises(NotEnoughRows, match="no row can be sampled"):
                buffer.sample(8)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), frame_stack=st.integers(1, 4), n_step=st.integers(1, 4))
def test_any_row_kinds_equal_twin(seed: int, frame_stack: int, n_step: int) -> None:
    """The rule holds for rows in any order, also for such as no actor sends."""
    rng = np.random.default_rng(seed)
    environment = RandomStream(rng, frame_stack, 0.3)
    rows = []
    for _ in range(60):
        row = environment.next_row()
        row.kind = type(row.kind)(rng.choice(4, p=[0.8, 0.08, 0.06, 0.06]))
        row.truncated = bool(rng.random() < 0.1)
        rows.append((0, row))
    buffer = make_buffer(frame_stack, 40, 1, n_step, 0.5, UniformSampler())
    twin = NaiveReplay(40, 1, frame_stack)
    for start in range(0, 60, 7):
        twin.append(rows[start : start + 7])
        buffer.add(pack(rows[start : start + 7]))
        expected = twin.transitions(n_step, 0.5)
        assert as_set(buffer.samplable_keys()) == set(expected)
        assert_equals_twin(all_transitions(buffer), expected)


class NaivePriorities:
    """A dict of the priorities of all samplable rows."""

    def __init__(self) -> None:
        self.priorities: dict[tuple[int, int], float] = {}
        self.highest = 1.0

    def keep_only(self, samplable: set[tuple[int, int]]) -> None:
        known = self.priorities
        self.priorities = {key: known.get(key, self.highest) for key in sorted(samplable)}

    def update(self, keys: list[tuple[int, int]], priorities: list[float]) -> None:
        for key, priority in zip(keys, priorities, strict=True):
            self.highest = max(self.highest, priority)
            if key in self.priorities:
                self.priorities[key] = priority

    def weights(self, sampler: Sampler) -> dict[tuple[int, int], float]:
        """Weights by the paper's formulas; those of ranks just after a sort."""
        if isinstance(sampler, PrioritizedSampler):
            return {key: (p + 1e-6) ** 0.6 for key, p in self.priorities.items()}
        ranks = {
            key: 1 + sum(other > priority for other in self.priorities.values())
            for key, priority in self.priorities.items()
        }
        return {key: rank**-0.7 for key, rank in ranks.items()}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["proportional", "rank"]),
    normalisation=st.sampled_from(["batch", "buffer"]),
    frame_stack=st.integers(1, 3),
    num_streams=st.integers(1, 3),
    extra_rows=st.integers(0, 70),
    chunk_rows=st.integers(1, 120),
    hazard=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_prioritised_samplers_equal_twin(
    kind: str,
    normalisation: Literal["batch", "buffer"],
    frame_stack: int,
    num_streams: int,
    extra_rows: int,
    chunk_rows: int,
    hazard: float,
    seed: int,
) -> None:
    """Append, overwrite, anneal, sample and update, with streams of any odd length."""
    sampler = (
        PrioritizedSampler(0.6, Constant(0.5), weight_normalisation=normalisation)
        if kind == "proportional"
        else RankSampler(0.7, Constant(0.5), 1, normalisation)
    )
    rng = np.random.default_rng(seed)
    rows_per_stream = frame_stack + 6 + extra_rows
    buffer = make_buffer(frame_stack, rows_per_stream * num_streams, num_streams, 1, 0.5, sampler)
    replay, twin = NaiveReplay(rows_per_stream, num_streams, frame_stack), NaivePriorities()
    environments = [RandomStream(rng, frame_stack, hazard) for _ in range(num_streams)]
    past: list[tuple[int, int]] = []
    for _ in range(10):
        streams = rng.integers(num_streams, size=chunk_rows)
        rows = [(int(stream), environments[stream].next_row()) for stream in streams]
        replay.append(rows)
        append_and_spoil(buffer, pack(rows))
        twin.keep_only(set(replay.transitions(buffer.n_step, 0.5)))
        buffer.n_step = int(rng.integers(1, 6))
        twin.keep_only(set(replay.transitions(buffer.n_step, 0.5)))
        if not twin.priorities:
            with pytest.raises(NotEnoughRows):
                buffer.sample(5)
            continue
        batch = buffer.sample(5)
        weights = twin.weights(sampler)
        assert leaves(buffer) == pytest.approx(weights)
        drawn = [(stream, number) for stream, number in batch.keys.tolist()]
        raw = {key: (weight / sum(weights.values())) ** -0.5 for key, weight in weights.items()}
        largest = max(raw.values() if normalisation == "buffer" else [raw[key] for key in drawn])
        assert batch.weights.tolist() == pytest.approx([raw[key] / largest for key in drawn])
        past += drawn
        chosen = [past[index] for index in rng.integers(len(past), size=7)]  # some stale or twice
        priorities = rng.integers(0, 40, 7) / 8  # some equal
        buffer.learnt(torch.tensor(chosen), torch.from_numpy(priorities))
        twin.update(chosen, priorities.tolist())
        assert buffer.metrics()["replay/priority_max"] == twin.highest
