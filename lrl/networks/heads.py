"""Heads: how an action's value is represented, and the loss that belongs to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

from torch import Tensor, nn

from lrl.functional.bootstrap import huber, select_action_value, td_target
from lrl.types import ConfigError


class TDLoss(NamedTuple):
    """What a head says of a batch; every field is `[batch]`.

    Attributes:
        loss: Per-sample loss, neither weighted nor averaged; the only field with a gradient.
        priority: Absolute TD error (never squared), for prioritised replay and for the log.
        prediction: Value predicted for the action taken.
        target: Value it should have had.
    """

    loss: Tensor
    priority: Tensor
    prediction: Tensor
    target: Tensor


class Head(nn.Module, ABC):
    """Turn features into action values, and own the loss of that representation.

    Subclasses take `num_features` and `num_actions` first; other arguments come from the
    configuration. `values` below is whatever `forward` returns: `[batch, actions]` for scalar
    values, `[batch, actions, ...]` for distributions.
    """

    @abstractmethod
    def q_values(self, values: Tensor) -> Tensor:
        """Return the expected value of each action, `[batch, actions]`."""

    @abstractmethod
    def td_loss(
        self,
        values: Tensor,
        action: Tensor,
        next_values: Tensor,
        next_policy: Tensor,
        reward: Tensor,
        discount: Tensor,
    ) -> TDLoss:
        """Return the per-sample loss of `values` against the bootstrapped target.

        Args:
            values: Online values of the observation, with gradient.
            action: Actions taken, `[batch]`, int64.
            next_values: Target network's values of the next observation.
            next_policy: Policy over next actions from the bootstrap rule, `[batch, actions]`.
            reward: n-step reward, `[batch]`.
            discount: Final discount, `[batch]`; 0 where the episode terminated.
        """


class ScalarHead(Head):
    """One expected value per action (Mnih et al. 2015).

    Args:
        num_features: Size of the encoder's output.
        num_actions: Number of actions.
        loss: `huber` with its knee at 1 (the paper's clipped error) or `mse` (half the square).
    """

    def __init__(
        self, num_features: int, num_actions: int, loss: Literal["huber", "mse"] = "huber"
    ) -> None:
        super().__init__()
        if loss not in ("huber", "mse"):
            raise ConfigError(f"head.loss must be 'huber' or 'mse', got {loss!r}")
        self.loss = loss
        self.linear = nn.Linear(num_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Return the value of each action, `[batch, actions]`."""
        return self.linear(features)

    def q_values(self, values: Tensor) -> Tensor:
        """Return the values themselves."""
        return values

    def td_loss(
        self,
        values: Tensor,
        action: Tensor,
        next_values: Tensor,
        next_policy: Tensor,
        reward: Tensor,
        discount: Tensor,
    ) -> TDLoss:
        """Return Huber or half squared TD errors; see `Head.td_loss` for shapes."""
        prediction = select_action_value(values, action)
        target = td_target(reward, discount, next_values, next_policy).detach()
        error = prediction - target
        loss = huber(error) if self.loss == "huber" else 0.5 * error.square()
        return TDLoss(loss, error.detach().abs(), prediction.detach(), target)
