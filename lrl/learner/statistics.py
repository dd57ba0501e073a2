"""What is logged of training episodes, of how old their policies were, and of batches."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lrl.learner.branching import greedy_action
from lrl.learner.updater import Losses
from lrl.networks import QNetwork
from lrl.networks.dead_units import seen_units
from lrl.types import ActionSpec, Batch, RowKind, Rows


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


class Measured(NamedTuple):
    """Values of the batch that was logged last; on the learner's device, `[rows]`.

    Attributes:
        prediction: What the online network said of the actions taken.
        target: What it should have said.
        learns: Rows that are learnt from; None says all.
    """

    prediction: Tensor
    target: Tensor
    learns: Tensor | None


@torch.no_grad()
def batch_statistics(
    batch: Batch,
    online: QNetwork,
    losses: Losses,
    spec: ActionSpec,
    learns: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return what is logged of a batch, at the price of one more look at its observations.

    Args:
        batch: The transitions.
        online: The network that learns, before its update.
        losses: Of the batch.
        spec: The actions.
        learns: Rows that are learnt from; None says all.
    """
    td = losses.td
    with evaluating(online), seen_units(online) as units:
        q = online.q_values(batch.observation, batch.memory)
    best = greedy_action(q, batch.action_mask, spec)
    rows = slice(None) if learns is None else learns
    dead = units.dead_share()
    return {
        "train/loss": losses.loss.detach(),
        "train/td_error_mean": (td.prediction - td.target)[rows].abs().mean(),
        "train/q_mean": td.prediction[rows].mean(),
        "train/target_mean": td.target[rows].mean(),
        "train/target_minus_q_mean": (td.target - td.prediction)[rows].mean(),
        "train/reward_mean": batch.reward[rows].mean(),
        "train/reward_abs_max": batch.reward[rows].abs().amax(),
        "train/distinct_rows": _distinct(batch.keys),
        "train/greedy_fraction": (best == batch.action)[rows].float().mean(),
        **({} if dead is None else {"train/dead_units": dead}),
    }


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Let batch norm and spectral norm stay as they are, and noisy layers make no noise."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def _distinct(keys: Tensor) -> Tensor:
    """Return the share of keys, `[rows]` or `[rows, ...]`, that are not the same as another's."""
    first, *others = keys.reshape(len(keys), -1).long().T
    for column in others:
        first = first * 2**40 + column  # rows of a stream are fewer
    return 1.0 - (first.sort().values.diff() == 0).float().sum() / len(keys)
