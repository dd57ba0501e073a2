"""Action masks and boolean frames in the replay buffer.

A row's frame holds its name, and its mask follows from the name: so every mask in a batch can be
checked against the observation that it belongs to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.replay_rows import RandomStream, Row, episode, make_spec, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import Replay
from lrl.types import EnvSpec, RowKind, Rows


def mask_of(names: np.ndarray) -> np.ndarray:
    """Return the mask `[..., 5]` that belongs to the rows of these names `[...]`."""
    bits = names.astype(np.int64)[..., None] * 7 % 31 + 1
    return (bits >> np.arange(5)) & 1 > 0


def masked(rows: list[tuple[int, Row]]) -> Rows:
    packed = pack(rows)
    return replace(packed, action_mask=mask_of(packed.frame[:, 0]))


def make_buffer(frame_stack: int, capacity: int, num_streams: int, n_step: int) -> Replay:
    spec = make_spec(frame_stack, action_masks=True)
    return Replay(spec, capacity, num_streams, n_step=n_step, gamma=0.5)


def assert_masks_fit(buffer: Replay, frame_stack: int) -> None:
    batch = buffer._windows.batch(buffer.samplable_keys().numpy(), np.ones(0, np.float32))
    assert batch.action_mask is not None
    assert batch.next_action_mask is not None
    assert batch.action_mask.dtype == batch.next_action_mask.dtype == torch.bool
    names, next_names = (
        observation.reshape(len(batch.action), frame_stack, 2)[:, -1, 0].numpy()
        for observation in (batch.observation, batch.next_observation)
    )
    np.testing.assert_array_equal(batch.action_mask.numpy(), mask_of(names))
    expected = mask_of(next_names) | (batch.discount.numpy() == 0)[:, None]
    np.testing.assert_array_equal(batch.next_action_mask.numpy(), expected)


@settings(max_examples=40, deadline=None)
@given(
    frame_stack=st.integers(1, 3),
    n_step=st.integers(1, 4),
    num_streams=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_masks_are_those_of_their_observations(frame_stack, n_step, num_streams, seed) -> None:
    rng = np.random.default_rng(seed)
    buffer = make_buffer(frame_stack, 40 * num_streams, num_streams, n_step)
    environments = [RandomStream(rng, frame_stack, 0.1) for _ in range(num_streams)]
    for _ in range(4):
        streams = rng.integers(num_streams, size=30)
        buffer.add(masked([(int(s), environments[s].next_row()) for s in streams]))
        assert_masks_fit(buffer, frame_stack)


@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_bootstrap_mask_is_that_of_the_final_observation(n_step: int, end: str) -> None:
    """Where an episode is truncated; where it terminated nothing is bootstrapped: all allowed."""
    buffer = make_buffer(1, 100, 1, n_step)
    buffer.add(masked([(0, row) for row in episode([1.0, 1.0], end, first=10.0)]))
    keys = np.array([[0, 1]])
    batch = buffer._windows.batch(keys, np.ones(1, np.float32))
    assert batch.action_mask is not None
    assert batch.next_action_mask is not None
    assert batch.action_mask[0].tolist() == mask_of(np.array(11)).tolist()
    final = [True] * 5 if end == "terminated" else mask_of(np.array(12)).tolist()
    assert batch.next_action_mask[0].tolist() == final


def test_rows_without_a_mask_allow_everything_whatever_lay_there_before() -> None:
    buffer = make_buffer(1, 4, 1, 1)
    steps = [(0, Row(RowKind.STEP, name)) for name in range(5)]
    buffer.add(masked(steps))
    buffer.add(pack(steps))
    batch = buffer.sample(16)
    assert batch.action_mask is not None
    assert batch.next_action_mask is not None
    assert batch.action_mask.all()
    assert batch.next_action_mask.all()


def test_masks_are_stored_only_where_there_are_any() -> None:
    plain, with_masks = (Replay(make_spec(action_masks=masks), 100, 2) for masks in (False, True))
    assert "action_mask" not in plain.streams.columns
    assert with_masks.streams.columns["action_mask"].shape == (102, 5)
    assert with_masks.nbytes - plain.nbytes == 102 * 5
    for buffer in (plain, with_masks):
        spec = make_spec(action_masks=buffer is with_masks)
        assert Replay.bytes_needed(spec, 100, 2) == buffer.nbytes
    plain.add(pack([(0, row) for row in episode([1.0])]))
    batch = plain.sample(2)
    assert batch.action_mask is None
    assert batch.next_action_mask is None


def test_boolean_frames_take_a_byte_a_cell() -> None:
    spec = EnvSpec.box((2, 3), "bool", num_actions=5)
    buffer = Replay(spec, 100, 1)
    assert buffer.nbytes == 101 * (6 + 9)
    frames = np.random.default_rng(0).random((3, 2, 3)) < 0.5
    rows = pack([(0, Row(RowKind.STEP, name)) for name in range(3)])
    buffer.add(replace(rows, frame=frames))
    batch = buffer.sample(8)
    assert batch.observation.dtype == torch.bool
    for key, observation in zip(batch.keys[:, 1].tolist(), batch.observation, strict=True):
        np.testing.assert_array_equal(observation.numpy(), frames[key])
