"""The conservative term, against numbers made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.training_runs import small_agent

from lrl.learner.bootstrap import NextValues
from lrl.learner.dqn import DQN
from lrl.offline.conservative import ConservativeDQN, conservative_gap
from lrl.types import ActionSpec, Batch, ConfigError, EnvSpec


def test_the_term_by_hand():
    q = torch.tensor([[1.0, 2.0, 3.0, 0.0, 4.0]])
    three = math.log(math.exp(1) + math.exp(2) + math.exp(3))
    two = math.log(math.exp(0) + math.exp(4))
    one_of_five = conservative_gap(q, torch.tensor([4]), None, ActionSpec((5,)))
    assert one_of_five.item() == pytest.approx(math.log(math.exp(three) + math.exp(two)) - 4)
    branches = conservative_gap(q, torch.tensor([[1, 0]]), None, ActionSpec((3, 2)))
    assert branches.item() == pytest.approx(((three - 2.0) + (two - 0.0)) / 2)
    mask = torch.tensor([[True, True, False, True, False]])
    allowed = conservative_gap(q, torch.tensor([[1, 0]]), mask, ActionSpec((3, 2)))
    assert allowed.item() == pytest.approx((math.log(math.exp(1) + math.exp(2)) - 2.0 + 0.0) / 2)


def test_the_loss_is_that_of_dqn_and_the_weighted_term():
    spec = EnvSpec.box((2,), "float32", 3)
    torch.manual_seed(0)
    agent = ConservativeDQN(alpha=2.0, env_spec=spec)
    rng = torch.Generator().manual_seed(1)
    observation, after = torch.rand(2, 4, 2, generator=rng)
    weights = torch.tensor([1.0, 0.5, 0.25, 1.0])
    action = torch.tensor([0, 2, 1, 0])
    batch = Batch(
        observation, action, torch.ones(4), torch.full((4,), 0.9), after, weights,
        torch.zeros(4, 2, dtype=torch.int64),
    )  # fmt: skip
    values = agent.target(after)
    known = NextValues(values, agent.target.head.expected_values(values))
    own, plain = agent.compute_loss(batch, known), DQN.compute_loss(agent, batch, known)
    q = agent.online.q_values(observation).detach()
    term = sum(float(weights[i] * (q[i].exp().sum().log() - q[i, action[i]])) for i in range(4))
    assert own.loss.item() == pytest.approx(plain.loss.item() + 2.0 * term / 4, rel=1e-5)
    torch.testing.assert_close(own.td.priority, plain.td.priority)


def test_alpha_is_checked_and_saved():
    with pytest.raises(ConfigError, match=r"model\.alpha must be at least 0 and finite, got -1"):
        ConservativeDQN(alpha=-1.0)
    hparams = dict(ConservativeDQN(alpha=0.5).hparams)
    assert hparams.pop("alpha") == 0.5
    assert hparams.keys() == dict(small_agent().hparams).keys()
