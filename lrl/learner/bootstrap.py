"""Bootstrap rules: which next actions a target believes in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lrl.functional.bootstrap import greedy_policy, masked, munchausen
from lrl.networks.heads import BellmanTarget
from lrl.networks.q_network import QNetwork
from lrl.parts.settings import check_positive
from lrl.types import Batch, ConfigError, Observation, map_leaves


class NextValues(NamedTuple):
    """What networks say of a batch, without gradient; the target network but for the last field.

    Attributes:
        values: What its head says of the next observations: `Head.target_values`.
        next_q: Expected values of the next observations, `[batch, actions]`; None where the rule
            does not need them.
        q: Expected values of the observations before them, `[batch, actions]`, or None likewise.
        online_next_q: What the online network expects of the next observations,
            `[batch, actions]`, or None likewise.
    """

    values: Any
    next_q: Tensor | None = None
    q: Tensor | None = None
    online_next_q: Tensor | None = None


class BootstrapRule(ABC):
    """Say what the value of an action is learnt from.

    A rule gives a policy over next actions, never a number, and knows neither how values are
    represented nor how networks came to them: so every head works with every rule.
    """

    bootstraps: ClassVar[bool] = True
    """Whether it looks at next observations; else nobody asks the target network."""
    needs_next_q: ClassVar[bool] = False
    """Whether it looks at the target network's expected values of the next observations."""
    needs_q: ClassVar[bool] = False
    """Whether it looks at the target network's expected values of the observations themselves."""
    needs_online_next_q: ClassVar[bool] = False
    """Whether it looks at the online network's expected values of the next observations."""
    adds_bonus: ClassVar[bool] = False
    """Whether it adds to the values of next actions, which are then values, not rescaled ones."""

    @abstractmethod
    def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
        """Return what the batch is learnt from; called without gradient.

        Args:
            batch: The transitions.
            next_values: What the networks say of them: at least what the rule needs.
        """


class MaxBootstrap(BootstrapRule):
    """The target network's best action: Q-learning (Mnih et al. 2015)."""

    needs_next_q = True

    def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
        """Return a target with the greedy policy of the target network."""
        assert next_values.next_q is not None
        return greedy_target(batch, next_values.values, next_values.next_q)


class DoubleBootstrap(BootstrapRule):
    """The online network's best action, valued by the target network.

    Reference: van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4.
    """

    needs_online_next_q = True

    def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
        """Return a target with the greedy policy of the online network."""
        assert next_values.online_next_q is not None
        return greedy_target(batch, next_values.values, next_values.online_next_q)


class MunchausenBootstrap(BootstrapRule):
    """A softmax over the target network's values, and its own log-probability as a reward.

    The bonus of an n-step transition is that of its first action only.

    Reference: Vieillard et al. 2020, https://arxiv.org/abs/2007.14430, equation 1 and section 4.

    Args:
        alpha: Share of the scaled log-probability that is added to the reward (the paper's 0.9).
        temperature: Entropy temperature tau of the softmax (the paper's 0.03).
        clip: Lower bound of the scaled log-probability, negative (the paper's l0 = -1).
    """

    needs_next_q = True
    needs_q = True
    adds_bonus = True

    def __init__(self, alpha: float = 0.9, temperature: float = 0.03, clip: float = -1.0) -> None:
        if not 0.0 <= alpha <= 1.0:
            raise ConfigError(f"bootstrap.alpha must be between 0 and 1, got {alpha}")
        check_positive("bootstrap.temperature", temperature)
        if not clip <= 0.0:
            raise ConfigError(f"bootstrap.clip must be at most 0, got {clip}")
        self.alpha = alpha
        self.temperature = temperature
        self.clip = clip

    def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
        """Return a target with the softmax policy of the target network and both bonuses."""
        assert next_values.next_q is not None
        assert next_values.q is not None
        policy, bonus, reward_bonus = munchausen(
            next_values.q,
            batch.action,
            next_values.next_q,
            self.temperature,
            self.clip,
            batch.action_mask,
            batch.next_action_mask,
        )
        reward = batch.reward + self.alpha * reward_bonus
        return BellmanTarget(reward, batch.discount, next_values.values, policy, bonus)


class NoBootstrap(BootstrapRule):
    """Rewards that are whole returns: there is nothing to add, and no target network.

    For experience that computes its returns itself, such as `lrl.replay.Rollouts`.
    """

    bootstraps = False

    def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
        """Return a target that is the reward.

        Args:
            batch: The transitions.
            next_values: What the online network says of the observations themselves: heads take
                it, but what it is multiplied with is 0.
        """
        assert next_values.next_q is not None
        target = greedy_target(batch, next_values.values, next_values.next_q)
        return target._replace(discount=torch.zeros_like(batch.reward))


def greedy_target(batch: Batch, values: Any, next_q: Tensor) -> BellmanTarget:
    """Return a target that believes in the best allowed next action.

    Args:
        batch: The transitions.
        values: What the target network's head says of the next observations.
        next_q: Values by which the next action is chosen, `[batch, actions]`.
    """
    policy = greedy_policy(masked(next_q, batch.next_action_mask))
    return BellmanTarget(batch.reward, batch.discount, values, policy)


@torch.no_grad()
def ask_target(rule: BootstrapRule, network: QNetwork, *batches: Batch) -> list[NextValues]:
    """Return what a rule needs of the target network, for each batch; of all in one pass.

    Args:
        rule: The rule.
        network: The target network.
        *batches: One or more.
    """
    if not rule.bootstraps:
        return [NextValues(None)] * len(batches)
    features, _ = network.features(
        _joined([batch.next_observation for batch in batches]),
        _joined([batch.next_memory for batch in batches]),
    )
    if rule.needs_next_q:
        values, next_q = network.head.target_and_q_values(features)
    else:
        values, next_q = network.head.target_values(features), None
    q = None
    if rule.needs_q:
        observations = _joined([batch.observation for batch in batches])
        q = network.q_values(observations, _joined([batch.memory for batch in batches]))
    found = NextValues(values, next_q, q)
    return [found] if len(batches) == 1 else _dealt_out(found, [len(b.action) for b in batches])


def _joined(parts: Sequence[Observation]) -> Observation:
    return parts[0] if len(parts) == 1 else map_leaves(lambda *leaves: torch.cat(leaves), *parts)


def _dealt_out(found: NextValues, sizes: Sequence[int]) -> list[NextValues]:
    """Return the rows of each batch; a tensor of other rows, such as quantile levels, is of all."""
    dealt, begin, total = [], 0, sum(sizes)
    for size in sizes:
        rows = slice(begin, begin + size)
        dealt.append(
            apply_to_collection(
                found, Tensor, lambda t, rows=rows: t[rows] if len(t) == total else t
            )
        )
        begin = rows.stop
    return dealt
