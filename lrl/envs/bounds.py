"""Observations outside of their declared space: a warning, not the end of a run."""

from __future__ import annotations

import logging
import multiprocessing
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

_log = logging.getLogger(__name__)

_ANSWERS_LOOKED_AT = 100
_TOLERANCE = 1e-3  # of the span: float32 rounds, and some environments clip a step late


class Bounds:
    """Looks whether observations lie in their space, and says so once if one does not.

    No more than a warning: networks take the values as they are, the spaces of well-known
    environments (LunarLander's, for one) are too small, and yet it is a sign of frames that nobody
    scaled. It looks at a vector's first 100 answers, since at each of them it would cost a tenth of
    CartPole's step.

    Args:
        space: Declared by the environment.
    """

    def __init__(self, space: Box) -> None:
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # bounds are infinite, or nearly
            span = high - low
            slack = _TOLERANCE * np.where(np.isfinite(span), span, 1.0)
            self._low = (low - slack).astype(np.float32)
            self._high = (high + slack).astype(np.float32)
        self._space = space
        self._looks_left = _ANSWERS_LOOKED_AT if _can_lie_outside(space) else 0

    def check(self, observation: npt.NDArray[np.generic]) -> bool:
        """Look at observations `[num_envs, ...]`; return whether to look at the next ones too."""
        if not self._looks_left:
            return False
        self._looks_left -= 1
        values: Any = observation
        outside = (values < self._low) | (values > self._high)
        if not outside.any():
            return True
        index, *place = np.argwhere(outside)[0].tolist()
        low, high = (float(bound[tuple(place)]) for bound in (self._space.low, self._space.high))
        process = multiprocessing.current_process().name
        _log.warning(
            "%sEnvironment %d: the observation holds %g at %s, outside of its space [%g, %g]; it "
            "is taken as it is (said once)",
            "" if process == "MainProcess" else f"{process}: ",
            index, values[(index, *place)], place, low, high,
        )  # fmt: skip
        return False


def _can_lie_outside(space: Box) -> bool:
    """Return whether the type holds values that the space does not."""
    if space.dtype.kind in "iu":
        limits = np.iinfo(space.dtype.name)
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return space.dtype != np.bool_ and bool(np.isfinite([space.low, space.high]).any())
