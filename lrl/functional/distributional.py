"""Distributions of returns: projection onto fixed atoms, and the loss of quantiles."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lrl.functional._shapes import Float, Int


def select_action_distribution(
    values: Float[Tensor, "batch actions n"], action: Int[Tensor, " batch"]
) -> Float[Tensor, "batch n"]:
    """Return the numbers that belong to the action taken, per row.

    Example:
        >>> values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> select_action_distribution(values, torch.tensor([1]))
        tensor([[3., 4.]])
    """
    index = action.view(-1, 1, 1).expand(-1, 1, values.shape[-1])
    return values.gather(1, index).squeeze(1)


def project_categorical(
    values: Float[Tensor, "batch n"],
    probabilities: Float[Tensor, "batch n"],
    support: Float[Tensor, " atoms"],
) -> Float[Tensor, "batch atoms"]:
    """Move the probabilities of arbitrary values to the atoms of an evenly spaced support.

    A value between two atoms is shared between them, the nearer one getting more, so the mean
    stays; a value outside the support goes to the atom at that end. The support ascends and has at
    least two atoms.

    Reference: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation 7.

    Example:
        >>> values, support = torch.tensor([[0.25, 9.0]]), torch.tensor([0.0, 1.0, 2.0])
        >>> project_categorical(values, torch.tensor([[0.8, 0.2]]), support)
        tensor([[0.6000, 0.2000, 0.2000]])
    """
    last = support.shape[0] - 1
    position = ((values - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)
    # The last atom counts as an upper one. A NaN is an index outside, but stays so in its share.
    index = position.long().clamp(0, last - 1)
    share = position - index
    projected = probabilities.new_zeros(values.shape[0], last + 1)
    projected.scatter_add_(1, index, probabilities * (1.0 - share))
    return projected.scatter_add_(1, index + 1, probabilities * share)


def quantile_huber(
    quantiles: Float[Tensor, "batch n"],
    taus: Float[Tensor, "#batch n"],
    target: Float[Tensor, "batch m"],
    kappa: float,
) -> Float[Tensor, " batch"]:
    """Return the quantile regression loss of predicted quantiles against target samples.

    It is summed over the `n` predicted quantiles at levels `taus` and averaged over the `m`
    samples of the target. `kappa` is the knee of the Huber loss; 0 gives the plain quantile loss,
    |tau - 1{u < 0}| |u| for errors u = target - quantile.

    Reference: Dabney et al. 2018, https://arxiv.org/abs/1806.06923, equation 3. Their earlier
    https://arxiv.org/abs/1710.10044 (equation 10 and Algorithm 1) does not divide by kappa, which
    is the same at its kappa of 1.

    Example:
        >>> quantiles, taus = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.25, 0.75]])
        >>> quantile_huber(quantiles, taus, torch.tensor([[3.0]]), kappa=1.0)
        tensor([1.])
    """
    pairs = (*quantiles.shape, target.shape[-1])
    prediction = quantiles.unsqueeze(-1).expand(pairs)
    sample = target.unsqueeze(-2).expand(pairs)
    levels = taus.unsqueeze(-1)
    weight = torch.where(sample < prediction, 1.0 - levels, levels)
    if kappa == 0.0:
        loss = functional.l1_loss(prediction, sample, reduction="none")
        return (weight * loss).mean(-1).sum(-1)
    loss = functional.huber_loss(prediction, sample, reduction="none", delta=kappa)
    return (weight * loss).mean(-1).sum(-1) / kappa
