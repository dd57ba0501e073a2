"""Bootstrap rules: which next actions a target believes in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from lrl.functional.bootstrap import greedy_policy, masked, munchausen
from lrl.networks.heads import Target
from lrl.networks.q_network import QNetwork
from lrl.types import Batch, ConfigError


class BootstrapRule(ABC):
    """Say what the value of an action is learnt from.

    A rule gives a policy over next actions, never a number, and knows nothing of how values are
    represented: so every head works with every rule. What it needs of the target network is asked
    for separately, since one pass can answer for several batches.
    """

    adds_bonus: ClassVar[bool] = False
    """Whether it adds to the values of next actions, which are then values, not rescaled ones."""

    @abstractmethod
    def ask(self, batch: Batch, target: QNetwork) -> Any:
        """Return what the rule needs of the target network; called without gradient.

        Tensors, or tuples of them, with a row for each of the batch, or with one row for all.
        """

    @abstractmethod
    def __call__(self, batch: Batch, online: QNetwork, answer: Any) -> Target:
        """Return the target of a batch; called without gradient.

        Args:
            batch: The transitions.
            online: The network that learns.
            answer: What `ask` returned of the batch.
        """


class MaxBootstrap(BootstrapRule):
    """The target network's best action: Q-learning (Mnih et al. 2015)."""

    def ask(self, batch: Batch, target: QNetwork) -> tuple[Any, Tensor]:
        """Return values and expected values of the next observations."""
        return target.head.target_and_q_values(target.encoder(batch.next_observation))

    def __call__(self, batch: Batch, online: QNetwork, answer: tuple[Any, Tensor]) -> Target:
        """Return a target with the greedy policy of the target network."""
        return greedy_target(batch, *answer)


class DoubleBootstrap(BootstrapRule):
    """The online network's best action, valued by the target network.

    Reference: van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4.
    """

    def ask(self, batch: Batch, target: QNetwork) -> Any:
        """Return values of the next observations."""
        return target.head.target_values(target.encoder(batch.next_observation))

    def __call__(self, batch: Batch, online: QNetwork, answer: Any) -> Target:
        """Return a target with the greedy policy of the online network."""
        return greedy_target(batch, answer, online.q_values(batch.next_observation))


class MunchausenBootstrap(BootstrapRule):
    """A softmax over the target network's values, and its own log-probability as a reward.

    The bonus of an n-step transition is that of its first action alone.

    Reference: Vieillard et al. 2020, https://arxiv.org/abs/2007.14430, equation 1 and section 4.

    Args:
        alpha: Share of the scaled log-probability that is added to the reward (the paper's 0.9).
        temperature: Entropy temperature tau of the softmax (the paper's 0.03).
        clip: Lower bound of the scaled log-probability, negative (the paper's l0 = -1).
    """

    adds_bonus = True

    def __init__(self, alpha: float = 0.9, temperature: float = 0.03, clip: float = -1.0) -> None:
        if not 0.0 <= alpha <= 1.0:
            raise ConfigError(f"bootstrap.alpha must be between 0 and 1, got {alpha}")
        if not 0.0 < temperature < float("inf"):
            raise ConfigError(f"bootstrap.temperature must be above 0, got {temperature}")
        if not clip <= 0.0:
            raise ConfigError(f"bootstrap.clip must be at most 0, got {clip}")
        self.alpha = alpha
        self.temperature = temperature
        self.clip = clip

    def ask(self, batch: Batch, target: QNetwork) -> tuple[Any, Tensor, Tensor]:
        """Return values and expected values after the action, and expected values before it."""
        features = target.encoder(batch.next_observation)
        next_values, next_q = target.head.target_and_q_values(features)
        return next_values, next_q, target.q_values(batch.observation)

    def __call__(
        self, batch: Batch, online: QNetwork, answer: tuple[Any, Tensor, Tensor]
    ) -> Target:
        """Return a target with the softmax policy of the target network and both bonuses."""
        next_values, next_q, q = answer
        policy, bonus, reward_bonus = munchausen(
            q,
            batch.action,
            next_q,
            self.temperature,
            self.clip,
            batch.action_mask,
            batch.next_action_mask,
        )
        reward = batch.reward + self.alpha * reward_bonus
        return Target(reward, batch.discount, next_values, policy, bonus)


def greedy_target(batch: Batch, next_values: Any, next_q: Tensor) -> Target:
    """Return a target that believes in the best allowed next action.

    Args:
        batch: The transitions.
        next_values: What the target network's head says of the next observations.
        next_q: Values by which the next action is chosen, `[batch, actions]`.
    """
    policy = greedy_policy(masked(next_q, batch.next_action_mask))
    return Target(batch.reward, batch.discount, next_values, policy)
