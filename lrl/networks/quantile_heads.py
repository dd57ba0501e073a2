"""Quantile heads: a distribution of returns by its quantiles, at fixed or sampled levels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lrl.functional.distributional import quantile_huber, select_action_distribution
from lrl.networks.heads import BellmanTarget, LayeredHead, ReturnDistribution, TDLoss
from lrl.networks.layers import DEFAULT_SIGMA
from lrl.networks.linear import Linear
from lrl.types import ConfigError


class Quantiles(NamedTuple):
    """Quantiles of the return of each action.

    Attributes:
        quantiles: Return that is not exceeded with probability tau, `[batch, actions, n]`.
        taus: Levels of the quantiles, `[batch, n]`, or `[1, n]` if all samples have the same.
    """

    quantiles: Tensor
    taus: Tensor


class QuantileLossHead(LayeredHead):
    """What both quantile heads have in common: means, and the quantile Huber loss.

    The loss is summed over predicted and averaged over target quantiles. The target of a policy
    over several next actions mixes quantiles of the same level, as Munchausen-IQN does (Vieillard
    et al. 2020). The priority is the absolute error of the means: the loss itself would not tell
    an uncertain return from a wrong one, since it stays above 0 where the distribution is right.
    """

    kappa: float

    def expected_values(self, values: Quantiles) -> Tensor:
        """Return the mean return of each action, `[batch, actions]`."""
        return self.unrescaled(values.quantiles).mean(dim=-1)

    def distribution(self, features: Tensor) -> ReturnDistribution:
        """Return the quantiles that actions are chosen by, all of the same probability."""
        returns = self.unrescaled(self.acting_values(features).quantiles)
        return ReturnDistribution(returns, torch.full_like(returns, 1.0 / returns.shape[-1]))

    def acting_values(self, features: Tensor) -> Quantiles:
        """Return the quantiles whose means are `q_values`."""
        return self(features)

    def td_loss(self, values: Quantiles, action: Tensor, target: BellmanTarget) -> TDLoss:
        """Return the quantile Huber loss; see `Head.td_loss` for shapes."""
        quantiles = select_action_distribution(values.quantiles, action)
        next_returns = self.next_returns(target.next_values.quantiles, target.next_bonus)
        mixed = (target.next_policy.unsqueeze(-1) * next_returns).sum(dim=1)
        returns = target.reward.unsqueeze(-1) + target.discount.unsqueeze(-1) * mixed
        goal = self.rescaled(returns).detach()
        loss = quantile_huber(quantiles, values.taus, goal, self.kappa)
        prediction, goal = quantiles.detach().mean(dim=-1), goal.mean(dim=-1)
        return TDLoss(loss, (prediction - goal).abs(), prediction, goal)


class QuantileHead(QuantileLossHead):
    """Quantiles at fixed, evenly spaced levels per action (QR-DQN); values are `Quantiles`.

    Reference: Dabney et al. 2018, https://arxiv.org/abs/1710.10044, Algorithm 1.

    Args:
        num_quantiles: Number of quantiles (the paper's N); their levels are the midpoints of equal
            parts of [0, 1].
        kappa: Knee of the Huber loss; 0 gives the plain quantile loss.
        hidden_size: Units of a hidden layer; None has none.
        dueling: Learn the value of an observation and the advantages of actions apart.
        noisy: Explore by learnt noise in the weights.
        noisy_sigma: Initial noise (Fortunato et al. 2018: 0.5).
        value_rescaling: Epsilon of the rescaled returns that are learnt (Pohlen et al. 2018: 0.01);
            None learns returns as they are.
    """

    taus: Tensor

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_quantiles: int = 200,
        kappa: float = 1.0,
        hidden_size: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
        value_rescaling: float | None = None,
    ) -> None:
        _check(kappa, num_quantiles=num_quantiles)
        super().__init__(
            num_features, num_actions, num_quantiles, hidden_size, dueling, noisy, noisy_sigma,
            value_rescaling,
        )  # fmt: skip
        self.kappa = kappa
        self.register_buffer("taus", _midpoints(num_quantiles), persistent=False)

    def forward(self, features: Tensor) -> Quantiles:
        """Return the quantiles of each action, `[batch, actions, num_quantiles]`."""
        return Quantiles(self.layers(features), self.taus)


class ImplicitQuantileHead(QuantileLossHead):
    """Quantiles at sampled levels, which are an input of the network (IQN); values are `Quantiles`.

    The encoder's features are multiplied by an embedding of each level. Learning draws levels
    uniformly (torch's global generator). Where actions are chosen, by actors, evaluation and
    bootstrap rules, the levels are fixed midpoints, so that the same weights always act the same;
    the paper draws them there too. The embedding has no noise.

    Reference: Dabney et al. 2018, https://arxiv.org/abs/1806.06923, equations 3 and 4.

    Args:
        num_quantiles: Levels drawn for the prediction (the paper's N).
        num_target_quantiles: Levels drawn for the target (N').
        num_acting_quantiles: Fixed levels for choosing actions (K).
        embedding_size: Number of cosines by which a level is described (n).
        kappa: Knee of the Huber loss; 0 gives the plain quantile loss.
        hidden_size: Units of a hidden layer after the embedding; None has none.
        dueling: Learn the value of an observation and the advantages of actions apart.
        noisy: Explore by learnt noise in the weights.
        noisy_sigma: Initial noise (Fortunato et al. 2018: 0.5).
        value_rescaling: Epsilon of the rescaled returns that are learnt (Pohlen et al. 2018: 0.01);
            None learns returns as they are.
    """

    acting_taus: Tensor
    frequencies: Tensor

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_quantiles: int = 64,
        num_target_quantiles: int = 64,
        num_acting_quantiles: int = 32,
        embedding_size: int = 64,
        kappa: float = 1.0,
        hidden_size: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
        value_rescaling: float | None = None,
    ) -> None:
        _check(
            kappa,
            num_quantiles=num_quantiles,
            num_target_quantiles=num_target_quantiles,
            num_acting_quantiles=num_acting_quantiles,
            embedding_size=embedding_size,
        )
        super().__init__(
            num_features, num_actions, 1, hidden_size, dueling, noisy, noisy_sigma, value_rescaling
        )
        self.num_quantiles = num_quantiles
        self.num_target_quantiles = num_target_quantiles
        self.kappa = kappa
        self.embedding = nn.Sequential(Linear(embedding_size, num_features), nn.ReLU())
        self.register_buffer("acting_taus", _midpoints(num_acting_quantiles), persistent=False)
        self.register_buffer(
            "frequencies", torch.pi * torch.arange(embedding_size), persistent=False
        )

    def forward(self, features: Tensor) -> Quantiles:
        """Return quantiles at `num_quantiles` random levels per sample."""
        return self.at(features, self._random_taus(features, self.num_quantiles))

    def target_values(self, features: Tensor) -> Quantiles:
        """Return quantiles at `num_target_quantiles` random levels per sample."""
        return self.at(features, self._random_taus(features, self.num_target_quantiles))

    def acting_values(self, features: Tensor) -> Quantiles:
        """Return quantiles at the fixed levels."""
        return self.at(features, self.acting_taus)

    def q_values(self, features: Tensor) -> Tensor:
        """Return mean returns over the fixed levels, `[batch, actions]`."""
        return self.expected_values(self.acting_values(features))

    def target_and_q_values(self, features: Tensor) -> tuple[Quantiles, Tensor]:
        """Return quantiles at random levels, and mean returns over the fixed ones."""
        return self.target_values(features), self.q_values(features)

    def at(self, features: Tensor, taus: Tensor) -> Quantiles:
        """Return the quantiles of each action at levels `[batch, n]`, or `[1, n]` for all."""
        embedding = self.embedding(torch.cos(taus.unsqueeze(-1) * self.frequencies))
        values = self.layers(features.unsqueeze(-2) * embedding)  # [batch, n, actions, 1]
        return Quantiles(values.squeeze(-1).transpose(-1, -2), taus)

    def _random_taus(self, features: Tensor, number: int) -> Tensor:
        # Of the buffer's type: under mixed precision the features have too few bits.
        return torch.rand(
            len(features), number, dtype=self.acting_taus.dtype, device=features.device
        )


def _midpoints(number: int) -> Tensor:
    """Return the middles of equal parts of [0, 1], `[1, number]`."""
    return ((torch.arange(number) + 0.5) / number).unsqueeze(0)


def _check(kappa: float, **sizes: int) -> None:
    if not 0.0 <= kappa < float("inf"):
        raise ConfigError(f"head.kappa must be a finite number from 0 on, got {kappa}")
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"head.{name} must be at least 1, got {size}")
