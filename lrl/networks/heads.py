"""Heads: how an action's value is represented, and the loss that belongs to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from typing_extensions import override

from lrl.functional.bootstrap import huber, select_action_value, td_target
from lrl.functional.value_rescaling import rescale_value, unrescale_value
from lrl.networks.layers import DEFAULT_SIGMA, ActionLayers
from lrl.parts.settings import check_positive
from lrl.types import ConfigError


class TDLoss(NamedTuple):
    """What a head says of a batch; every field is `[batch]`.

    Attributes:
        loss: Per-sample loss, neither weighted nor averaged; the only field with a gradient.
        priority: How much there is to learn, for prioritised replay: the absolute TD error (never
            squared), or what else the head says.
        prediction: Value predicted for the action taken; the mean of a distribution.
        target: Value it should have had; the mean of a distribution.
    """

    loss: Tensor
    priority: Tensor
    prediction: Tensor
    target: Tensor


class BellmanTarget(NamedTuple):
    """What the value of an action is learnt from: one step of Bellman's equation, unevaluated.

    Attributes:
        reward: n-step reward with the bootstrap rule's bonus, `[batch]`.
        discount: Final discount, `[batch]`; 0 where the episode terminated.
        next_values: What the target network's head says of the next observation.
        next_policy: Policy over next actions from the bootstrap rule, `[batch, actions]`.
        next_bonus: Added to the value of each next action, `[batch, actions]`; None adds nothing.
    """

    reward: Tensor
    discount: Tensor
    next_values: Any
    next_policy: Tensor
    next_bonus: Tensor | None = None


class ReturnDistribution(NamedTuple):
    """What a head believes an action's return to be; both fields are `[batch, actions, n]`.

    Attributes:
        returns: Possible returns, in no particular order.
        probabilities: How likely each is; they sum to 1.
    """

    returns: Tensor
    probabilities: Tensor


class Head(nn.Module, ABC):
    """Turn features into action values, and own the loss of that representation.

    Subclasses take `num_features` and `num_actions` first; other arguments come from the
    configuration. `values` below is whatever `forward` returns: `[batch, actions]` for scalar
    values, `[batch, actions, ...]` or a tuple of tensors for distributions.

    Where an action is a choice in each of several branches, `num_actions` counts the choices of
    all, and losses are asked for one of them at a time (`lrl.learner.branching`): a head that takes
    every action by itself need not know.
    """

    @abstractmethod
    def expected_values(self, values: Any) -> Tensor:
        """Return the expected value of each action, `[batch, actions]`."""

    @abstractmethod
    def td_loss(self, values: Any, action: Tensor, target: BellmanTarget) -> TDLoss:
        """Return the per-sample loss of `values` against the bootstrapped target.

        Args:
            values: Online values of the observation, with gradient.
            action: Actions taken, `[batch]`, int64.
            target: What to learn from; no gradient goes into it.
        """

    def set_branches(self, branches: tuple[int, ...]) -> None:
        """Learn how many of the actions are in each branch: for heads that compare actions.

        Called once by who builds the network.
        """

    def target_values(self, features: Tensor) -> Any:
        """Return values to bootstrap from; differs from `forward` where values are sampled."""
        return self(features)

    def q_values(self, features: Tensor) -> Tensor:
        """Return expected values to choose actions by, `[batch, actions]`."""
        return self.expected_values(self(features))

    def target_and_q_values(self, features: Tensor) -> tuple[Any, Tensor]:
        """Return `target_values` and `q_values`, in one pass where they are of the same values."""
        values = self.target_values(features)
        return values, self.expected_values(values)

    def distribution(self, features: Tensor) -> ReturnDistribution | None:
        """Return the distributions whose means are `q_values`; None for heads without any.

        Videos show them; nothing else needs them.
        """
        return None


class LayeredHead(Head):
    """What the heads of this package have in common: their layers and value rescaling.

    A rescaled head learns h(return) instead of the return (Pohlen et al. 2018), so that large
    returns need no clipped rewards. `values`, predictions and targets are then in units of h;
    what `expected_values` and `q_values` return is always in units of return.
    `value_rescaling` is the paper's epsilon, above 0; the arguments before it are `ActionLayers`'.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        size: int,
        hidden_size: int | None,
        dueling: bool,
        noisy: bool,
        noisy_sigma: float,
        value_rescaling: float | None,
    ) -> None:
        super().__init__()
        if value_rescaling is not None:
            check_positive("head.value_rescaling", value_rescaling, ", or null for none")
        self.layers = ActionLayers(
            num_features, num_actions, size, hidden_size, dueling, noisy, noisy_sigma
        )
        self.value_rescaling = value_rescaling

    @override
    def set_branches(self, branches: tuple[int, ...]) -> None:
        self.layers.branches = branches

    def rescaled(self, returns: Tensor) -> Tensor:
        """Return what the head learns of returns."""
        if self.value_rescaling is None:
            return returns
        return rescale_value(returns, self.value_rescaling)

    def unrescaled(self, values: Tensor) -> Tensor:
        """Return the returns that the head's values stand for."""
        if self.value_rescaling is None:
            return values
        return unrescale_value(values, self.value_rescaling)

    def next_returns(self, values: Tensor, bonus: Tensor | None) -> Tensor:
        """Return next values `[batch, actions, ...]` in units of return, with the rule's bonus."""
        if bonus is None:
            return self.unrescaled(values)
        if self.value_rescaling is not None:
            raise ConfigError(
                f"head.value_rescaling is {self.value_rescaling}, but the bootstrap rule adds a "
                "bonus to next values, which is not defined for rescaled ones: set it to null"
            )
        return values + bonus.view(*bonus.shape, *[1] * (values.ndim - 2))


class ScalarHead(LayeredHead):
    """One expected value per action (Mnih et al. 2015).

    Its priority is the absolute TD error.

    Args:
        loss: `mse` (half the square) counts rare large errors in full; `huber` with its knee at 1,
            the paper's clipped error, goes with clipped rewards.
        hidden_size: Units of a hidden layer; None has none.
        dueling: Learn the value of an observation and the advantages of actions apart.
        noisy: Explore by learnt noise in the weights.
        noisy_sigma: Initial noise (Fortunato et al. 2018: 0.5).
        value_rescaling: Epsilon of the rescaled returns that are learnt (Pohlen et al. 2018: 0.01);
            None learns returns as they are.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        loss: Literal["huber", "mse"] = "mse",
        hidden_size: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
        value_rescaling: float | None = None,
    ) -> None:
        super().__init__(
            num_features, num_actions, 1, hidden_size, dueling, noisy, noisy_sigma, value_rescaling
        )
        if loss not in ("huber", "mse"):
            raise ConfigError(f"head.loss must be 'huber' or 'mse', got {loss!r}")
        self.loss = loss

    def forward(self, features: Tensor) -> Tensor:
        """Return the value of each action, `[batch, actions]`."""
        return self.layers(features).squeeze(-1)

    def expected_values(self, values: Tensor) -> Tensor:
        """Return the values themselves, in units of return."""
        return self.unrescaled(values)

    def td_loss(self, values: Tensor, action: Tensor, target: BellmanTarget) -> TDLoss:
        """Return Huber or half squared TD errors; see `Head.td_loss` for shapes."""
        prediction = select_action_value(values, action)
        next_q = self.next_returns(target.next_values, target.next_bonus)
        returns = td_target(target.reward, target.discount, next_q, target.next_policy)
        goal = self.rescaled(returns).detach()
        error = prediction - goal
        loss = huber(error) if self.loss == "huber" else 0.5 * error.square()
        return TDLoss(loss, error.detach().abs(), prediction.detach(), goal)
