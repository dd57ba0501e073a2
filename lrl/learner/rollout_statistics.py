"""What training episodes returned, and how old the policies were that played them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lrl.types import RowKind, Rows


@dataclass
class RolloutStatistics:
    """What training episodes returned (raw rewards), and how old the policies were."""

    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=100))
    start_values: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    policy_lag_sum: float = 0.0
    policy_lag_rows: int = 0

    def add_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Count a finished episode; `start_value` is what the policy hoped for at its start."""
        self.episodes += 1
        self.returns.append(episode_return)
        self.lengths.append(length)
        if not math.isnan(start_value):
            self.start_values.append(start_value)

    def add_lag(self, rows: Rows, learner_steps: int) -> None:
        """Count how many learner steps behind the rows' policies were."""
        steps = rows.kind == RowKind.STEP
        self.policy_lag_rows += int(steps.sum())
        self.policy_lag_sum += float((learner_steps - rows.policy_version[steps]).sum())

    def take_lag_mean(self) -> float:
        """Return the mean lag in learner steps since the last call (0 without rows)."""
        mean = self.policy_lag_sum / max(self.policy_lag_rows, 1)
        self.policy_lag_sum, self.policy_lag_rows = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return the latest episodes, as plain types."""
        return {name: list(getattr(self, name)) for name in _LATEST}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the latest episodes of an earlier session."""
        for name in _LATEST:
            getattr(self, name).extend(state[name])


_LATEST = ("returns", "lengths", "start_values")


def mean(values: Sequence[float]) -> float:
    """Return the mean of recent values, NaN where there are none."""
    return float(np.mean(values)) if values else float("nan")
