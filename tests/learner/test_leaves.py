"""A learner step of batches whose observations have leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.tiny_networks import random_batch
from torch import Tensor, nn

from lrl import DQN
from lrl.callbacks import NonFiniteGuard, NonFiniteLossError
from lrl.learner.bootstrap import DoubleBootstrap, ask_target
from lrl.networks import Encoder
from lrl.types import ActionSpec, Batch, Column, EnvSpec

SPEC = EnvSpec(
    observation={"place": Column("float32", (4,)), "speed": Column("float32", (2,))},
    action=ActionSpec((2,)),
)


class TwoLeaves(Encoder):
    def __init__(self, observation_shape: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(shape[0] for shape in observation_shape.values()), 3)
        self.num_features = 3

    def forward(self, observation: Any) -> Tensor:
        return self.encode(torch.cat([observation["place"], observation["speed"]], dim=1))

    def encode(self, observation: Tensor) -> Tensor:
        return self.layer(observation)


def batch_of_leaves(seed: int) -> Batch:
    batch = random_batch(8, seed=seed)
    leaves = [
        {"place": torch.full((8, 4), seed + add), "speed": torch.rand(8, 2)} for add in (0.0, 1.0)
    ]
    return replace(batch, observation=leaves[0], next_observation=leaves[1])


def test_several_batches_are_asked_about_together_as_one_by_one():
    agent = DQN(encoder=TwoLeaves, bootstrap=DoubleBootstrap, env_spec=SPEC)
    batches = [batch_of_leaves(seed) for seed in (1, 2)]
    together = ask_target(agent.bootstrap, agent.target, *batches)
    for batch, found in zip(batches, together, strict=True):
        (alone,) = ask_target(agent.bootstrap, agent.target, batch)
        torch.testing.assert_close(found.values, alone.values)
        assert agent.compute_loss(batch, found).loss.isfinite()


def test_a_batch_whose_loss_is_not_finite_is_written_with_its_leaves(tmp_path):
    guard, batch = NonFiniteGuard(), batch_of_leaves(0)
    guard.folder = tmp_path
    guard.remember(batch, torch.full((8,), torch.nan), torch.tensor(torch.nan))
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 3"):
        guard.check(3, [torch.ones(1)], None)
    (path,) = tmp_path.glob("*.pt")
    saved = torch.load(path, weights_only=True)["batch"]
    assert torch.equal(saved["observation.speed"], batch.observation["speed"])
