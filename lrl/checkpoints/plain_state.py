"""Nested state as JSON and raw arrays, so that nothing has to be unpickled to read it."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def encode(state: Any, arrays: list[Array]) -> Any:
    """Return what JSON can hold of nested state; arrays are copied into a list beside it.

    Args:
        state: Nested dicts (with keys of text), lists and tuples of None, bool, int, float, str,
            bytes, numpy arrays and tensors.
        arrays: Copies of arrays, tensors and bytes are appended here.

    Raises:
        TypeError: The state holds something else.

    Example:
        >>> arrays = []
        >>> encode({"steps": 3, "mean": np.ones(2)}, arrays)
        {'dict': {'steps': 3, 'mean': {'array': 0}}}
        >>> decode({"array": 0}, arrays)
        array([1., 1.])
    """
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, list):
        return [encode(part, arrays) for part in state]
    if isinstance(state, tuple):
        return {"tuple": [encode(part, arrays) for part in state]}
    if isinstance(state, dict):
        wrong = [key for key in state if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"the keys of saved state must be text, got {wrong[0]!r}")
        return {"dict": {key: encode(part, arrays) for key, part in state.items()}}
    if isinstance(state, bytes):
        kind, array = "bytes", np.frombuffer(state, np.uint8)
    elif isinstance(state, torch.Tensor):
        kind, array = "tensor", state.detach().cpu().numpy()
    else:
        kind, array = "array", state
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise TypeError(f"saved state must be plain types and arrays, got {type(state).__name__}")
    arrays.append(array.copy())
    return {kind: len(arrays) - 1}


def decode(tree: Any, arrays: list[Array]) -> Any:
    """Return the state of which `encode` made a tree and arrays.

    Raises:
        ValueError: It made no such tree.
    """
    if isinstance(tree, list):
        return [decode(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "dict":
        return {key: decode(part, arrays) for key, part in value.items()}
    if kind == "tuple":
        return tuple(decode(value, arrays))
    if kind == "bytes":
        return arrays[value].tobytes()
    if kind not in ("tensor", "array"):
        raise ValueError(f"saved state has no kind {kind!r}")
    return torch.from_numpy(arrays[value]) if kind == "tensor" else arrays[value]


def write_arrays(file: Any, arrays: list[Array]) -> None:
    """Write arrays one after the other, each in numpy's own format."""
    for array in arrays:
        np.lib.format.write_array(file, array, allow_pickle=False)


def read_arrays(file: BinaryIO, num_bytes: int) -> list[Array]:
    """Read all arrays of a file of that length.

    Raises:
        ValueError: It holds something else.
    """
    arrays = []
    while file.tell() < num_bytes:
        arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return arrays
