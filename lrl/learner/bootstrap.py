"""Bootstrap rules: which next actions a target believes in."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from lrl.functional.bootstrap import greedy_policy
from lrl.networks.q_network import QNetwork


class BootstrapRule(ABC):
    """Give the policy over next actions whose value the target expects.

    A rule knows nothing of how values are represented, so every head works with every rule.
    """

    @abstractmethod
    def next_policy(self, next_observation: Tensor, online: QNetwork, next_q: Tensor) -> Tensor:
        """Return probabilities of next actions, `[batch, actions]`; called without gradient.

        Args:
            next_observation: Observations to bootstrap from.
            online: The online network.
            next_q: The target network's expected values of `next_observation`.
        """


class MaxBootstrap(BootstrapRule):
    """The target network's best action: Q-learning (Mnih et al. 2015)."""

    def next_policy(self, next_observation: Tensor, online: QNetwork, next_q: Tensor) -> Tensor:
        """Return the greedy policy of the target network."""
        return greedy_policy(next_q)


class DoubleBootstrap(BootstrapRule):
    """The online network's best action, valued by the target network.

    Reference: van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4.
    """

    def next_policy(self, next_observation: Tensor, online: QNetwork, next_q: Tensor) -> Tensor:
        """Return the greedy policy of the online network."""
        return greedy_policy(online.q_values(next_observation))
