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
    ended = terminated | truncated
    inside = torch.ones_like(ended)  # no end in an earlier column
    inside[:, 1:] = ended[:, :-1].cumsum(1) == 0
    steps = inside.sum(1)
    powers = rewards.new_tensor([gamma**step for step in range(rewards.shape[1] + 1)])
    # `where`, not a product: a column behind the end may hold NaN, and 0 * NaN is NaN.
    returns = torch.where(inside, rewards * powers[:-1], 0.0).sum(1)
    discount = torch.where((terminated & inside).any(1), 0.0, powers[steps])
    return returns, discount, steps
