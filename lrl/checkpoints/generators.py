"""The process's global random generators, from which noise and quantile levels are drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator_states() -> dict[str, Any]:
    """Return the states of torch's generators (CPU and current GPU), Python's and numpy's.

    Nested plain types and tensors.

    Example:
        >>> states = generator_states()
        >>> drawn = torch.rand(1), random.random(), np.random.rand()
        >>> load_generator_states(states)
        >>> drawn == (torch.rand(1), random.random(), np.random.rand())
        True
    """
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (it is others who use it)
    inner = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in numpy_state["state"].items()
    }  # its key, unless somebody gave numpy another generator than MT19937
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": inner},
    }


def load_generator_states(states: dict[str, Any]) -> None:
    """Go on from `generator_states`; that of a GPU is left out where none is used."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(states["cuda"])
    random.setstate(states["python"])
    state = dict(states["numpy"]["state"])
    if "key" in state:
        state["key"] = np.array(state["key"], np.uint32)
    np.random.set_state({**states["numpy"], "state": state})  # noqa: NPY002
