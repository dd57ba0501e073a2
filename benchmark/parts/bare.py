"""The fastest loop of plain, uncompiled torch that we could write: lrl's updates are held to it.

It holds a network, its target and an optimizer, and nothing that a library needs beside them: no
module of Lightning, no head, no priorities, no look for NaN. Its large layer is lrl's, so that the
product is oneDNN's on both sides.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lrl.networks import Linear, onednn_products
from lrl.types import Batch

TARGET_PERIOD = 1000


def make_mlp() -> nn.Module:
    """Return CartPole's network, 4-120-84-2."""
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )


class Nature(nn.Module):
    """The network of Mnih et al. 2015 with six actions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(True),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(True),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(True),
            nn.Flatten(), Linear(3136, 512), nn.ReLU(True), nn.Linear(512, 6),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        """Return the values of the actions."""
        if not torch.is_autocast_enabled("cpu"):  # bfloat16 is faster as it is
            frames = torch.stack(frames.unbind(1), -1).permute(0, 3, 1, 2)
        return self.layers(frames.float().mul_(1 / 255))


def train(network: nn.Module, batches: Iterable[Batch], bf16: bool = False) -> None:
    """Learn from batches."""
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    for step, batch in enumerate(batches, 1):
        precision = torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False)
        with precision, onednn_products():
            with torch.no_grad():
                goal = batch.reward + batch.discount * target(batch.next_observation).amax(1)
            value = network(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % TARGET_PERIOD == 0:
            target.load_state_dict(network.state_dict())
