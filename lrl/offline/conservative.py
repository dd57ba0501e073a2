"""Conservative Q-learning: values of actions that the data does not hold are kept low."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrl.functional.bootstrap import masked
from lrl.learner.bootstrap import NextValues
from lrl.learner.dqn import DQN
from lrl.learner.updater import Losses
from lrl.types import ActionSpec, Batch, ConfigError


class ConservativeDQN(DQN):
    """A `DQN` of any parts whose loss also has alpha * (logsumexp Q - Q(a)), CQL(H).

    Without actors nobody finds out that the value of an action which the data does not hold is too
    high; the term pulls all values down and that of the action taken up. It is of the head's
    expected values, whatever else the head represents. Each learner step takes the observations
    through the online network once more than `DQN` does, whose loss keeps its values to itself.

    Reference: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation 4.

    Args:
        alpha: Weight of the term; 0 is a `DQN`.
        settings: Those of `DQN`.
    """

    def __init__(self, alpha: float = 1.0, **settings: Any) -> None:
        if not 0.0 <= alpha < float("inf"):
            raise ConfigError(f"model.alpha must be at least 0 and finite, got {alpha}")
        super().__init__(**settings)
        self.alpha = alpha
        self.save_hyperparameters({"alpha": float(alpha)}, logger=False)

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        """Return the loss of `DQN` with the term added; priorities stay those of the TD error."""
        losses = super().compute_loss(batch, next_values)
        q = self.online.q_values(batch.observation, batch.memory)
        assert self.env_spec is not None
        gap = conservative_gap(q, batch.action, batch.action_mask, self.env_spec.action)
        return losses._replace(loss=losses.loss + self.alpha * (batch.weights * gap).mean())


def conservative_gap(q: Tensor, action: Tensor, mask: Tensor | None, spec: ActionSpec) -> Tensor:
    """Return logsumexp of the allowed actions' values minus the value of the one taken, `[batch]`.

    Of several branches it is the mean.

    Args:
        q: Expected values, `[batch, values]`.
        action: Actions taken, `[batch]` or `[batch, branches]`.
        mask: Which choices are allowed, `[batch, values]`; None allows all.
        spec: The actions.

    Example:
        >>> q = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
        >>> conservative_gap(q, torch.tensor([0, 0]), None, ActionSpec((2,)))
        tensor([0.6931, 0.0486])
    """
    parts = zip(spec.split(q), spec.split(mask), spec.choices(action), strict=True)
    gaps = [
        masked(values, allowed).logsumexp(dim=-1) - values.gather(-1, taken[:, None])[:, 0]
        for values, allowed, taken in parts
    ]
    return torch.stack(gaps).mean(dim=0)
