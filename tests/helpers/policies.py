"""Behaviour policies without a network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lrl.actors.actor import BehaviourPolicy


class FunctionPolicy(BehaviourPolicy):
    """Action values by a function of the observations; the version is always 0."""

    def __init__(self, values: Callable[[npt.NDArray], npt.NDArray[np.float32]]) -> None:
        self.values = values

    def __call__(self, observation: npt.NDArray) -> tuple[npt.NDArray[np.float32], int]:
        return self.values(observation), 0
