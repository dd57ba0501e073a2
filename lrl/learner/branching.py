"""Action branching: one decision in each of several branches, whose values stand side by side.

Heads, bootstrap rules and explorations know one choice among several. Here they are asked for each
branch in turn and what they say is averaged; with one branch they are asked as they are. What
actors do of it is `lrl.actors.exploration.in_branches`.

Reference: Tavakoli et al. 2018, https://arxiv.org/abs/1711.08946.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lrl.functional.bootstrap import masked
from lrl.learner.bootstrap import BootstrapRule, NextValues
from lrl.networks.heads import BellmanTarget, Head, TDLoss
from lrl.types import ActionSpec, Batch


def greedy_action(q: Tensor, mask: Tensor | None, spec: ActionSpec) -> Tensor:
    """Return the best allowed action of each row, `[batch]` or `[batch, branches]`.

    Args:
        q: Action values, `[batch, values]`.
        mask: Which choices are allowed, `[batch, values]`; None allows all.
        spec: The actions.

    Example:
        >>> q = torch.tensor([[1.0, 3.0, 2.0, 5.0, 4.0]])
        >>> greedy_action(q, None, ActionSpec((5,))), greedy_action(q, None, ActionSpec((3, 2)))
        (tensor([3]), tensor([[1, 0]]))
    """
    parts = zip(spec.split(q), spec.split(mask), strict=True)
    chosen = [masked(values, allowed).argmax(dim=-1) for values, allowed in parts]
    return chosen[0] if len(chosen) == 1 else torch.stack(chosen, dim=-1)


def branched_target(
    rule: BootstrapRule, batch: Batch, next_values: NextValues, spec: ActionSpec
) -> BellmanTarget:
    """Return what all branches are learnt from: the mean of what the rule says of each.

    The policy over next choices is each branch's own, divided by the number of branches, so that
    its probabilities sum to 1, and the next value is the mean over branches. Bonuses of the reward
    are averaged too.

    Args:
        rule: The rule, which sees one branch at a time.
        batch: The transitions.
        next_values: What networks say of them.
        spec: The actions.
    """
    if len(spec.branches) == 1:
        return rule.target(batch, next_values)
    columns = (
        spec.choices(batch.action),
        spec.split(batch.action_mask),
        spec.split(batch.next_action_mask),
        spec.split(next_values.next_q),
        spec.split(next_values.q),
        spec.split(next_values.online_next_q),
    )
    targets: list[BellmanTarget] = []
    for action, mask, next_mask, next_q, q, online_next_q in zip(*columns, strict=True):
        one = replace(batch, action=action, action_mask=mask, next_action_mask=next_mask)
        known = NextValues(next_values.values, next_q, q, online_next_q)
        targets.append(rule.target(one, known))
    bonuses = [target.next_bonus for target in targets if target.next_bonus is not None]
    return targets[0]._replace(
        reward=_mean([target.reward for target in targets]),
        next_policy=torch.cat([target.next_policy for target in targets], dim=-1) / len(targets),
        next_bonus=torch.cat(bonuses, dim=-1) if bonuses else None,
    )


def branched_loss(
    head: Head, values: object, action: Tensor, target: BellmanTarget, spec: ActionSpec
) -> TDLoss:
    """Return the mean over branches of the losses against the target that they share.

    The priority is the sum of theirs, as in the paper.

    Args:
        head: The head, which is told of one choice at a time.
        values: Its values of the observations, with gradient.
        action: Actions taken, `[batch]` or `[batch, branches]`.
        target: What to learn from.
        spec: The actions.
    """
    if len(spec.branches) == 1:
        return head.td_loss(values, action, target)
    taken = zip(spec.choices(action), spec.parts, strict=True)
    losses = [head.td_loss(values, choice + part.start, target) for choice, part in taken]
    return TDLoss(
        loss=_mean([one.loss for one in losses]),
        priority=torch.stack([one.priority for one in losses]).sum(dim=0),
        prediction=_mean([one.prediction for one in losses]),
        target=losses[0].target,
    )


def _mean(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).mean(dim=0)
