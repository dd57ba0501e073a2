"""Returns: what a window of rewards is worth, and how its bootstrap value is discounted."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.functional._shapes import Bool, Float, Int


def n_step_return(
    rewards: Float[Tensor, "batch n"],
    terminated: Bool[Tensor, "batch n"],
    truncated: Bool[Tensor, "batch n"],
    gamma: float,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Sum discounted rewards up to the window's end or an episode's end, whichever is first.

    Returns the return, the final discount of the bootstrap value and the number of steps m:
    the discount is gamma**m, or 0 where the episode terminated. Truncation shortens the window
    but keeps the bootstrap. Columns after the first end are ignored, whatever they hold.

    Reference: Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 7.1.

    Example:
        >>> rewards = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        >>> terminated = torch.tensor([[False, False, False], [False, True, False], [False] * 3])
        >>> truncated = torch.tensor([[False, False, False], [False] * 3, [False, True, False]])
        >>> n_step_return(rewards, terminated, truncated, gamma=0.5)
        (tensor([1.7500, 1.5000, 1.5000]), tensor([0.1250, 0.0000, 0.2500]), tensor([3, 2, 2]))
    """
    powers = rewards.new_tensor([gamma**step for step in range(rewards.shape[1] + 1)])
    return return_with_powers(rewards, terminated, truncated, powers)


def return_with_powers(
    rewards: Float[Tensor, "batch n"],
    terminated: Bool[Tensor, "batch n"],
    truncated: Bool[Tensor, "batch n"],
    powers: Float[Tensor, " powers"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Compute `n_step_return` with the powers of gamma given, from gamma**0 to gamma**n.

    It then takes nothing from the host, so that it can be part of a CUDA graph.

    Example:
        >>> never = torch.tensor([[False, False]])
        >>> powers = torch.tensor([1.0, 0.5, 0.25])
        >>> return_with_powers(torch.tensor([[1.0, 1.0]]), never, never, powers)
        (tensor([1.5000]), tensor([0.2500]), tensor([2]))
    """
    ended = terminated | truncated
    outside = ended.cumsum(1) > ended  # there is an end in an earlier column
    steps = ended.shape[1] - outside.sum(1)
    # Filled, not multiplied: a column behind the end may hold NaN, and 0 * NaN is NaN.
    returns = (rewards * powers[:-1]).masked_fill_(outside, 0.0).sum(1)
    discount = powers[steps].masked_fill_((terminated & ~outside).any(1), 0.0)
    return returns, discount, steps


def lambda_return(
    rewards: Float[Tensor, "batch time"],
    next_values: Float[Tensor, "batch time"],
    terminated: Bool[Tensor, "batch time"],
    goes_on: Bool[Tensor, "batch time"],
    gamma: float,
    lambda_: float,
) -> Float[Tensor, "batch time"]:
    """Mix the n-step returns of all n, those of n + 1 steps with `lambda_` times the weight of n.

    G[t] = reward[t] + gamma * ((1 - lambda) * next_value[t] + lambda * G[t + 1]), from behind. What
    comes after a terminated step is worth nothing; where the rewards do not go on in the next
    column, at a truncation, a hole or the last column, its value alone is taken instead. Lambda 0
    gives one-step returns, lambda 1 the rewards of all columns up to an end.

    Reference: Gallici et al. 2024, https://arxiv.org/abs/2407.04811, section 3.3; Daley and Amato
    2019, https://arxiv.org/abs/1810.09967, equation 6.

    Args:
        rewards: Reward of each step.
        next_values: Value of the observation after it, from which it is bootstrapped.
        terminated: Whether the episode terminated with it.
        goes_on: Whether the next column is the step after it; of the last column it is not read.
        gamma: Discount of one environment step.
        lambda_: Weight of what comes later, between 0 and 1.

    Example:
        >>> rewards, next_values = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[8.0, 4.0, 2.0]])
        >>> never, on = torch.zeros(1, 3, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)
        >>> lambda_return(rewards, next_values, never, on, gamma=0.5, lambda_=0.5)
        tensor([[3.6250, 2.5000, 2.0000]])
        >>> lambda_return(rewards, next_values, on, on, gamma=0.5, lambda_=0.5)
        tensor([[1., 1., 1.]])
    """
    returns = torch.empty_like(rewards)
    later = next_values[:, -1]
    for t in range(rewards.shape[1] - 1, -1, -1):
        value = next_values[:, t]
        mixed = torch.where(goes_on[:, t], torch.lerp(value, later, lambda_), value)
        # `where`, not a product: behind an end there may be NaN.
        later = rewards[:, t] + gamma * torch.where(terminated[:, t], 0.0, mixed)
        returns[:, t] = later
    return returns
