from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lrl.networks import BellmanTarget, ImplicitQuantileHead, QuantileHead, ScalarHead
from lrl.networks.quantile_heads import Quantiles
from lrl.types import ConfigError

# --- Both -----------------------------------------------------------------------------------


def target(
    next_quantiles: list, policy: list[float], bonus: list[float] | None = None
) -> BellmanTarget:
    """Return a target of one sample with reward 1 and discount 0.5."""
    values = torch.tensor([next_quantiles])
    return BellmanTarget(
        torch.ones(1),
        0.5 * torch.ones(1),
        Quantiles(values, torch.rand(1, values.shape[2])),
        torch.tensor([policy]),
        None if bonus is None else torch.tensor([bonus]),
    )


@pytest.mark.parametrize(
    ("policy", "bonus", "goal"),
    [
        ([1.0, 0.0], None, [1.0, 3.0]),
        ([0.0, 1.0], None, [2.0, 2.0]),
        ([0.5, 0.5], None, [1.5, 2.5]),  # quantiles of the same level are mixed
        ([0.5, 0.5], [2.0, 0.0], [2.0, 3.0]),
    ],
)
def test_loss_by_hand(policy: list[float], bonus: list[float] | None, goal: list[float]):
    head = QuantileHead(4, 2, num_quantiles=2)
    quantiles = torch.tensor([[[9.0, 9.0], [0.0, 1.0]]], requires_grad=True)
    td = head.td_loss(
        Quantiles(quantiles, head.taus),
        torch.tensor([1]),
        target([[0.0, 4.0], [2.0, 2.0]], policy, bonus),
    )
    expected = 0.0
    for quantile, tau in ((0.0, 0.25), (1.0, 0.75)):
        for sample in goal:  # none is below a prediction
            error = sample - quantile
            expected += 0.5 * tau * (0.5 * error**2 if error <= 1.0 else error - 0.5)
    assert td.loss.item() == pytest.approx(expected)
    assert td.prediction.item() == 0.5
    assert td.target.item() == pytest.approx(sum(goal) / 2)
    assert td.priority.item() == pytest.approx(sum(goal) / 2 - 0.5)


def test_one_quantile_is_half_the_scalar_head():
    torch.manual_seed(0)
    head, scalar = QuantileHead(4, 3, num_quantiles=1), ScalarHead(4, 3, "huber")
    values, next_values = 3.0 * torch.randn(2, 8, 3)
    action, policy = torch.arange(8) % 3, torch.randn(8, 3).softmax(1)
    other = BellmanTarget(torch.randn(8), torch.rand(8), next_values, policy, torch.rand(8, 3))
    expected = scalar.td_loss(values, action, other)
    ours = other._replace(next_values=Quantiles(next_values.unsqueeze(2), head.taus))
    actual = head.td_loss(Quantiles(values.unsqueeze(2), head.taus), action, ours)
    assert head.taus.tolist() == [[0.5]]
    torch.testing.assert_close(actual, expected._replace(loss=0.5 * expected.loss))


@pytest.mark.parametrize("head", [QuantileHead, ImplicitQuantileHead])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_quantiles": 0}, r"head\.num_quantiles must be at least 1, got 0"),
        ({"kappa": -1.0}, r"head\.kappa must be a finite number from 0 on, got -1\.0"),
        ({"kappa": float("nan")}, r"head\.kappa must be a finite number from 0 on, got nan"),
    ],
)
def test_wrong_settings(head: type, settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        head(2, 2, **settings)


# --- QR-DQN ---------------------------------------------------------------------------------


def test_fixed_levels_are_midpoints():
    head, features = QuantileHead(4, 3, num_quantiles=4), torch.randn(5, 4)
    values = head(features)
    assert values.taus.tolist() == [[0.125, 0.375, 0.625, 0.875]]
    torch.testing.assert_close(
        values.quantiles.flatten(1), head.layers.actions(features), rtol=0, atol=0
    )
    assert values.quantiles.shape == (5, 3, 4)
    assert sorted(head.state_dict()) == ["layers.actions.bias", "layers.actions.weight"]


# --- IQN ------------------------------------------------------------------------------------


def implicit(**settings: Any) -> ImplicitQuantileHead:
    sizes = {"num_quantiles": 5, "num_target_quantiles": 6, "num_acting_quantiles": 7}
    return ImplicitQuantileHead(4, 3, **{"embedding_size": 8, **sizes, **settings})


class Spy:
    """Remembers the levels that a head is asked for."""

    def __init__(self, head: ImplicitQuantileHead, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taus: list[Tensor] = []
        self._at = head.at
        monkeypatch.setattr(head, "at", self)

    def __call__(self, features: Tensor, taus: Tensor) -> Quantiles:
        self.taus.append(taus)
        return self._at(features, taus)


def test_learning_target_and_acting_take_as_many_levels_as_said(monkeypatch: pytest.MonkeyPatch):
    head, features = implicit(), torch.randn(9, 4)
    spy = Spy(head, monkeypatch)
    assert head(features).quantiles.shape == (9, 3, 5)
    assert head.target_values(features).quantiles.shape == (9, 3, 6)
    head.q_values(features)
    assert [tuple(taus.shape) for taus in spy.taus] == [(9, 5), (9, 6), (1, 7)]


def test_acting_takes_fixed_midpoints():
    """Exactly K levels: another library's constant 32 gives 33, both ends included."""
    head = ImplicitQuantileHead(4, 3)
    expected = [(k + 0.5) / 32 for k in range(32)]
    assert head.acting_taus.tolist() == [expected]
    features = torch.randn(5, 4)
    by_hand = head.at(features, torch.tensor([expected]).expand(5, -1)).quantiles.mean(2)
    torch.testing.assert_close(head.q_values(features), by_hand)


def test_learning_draws_new_levels_between_0_and_1_for_every_sample():
    torch.manual_seed(0)
    head, features = implicit(num_quantiles=500), torch.zeros(20, 4)
    taus = head(features).taus
    assert 0.0 <= taus.min() < 0.001
    assert 0.999 < taus.max() < 1.0
    assert taus.mean().item() == pytest.approx(0.5, abs=0.01)
    assert taus.std().item() == pytest.approx(math.sqrt(1 / 12), abs=0.01)
    assert len(taus.unique(dim=0)) == 20
    assert not torch.equal(head(features).taus, taus)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_embedding_by_hand(dueling: bool):
    torch.manual_seed(0)
    head, features = implicit(dueling=dueling), torch.randn(2, 4)
    linear = head.embedding[0]
    assert isinstance(linear, nn.Linear)
    for tau in (0.0, 0.3, 1.0):
        cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(8)])
        embedding = (linear.weight @ cosines + linear.bias).clamp(min=0.0)
        expected = head.layers(features * embedding)
        actual = head.at(features, torch.full((1, 1), tau)).quantiles
        torch.testing.assert_close(actual, expected)


def test_levels_of_one_sample_do_not_mix():
    head, features = implicit(), torch.randn(2, 4)
    taus = torch.rand(2, 3)
    together = head.at(features, taus).quantiles
    for row in range(2):
        for level in range(3):
            alone = head.at(features[row : row + 1], taus[row : row + 1, level : level + 1])
            torch.testing.assert_close(alone.quantiles[0, :, 0], together[row, :, level])


def test_implicit_quantiles_can_be_learnt():
    """Of rewards that are uniform in [0, 1], the quantile at each level is the level."""
    torch.manual_seed(0)
    head = ImplicitQuantileHead(16, 1, 8, num_target_quantiles=1, embedding_size=8, kappa=0.0)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    features, action, zeros = torch.ones(32, 16), torch.zeros(32).long(), torch.zeros(32)
    next_values, policy = head.target_values(features), torch.ones(32, 1)
    for _ in range(200):
        goal = BellmanTarget(torch.rand(32), zeros, next_values, policy)
        loss = head.td_loss(head(features), action, goal).loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    levels = torch.tensor([[0.1, 0.3, 0.5, 0.7, 0.9]])
    learnt = head.at(features[:1], levels).quantiles[0]
    torch.testing.assert_close(learnt, levels, rtol=0.0, atol=0.1)


def test_nothing_fixed_is_in_the_state_dict():
    assert sorted(implicit().state_dict()) == [
        "embedding.0.bias", "embedding.0.weight", "layers.actions.bias", "layers.actions.weight",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["num_target_quantiles", "num_acting_quantiles", "embedding_size"])
def test_sizes_must_be_positive(name: str):
    with pytest.raises(ConfigError, match=rf"head\.{name} must be at least 1, got 0"):
        implicit(**{name: 0})
