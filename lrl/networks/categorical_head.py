"""The categorical head: a distribution of returns over fixed atoms (C51)."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.functional.distributional import project_categorical, select_action_distribution
from lrl.networks.heads import BellmanTarget, LayeredHead, ReturnDistribution, TDLoss
from lrl.networks.layers import DEFAULT_SIGMA
from lrl.types import ConfigError


class CategoricalHead(LayeredHead):
    """Probabilities of evenly spaced returns, per action; values are logits.

    The loss is the cross entropy to the projected target. The priority is their Kullback-Leibler
    divergence, as in Rainbow (Hessel et al. 2018, https://arxiv.org/abs/1710.02298, "The Integrated
    Agent"): the loss without the target's own entropy, so it is 0 where nothing is left to learn.

    Reference: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, Algorithm 1.

    Args:
        num_atoms: Number of atoms, at least 2.
        v_min: Smallest return that can be represented (rescaled, where returns are).
        v_max: Largest return that can be represented (rescaled, where returns are).
        hidden_size: Units of a hidden layer; None has none.
        dueling: Learn the value of an observation and the advantages of actions apart.
        noisy: Explore by learnt noise in the weights.
        noisy_sigma: Initial noise (Fortunato et al. 2018: 0.5).
        value_rescaling: Epsilon of the rescaled returns that are learnt (Pohlen et al. 2018: 0.01);
            None learns returns as they are.
    """

    support: Tensor

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        hidden_size: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
        value_rescaling: float | None = None,
    ) -> None:
        if num_atoms < 2:
            raise ConfigError(f"head.num_atoms must be at least 2, got {num_atoms}")
        if not float("-inf") < v_min < v_max < float("inf"):
            raise ConfigError(
                f"head.v_min must be below head.v_max, both finite, got {v_min} and {v_max}"
            )
        support = torch.linspace(v_min, v_max, num_atoms, dtype=torch.float32)
        if not (support.isfinite().all() and (support.diff() > 0).all()):
            raise ConfigError(
                f"head.v_min {v_min} to head.v_max {v_max} have no {num_atoms} evenly spaced atoms "
                "in 32 bits: set both nearer to 0"
            )
        super().__init__(
            num_features, num_actions, num_atoms, hidden_size, dueling, noisy, noisy_sigma,
            value_rescaling,
        )  # fmt: skip
        self.register_buffer("support", support, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of the atoms, `[batch, actions, atoms]`."""
        return self.layers(features)

    def expected_values(self, values: Tensor) -> Tensor:
        """Return the mean return of each action, `[batch, actions]`."""
        return (values.softmax(dim=-1) * self.unrescaled(self.support)).sum(dim=-1)

    def distribution(self, features: Tensor) -> ReturnDistribution:
        """Return the atoms and their probabilities."""
        probabilities = self(features).softmax(dim=-1)
        return ReturnDistribution(
            self.unrescaled(self.support).expand_as(probabilities), probabilities
        )

    def td_loss(self, values: Tensor, action: Tensor, target: BellmanTarget) -> TDLoss:
        """Return the cross entropy to the projected target; see `Head.td_loss` for shapes."""
        log_probabilities = select_action_distribution(values, action).log_softmax(dim=-1)
        goal = self._project(target).detach()
        loss = -(goal * log_probabilities).sum(dim=-1)
        divergence = (loss.detach() + torch.xlogy(goal, goal).sum(dim=-1)).clamp(min=0.0)
        prediction = (log_probabilities.detach().exp() * self.support).sum(dim=-1)
        return TDLoss(loss, divergence, prediction, (goal * self.support).sum(dim=-1))

    def _project(self, target: BellmanTarget) -> Tensor:
        """Return the target's probabilities of the atoms, `[batch, atoms]`."""
        # Where no bonus tells next actions apart, they share their atoms: mixed before projected.
        probabilities = target.next_policy.unsqueeze(-1) * target.next_values.softmax(dim=-1)
        if target.next_bonus is None:
            probabilities = probabilities.sum(dim=1, keepdim=True)
        atoms = self.next_returns(self.support.view(1, 1, -1), target.next_bonus)
        reward, discount = target.reward.view(-1, 1, 1), target.discount.view(-1, 1, 1)
        atoms = self.rescaled(reward + discount * atoms)
        return project_categorical(atoms.flatten(1), probabilities.flatten(1), self.support)
