import dataclasses
import json
import pickle

import numpy as np
import torch
from helpers.tiny_networks import random_batch

from lrl.types import (
    ActionSpec,
    Batch,
    Column,
    ConfigError,
    EnvSpec,
    RowKind,
    Rows,
)


def test_a_frame_is_the_newest_part_of_a_stack():
    spec = EnvSpec.box((4, 84, 84), "uint8", 6, frame_stack=4)
    assert spec.observation == {"": Column("uint8", (84, 84), stack=4)}
    assert spec.observation[""].nbytes == 84 * 84


def test_without_a_stack_the_frame_is_the_observation():
    spec = EnvSpec.box((4, 84), "float32", 2)
    assert spec.observation == {"": Column("float32", (4, 84))}
    assert spec.observation[""].nbytes == 4 * 84 * 4


def test_a_boolean_takes_a_byte():
    assert EnvSpec.box((4, 10, 10), "bool", 6).observation[""].nbytes == 400


def test_a_stack_of_numbers_has_scalar_frames():
    spec = EnvSpec.box((3,), "float32", 2, frame_stack=3)
    assert spec.observation[""].shape == ()
    assert spec.observation[""].nbytes == 4


def test_spec_is_plain_data():
    spec = EnvSpec.box((4, 84, 84), "uint8", 6, frame_stack=4, frame_skip=4)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert EnvSpec.box(**spec.as_dict()) == spec


def test_a_spec_with_leaves_and_memory_is_plain_data():
    spec = EnvSpec(
        observation={"camera": Column("uint8", (84, 84), 4), "speed": Column("float32")},
        action=ActionSpec((3, 2), masks=True),
        memory={"hidden": Column("float32", (16,))},
    )
    saved = json.loads(json.dumps(spec.as_dict()))
    assert EnvSpec.of(saved) == spec
    assert spec.observation_shape == {"camera": (4, 84, 84), "speed": ()}
    assert (spec.frame_stack, spec.num_actions) == (4, 5)
    assert list(spec.carried_columns()) == [
        "frame.camera", "frame.speed", "memory.hidden", "action_mask"
    ]  # fmt: skip


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
    for name, column in rows.columns().items():
        cut = part.columns()[name]
        np.testing.assert_array_equal(cut, column[1:3], err_msg=name)
        assert np.shares_memory(cut, column), name
    assert dataclasses.replace(rows, action_mask=None)[1:3].action_mask is None


def test_a_batch_is_split_into_views() -> None:
    batch = masked_batch()
    rows = len(batch.action)
    parts = batch.split(1)
    assert len(parts) == rows
    for index, part in enumerate(parts):
        assert part.columns().keys() == batch.columns().keys()
        for name, whole in batch.columns().items():
            assert part.columns()[name].equal(whole[index : index + 1]), name
    assert parts[0].reward.data_ptr() == batch.reward.data_ptr()


def masked_batch() -> Batch:
    mask = torch.tensor([[True, False], [True, True]]).repeat(4, 1)
    batch = random_batch(8)
    leaves = {"place": batch.observation, "speed": batch.reward + 1}
    return dataclasses.replace(
        batch,
        observation=leaves,
        next_observation={name: leaf + 1 for name, leaf in leaves.items()},
        action_mask=mask,
        next_action_mask=~mask,
        memory={"hidden": torch.randn(8, 3)},
    )


def test_a_batch_moves_as_a_whole():
    batch = masked_batch()
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    for name, tensor in moved.columns().items():
        assert tensor.device.type == ("cpu" if name == "keys" else "meta"), name
        assert tensor.shape == batch.columns()[name].shape, name
    for name, tensor in batch.to(torch.device("cpu")).columns().items():
        assert torch.equal(tensor, batch.columns()[name]), name
    without = random_batch().to("meta")
    assert without.action_mask is None
    assert without.next_action_mask is None


def test_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)


def test_branches_are_numbered_one_after_the_other():
    spec = ActionSpec((3, 1, 2))
    values = np.arange(12).reshape(2, 6)
    assert [part[1].tolist() for part in spec.split(values)] == [[6, 7, 8], [9], [10, 11]]
    assert spec.split(None) == [None] * 3
    action = np.array([[2, 0, 1], [0, 0, 0]])
    assert [choice.tolist() for choice in spec.choices(action)] == [[2, 0], [0, 0], [1, 0]]
    assert spec.indices(action).tolist() == [[2, 3, 5], [0, 3, 4]]
    assert spec.outside(np.array([[3, 0, 0], [2, 0, 1], [0, 0, -1]])).tolist() == [1, 0, 1]
    assert ActionSpec((3,)).indices(np.array([2, 0])).tolist() == [[2], [0]]
