"""Nested state survives as JSON and arrays, and nothing else is let through."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

from lrl.checkpoints.plain_state import decode, encode, read_arrays, write_arrays


def through_files(state):
    arrays = []
    tree = json.loads(json.dumps(encode(state, arrays)))
    file = io.BytesIO()
    write_arrays(file, arrays)
    length = file.tell()
    file.write(b"later")
    file.seek(0)
    return decode(tree, read_arrays(file, length))


def test_every_plain_type_is_kept_exactly():
    state = {
        "none": None,
        "numbers": [True, -3, 2**100, 0.1, float("inf"), "text"],
        "inner": {"array": 1, "dict": {}, "bytes": b"\x00\xff"},
        "empty": [],
        "tuple": (3, (1, None), {"deep": (2.5,)}),
    }
    result = through_files(state)
    assert result == state
    assert [type(x) for x in result["numbers"]] == [bool, int, int, float, float, str]
    assert np.isnan(through_files(float("nan")))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool", "float16"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_arrays_and_tensors_are_kept_exactly(dtype, shape):
    array = np.random.default_rng(0).integers(0, 5, shape).astype(dtype)
    array = np.asarray(array)
    kept, tensor = through_files([array, torch.from_numpy(array)])
    assert isinstance(kept, np.ndarray)
    assert kept.dtype == array.dtype
    assert kept.shape == array.shape
    assert np.array_equal(kept, array)
    assert isinstance(tensor, torch.Tensor)
    assert torch.equal(tensor, torch.from_numpy(array))


def test_arrays_are_copied():
    arrays: list = []
    original = np.zeros(2)
    encode(original[::-1], arrays)
    original[:] = 1
    assert arrays[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({1: 2}, "keys .* must be text, got 1"),
        (object(), "got object"),
        ({"a": [{1, 2}]}, "got set"),
        (np.array([None]), "got ndarray"),
        (np.int64(3), "got int64"),
    ],
)
def test_refuses_what_would_have_to_be_pickled(state, named):
    with pytest.raises(TypeError, match=named):
        encode(state, [])


def test_reads_no_pickled_array():
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array([None]), allow_pickle=True)
    length = file.tell()
    file.seek(0)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(file, length)
