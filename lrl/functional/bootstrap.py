"""What to believe of the next observation: policies over next actions and one-step targets."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.functional._shapes import Bool, Float, Int


def greedy_policy(q: Float[Tensor, "batch actions"]) -> Float[Tensor, "batch actions"]:
    """Put all probability on the action of the largest value (the first one, if they tie).

    Example:
        >>> greedy_policy(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])
    """
    return torch.zeros_like(q).scatter_(-1, q.argmax(dim=-1, keepdim=True), 1.0)


def masked(
    q: Float[Tensor, "batch actions"], mask: Bool[Tensor, "batch actions"] | None
) -> Float[Tensor, "batch actions"]:
    """Put actions that are not allowed at minus infinity; without a mask, all are.

    Example:
        >>> masked(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]]))
        tensor([[1., -inf]])
    """
    return q if mask is None else q.masked_fill(~mask, -torch.inf)


def soft_log_policy(
    q: Float[Tensor, "batch actions"], temperature: float
) -> Float[Tensor, "batch actions"]:
    """Return the scaled log-probabilities, temperature * log softmax(q / temperature).

    They stay exact for small temperatures, where the softmax itself underflows.

    Example:
        >>> soft_log_policy(torch.tensor([[0.0, 1.0, 100.0]]), temperature=0.1)
        tensor([[-100.,  -99.,    0.]])
    """
    q = q - q.max(dim=-1, keepdim=True).values
    return q - temperature * torch.logsumexp(q / temperature, dim=-1, keepdim=True)


def munchausen(
    q: Float[Tensor, "batch actions"],
    action: Int[Tensor, " batch"],
    next_q: Float[Tensor, "batch actions"],
    temperature: float,
    clip: float,
    mask: Bool[Tensor, "batch actions"] | None = None,
    next_mask: Bool[Tensor, "batch actions"] | None = None,
) -> tuple[Float[Tensor, "batch actions"], Float[Tensor, "batch actions"], Float[Tensor, " batch"]]:
    """Return the next policy, the bonus of each next action and the clipped bonus of the reward.

    The target is `reward + alpha * reward_bonus + discount * sum(policy * (next_q + bonus))`.

    Reference: Vieillard et al. 2020, https://arxiv.org/abs/2007.14430, equation 1; the clipping
    is in section 4 ("Agents").

    Example:
        >>> q, next_q = torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 2.0]])
        >>> policy, bonus, reward_bonus = munchausen(q, torch.tensor([1]), next_q, 1.0, -0.5)
        >>> policy, bonus, reward_bonus
        (tensor([[0.5000, 0.5000]]), tensor([[0.6931, 0.6931]]), tensor([-0.5000]))
    """
    log_policy = soft_log_policy(masked(next_q, next_mask), temperature)
    policy = (log_policy / temperature).exp()
    # 0 * infinity would be NaN where an action is not allowed.
    bonus = -log_policy.masked_fill(log_policy == -torch.inf, 0.0)
    taken = select_action_value(soft_log_policy(masked(q, mask), temperature), action)
    return policy, bonus, taken.clamp(min=clip, max=0.0)


def td_target(
    reward: Float[Tensor, " batch"],
    discount: Float[Tensor, " batch"],
    next_q: Float[Tensor, "batch actions"],
    next_policy: Float[Tensor, "batch actions"],
) -> Float[Tensor, " batch"]:
    """Bootstrap with the value that a policy over next actions expects.

    `discount` is final (gamma**m for an m-step transition, 0 where the episode terminated).
    With the greedy policy of `next_q` itself this is Q-learning (Mnih et al. 2015, "Human-level
    control", Algorithm 1); with the greedy policy of the online network it is Double DQN
    (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4).

    Example:
        >>> next_q, online_q = torch.tensor([[5.0, 2.0]]), torch.tensor([[0.0, 1.0]])
        >>> reward, discount = torch.tensor([1.0]), torch.tensor([0.9])
        >>> td_target(reward, discount, next_q, greedy_policy(next_q))
        tensor([5.5000])
        >>> td_target(reward, discount, next_q, greedy_policy(online_q))
        tensor([2.8000])
    """
    return reward + discount * (next_policy * next_q).sum(dim=-1)


def huber(error: Float[Tensor, " batch"], delta: float = 1.0) -> Float[Tensor, " batch"]:
    """Return the Huber loss of each error: quadratic up to `delta`, linear beyond.

    Its gradient beyond the knee is +-delta, not zero: clipping the loss instead of its gradient is
    a known mistake ("error clipping" in Mnih et al. 2015 means the gradient).

    Example:
        >>> huber(torch.tensor([0.5, -3.0]))
        tensor([0.1250, 2.5000])
    """
    magnitude = error.abs()
    quadratic = magnitude.clamp(max=delta)
    return 0.5 * quadratic.square() + delta * (magnitude - quadratic)


def select_action_value(
    q: Float[Tensor, "batch actions"], action: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the value of the action taken, per row.

    Example:
        >>> select_action_value(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
        tensor([2., 3.])
    """
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
