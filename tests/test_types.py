import dataclasses
import pickle

import numpy as np
import pytest
import torch
from helpers.tiny_networks import random_batch

from lrl.types import Batch, ConfigError, EnvSpec, RowKind, Rows


def test_a_frame_is_the_newest_part_of_a_stack():
    spec = EnvSpec((4, 84, 84), "uint8", 6, frame_stack=4)
    assert spec.frame_shape == (84, 84)
    assert spec.frame_bytes == 84 * 84


def test_without_a_stack_the_frame_is_the_observation():
    spec = EnvSpec((4, 84), "float32", 2)
    assert spec.frame_shape == (4, 84)
    assert spec.frame_bytes == 4 * 84 * 4


def test_a_boolean_takes_a_byte():
    assert EnvSpec((4, 10, 10), "bool", 6).frame_bytes == 400


def test_a_stack_of_numbers_has_scalar_frames():
    spec = EnvSpec((3,), "float32", 2, frame_stack=3)
    assert spec.frame_shape == ()
    assert spec.frame_bytes == 4


def test_spec_is_plain_data():
    spec = EnvSpec((4, 84, 84), "uint8", 6, frame_stack=4, frame_skip=4)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert EnvSpec(**dataclasses.asdict(spec)) == spec
    assert hash(spec) == hash(EnvSpec(**dataclasses.asdict(spec)))


def test_row_kinds_are_a_format():
    # Chunks and saved replay buffers hold these numbers.
    assert {kind.name: kind.value for kind in RowKind} == {
        "STEP": 0, "BOUNDARY": 1, "PREFIX": 2, "GAP": 3
    }  # fmt: skip


def numbered_rows(count: int) -> Rows:
    number = np.arange(count)
    return Rows(
        stream=number.astype(np.int32),
        kind=(number + 10).astype(np.uint8),
        frame=np.repeat(number[:, None] + 20, 2, axis=1).astype(np.uint8),
        action=(number + 30).astype(np.int32),
        reward=(number + 40).astype(np.float32),
        terminated=number % 2 == 0,
        truncated=number % 2 == 1,
        policy_version=number + 50,
        action_mask=number[:, None] % 3 != np.arange(3),
    )


def test_a_slice_of_rows_cuts_every_column_without_copying():
    rows = numbered_rows(5)
    part = rows[1:3]
    assert len(rows) == 5
    assert len(part) == 2
    for name, column in vars(rows).items():
        cut = getattr(part, name)
        np.testing.assert_array_equal(cut, column[1:3], err_msg=name)
        assert np.shares_memory(cut, column), name
    assert dataclasses.replace(rows, action_mask=None)[1:3].action_mask is None


def test_a_batch_is_split_into_views() -> None:
    batch = masked_batch()
    rows = len(batch.action)
    parts = batch.split(1)
    assert len(parts) == rows
    for name, whole in vars(batch).items():
        for index, part in enumerate(parts):
            column = getattr(part, name)
            assert column is whole is None or column.equal(whole[index : index + 1])
    assert parts[0].reward.data_ptr() == batch.reward.data_ptr()


def masked_batch() -> Batch:
    mask = torch.tensor([[True, False], [True, True]]).repeat(4, 1)
    return dataclasses.replace(random_batch(8), action_mask=mask, next_action_mask=~mask)


def test_a_batch_moves_as_a_whole():
    batch = masked_batch()
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    for name, tensor in vars(moved).items():
        assert tensor.device.type == ("cpu" if name == "keys" else "meta"), name
        assert tensor.shape == getattr(batch, name).shape, name
    for name, tensor in vars(batch.to(torch.device("cpu"), non_blocking=True)).items():
        assert torch.equal(tensor, getattr(batch, name)), name
    without = random_batch().to("meta")
    assert without.action_mask is None
    assert without.next_action_mask is None


@pytest.mark.gpu
def test_a_pinned_batch_is_equal():
    batch = masked_batch()
    strided = dataclasses.replace(batch, observation=batch.observation[:, :1])
    for name, tensor in vars(strided.pin_memory()).items():
        assert tensor.is_pinned() == (name != "keys"), name
        assert tensor.is_contiguous(), name
        assert torch.equal(tensor, getattr(strided, name)), name


def test_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)
