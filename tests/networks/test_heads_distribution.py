"""The return distributions that heads show to whoever looks."""

from __future__ import annotations

import functools

import pytest
import torch

from lrl.networks import (
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    QuantileHead,
    ReturnDistribution,
    ScalarHead,
)

BATCH, FEATURES, ACTIONS = 4, 5, 3
DISTRIBUTIONAL = {
    "categorical": functools.partial(CategoricalHead, num_atoms=17, v_min=-40.0, v_max=40.0),
    "quantile": functools.partial(QuantileHead, num_quantiles=5),
    "implicit": functools.partial(ImplicitQuantileHead, num_acting_quantiles=7),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def distribution(head: Head, features: torch.Tensor) -> ReturnDistribution:
    found = head.distribution(features)
    assert found is not None
    return found


@pytest.mark.parametrize("rescaling", [None, 0.01])
@pytest.mark.parametrize("build", DISTRIBUTIONAL.values(), ids=DISTRIBUTIONAL.keys())
def test_its_mean_is_the_value_that_actions_are_chosen_by(build, rescaling: float | None):
    head = build(FEATURES, ACTIONS, value_rescaling=rescaling)
    features = 3.0 * torch.randn(BATCH, FEATURES)
    returns, probabilities = distribution(head, features)
    assert returns.shape == probabilities.shape
    assert returns.shape[:2] == (BATCH, ACTIONS)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(BATCH, ACTIONS))
    torch.testing.assert_close((returns * probabilities).sum(dim=-1), head.q_values(features))


@pytest.mark.parametrize("build", DISTRIBUTIONAL.values(), ids=DISTRIBUTIONAL.keys())
def test_to_look_draws_no_random_numbers(build):
    head, features = build(FEATURES, ACTIONS), torch.randn(BATCH, FEATURES)
    state = torch.get_rng_state()
    first, again = distribution(head, features), distribution(head, features)
    assert torch.equal(first.returns, again.returns)
    assert torch.equal(torch.get_rng_state(), state)


def test_by_hand():
    head = CategoricalHead(1, 1, num_atoms=3, v_min=0.0, v_max=2.0)
    for parameter in head.parameters():
        parameter.data.zero_()
    returns, probabilities = distribution(head, torch.zeros(1, 1))
    assert returns.tolist() == [[[0.0, 1.0, 2.0]]]
    assert probabilities.flatten().tolist() == pytest.approx([1 / 3] * 3)


def test_a_scalar_head_has_none():
    assert ScalarHead(FEATURES, ACTIONS).distribution(torch.zeros(BATCH, FEATURES)) is None
