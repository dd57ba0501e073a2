"""From sequences to the transitions among them, as a network sees them that was unrolled."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.networks import QNetwork, TDLoss, Unrolled
from lrl.types import Batch, SequenceBatch


def transitions_of(sequences: SequenceBatch, network: QNetwork) -> Batch:
    """Return the transitions of all rows behind the burn-in, sequence after sequence.

    Their observations are for the head of this network alone. Of rows that are not learnt from the
    weight is 0, and the mean of all weights is that of rows that are, so that a mean over all is
    one over what is learnt from.

    Args:
        sequences: The sequences.
        network: What they go through.
    """
    batch, length = sequences.learns.shape
    ahead = sequences.next_row - sequences.burn_in
    here, there = seen_by(network, sequences)
    mask = next_mask = None
    if sequences.action_mask is not None:
        masks = sequences.action_mask[:, sequences.burn_in :]
        mask = masks[:, :length].flatten(0, 1)
        next_mask = masks.gather(1, ahead[..., None].expand(-1, -1, masks.shape[2])).flatten(0, 1)
        # Where nothing is bootstrapped all actions are allowed.
        next_mask = next_mask | (sequences.discount.flatten() == 0)[:, None]
    learns = sequences.learns
    weights = sequences.weights[:, None] * learns * (learns.numel() / learns.sum())
    rows = torch.arange(length) + sequences.burn_in
    keys = torch.stack((sequences.keys[:, :1].expand(batch, length), sequences.keys[:, 1:] + rows))
    return Batch(
        observation=here,
        action=sequences.action.flatten(0, 1),
        reward=sequences.reward.flatten(),
        discount=sequences.discount.flatten(),
        next_observation=there,
        weights=weights.flatten(),
        keys=keys.flatten(1).T,
        action_mask=mask,
        next_action_mask=next_mask,
    )


def seen_by(network: QNetwork, sequences: SequenceBatch) -> tuple[Unrolled, Unrolled]:
    """Return observations and next observations of those transitions, as the network sees them.

    Args:
        network: What the sequences go through.
        sequences: The sequences.
    """
    features, length = network.unroll(sequences), sequences.learns.shape[1]
    ahead = (sequences.next_row - sequences.burn_in)[..., None].expand(-1, -1, features.shape[2])
    there = features.gather(1, ahead)
    return Unrolled(features[:, :length].flatten(0, 1)), Unrolled(there.flatten(0, 1))


def of_each_sequence(sequences: SequenceBatch, td: TDLoss) -> TDLoss:
    """Return what is known of each sequence, `[batch]`, from what the head says of its rows.

    Its priority is eta times the largest of its rows, plus 1 - eta times their mean (Kapturowski
    et al. 2019, section 2.3); everything else is a mean, over the rows that are learnt from.

    Args:
        sequences: The sequences.
        td: Of the batch that `transitions_of` made of them.
    """
    learns, eta = sequences.learns, sequences.eta
    count = learns.sum(dim=1)

    def mean(rows: Tensor) -> Tensor:
        return rows.view_as(learns).masked_fill(~learns, 0.0).sum(dim=1) / count

    largest = td.priority.view_as(learns).masked_fill(~learns, 0.0).amax(dim=1)
    means = TDLoss(*(mean(rows) for rows in td))
    return means._replace(priority=eta * largest + (1 - eta) * means.priority)
