import math

import pytest
import torch
from torch import Tensor

from lrl.networks import BellmanTarget, CategoricalHead
from lrl.types import ConfigError

ONE = torch.ones(1)


def logits(*rows: list[float]) -> Tensor:
    """Return logits `[1, actions, atoms]` of these probabilities."""
    return torch.tensor(rows).log().clamp(min=-1e4).unsqueeze(0)


def head(actions: int = 2) -> CategoricalHead:
    return CategoricalHead(4, actions, num_atoms=3, v_min=0.0, v_max=2.0)


def target(next_values: Tensor, policy: list[float], reward: float, discount: float, bonus=None):
    return BellmanTarget(reward * ONE, discount * ONE, next_values, torch.tensor([policy]), bonus)


NEXT = logits([0.5, 0.0, 0.5], [0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("policy", "reward", "discount", "projected"),
    [
        ([1.0, 0.0], 0.0, 1.0, [0.5, 0.0, 0.5]),
        ([0.0, 1.0], 0.5, 1.0, [0.0, 0.5, 0.5]),
        ([1.0, 0.0], 0.0, 0.5, [0.5, 0.5, 0.0]),  # the atom of 2 becomes exactly the atom of 1
        ([1.0, 0.0], 1.0, 1.0, [0.0, 0.5, 0.5]),  # 3 is cut to 2
        ([1.0, 0.0], -9.0, 1.0, [1.0, 0.0, 0.0]),
        ([0.0, 1.0], 1.25, 0.0, [0.0, 0.75, 0.25]),  # terminated: the reward alone
        ([0.5, 0.5], 0.0, 1.0, [0.25, 0.5, 0.25]),  # a soft policy mixes distributions
    ],
)
def test_loss_by_hand(policy, reward: float, discount: float, projected: list[float]):
    predicted = [0.2, 0.3, 0.5]
    values = logits([1.0, 0.0, 0.0], predicted).requires_grad_()
    td = head().td_loss(values, torch.tensor([1]), target(NEXT, policy, reward, discount))
    cross_entropy = -sum(p * math.log(q) for p, q in zip(projected, predicted, strict=True))
    entropy = -sum(p * math.log(p) for p in projected if p > 0)
    assert td.loss.item() == pytest.approx(cross_entropy, rel=1e-5)
    assert td.priority.item() == pytest.approx(cross_entropy - entropy, rel=1e-4)
    assert td.prediction.item() == pytest.approx(0.3 + 2 * 0.5)
    assert td.target.item() == pytest.approx(projected[1] + 2 * projected[2])

    td.loss.sum().backward()
    assert values.grad is not None
    expected = torch.tensor(predicted) - torch.tensor(projected)
    torch.testing.assert_close(values.grad[0, 1], expected)


def test_a_bonus_moves_the_atoms_of_its_action_alone():
    bonus = torch.tensor([[0.5, -1.0]])
    td = head().td_loss(NEXT, torch.tensor([1]), target(NEXT, [0.5, 0.5], 0.0, 1.0, bonus))
    # Action 0: 0.5 and 2.5 with 0.25 each; action 1: 0 with 0.5.
    projected = [0.125 + 0.5, 0.125, 0.25]
    assert td.target.item() == pytest.approx(projected[1] + 2 * projected[2])


def test_a_perfect_prediction_has_priority_0():
    values = logits([0.2, 0.3, 0.5], [0.1, 0.1, 0.8])
    td = head().td_loss(values, torch.tensor([0]), target(values, [1.0, 0.0], 0.0, 1.0))
    assert td.priority.item() == pytest.approx(0.0, abs=1e-6)
    assert td.loss.item() > 1.0  # its entropy
    assert td.priority.item() >= 0.0


def test_mixing_first_equals_projecting_all_actions():
    """Without a bonus the policy is applied before the projection: the fast path."""
    torch.manual_seed(0)
    categorical = CategoricalHead(4, 5, num_atoms=11)
    fast = BellmanTarget(
        torch.randn(8), torch.rand(8), torch.randn(8, 5, 11), torch.randn(8, 5).softmax(1)
    )
    slow = fast._replace(next_bonus=torch.zeros(8, 5))
    losses = [
        categorical.td_loss(torch.zeros(8, 5, 11), torch.zeros(8).long(), both)
        for both in (fast, slow)
    ]
    torch.testing.assert_close(losses[0], losses[1])


def test_confident_logits_stay_finite():
    values = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    td = head(1).td_loss(values, torch.tensor([0]), target(-values.detach(), [1.0], 0.0, 1.0))
    td.loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[[1.0, -1.0, 0.0]]]
    assert td.loss.item() == 2e4


def test_expected_values_are_means():
    values = logits([0.5, 0.25, 0.25], [0.0, 0.0, 1.0])
    torch.testing.assert_close(head().expected_values(values), torch.tensor([[0.75, 2.0]]))


def test_the_support_is_not_in_the_state_dict():
    assert sorted(head().state_dict()) == ["layers.actions.bias", "layers.actions.weight"]
    assert CategoricalHead(2, 2).support.tolist() == torch.linspace(-10, 10, 51).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_atoms": 1}, r"head\.num_atoms must be at least 2, got 1"),
        ({"v_min": 3.0, "v_max": 3.0}, r"head\.v_min must be below head\.v_max.* 3\.0 and 3\.0"),
        ({"v_max": float("inf")}, r"both finite, got -10\.0 and inf"),
        ({"v_min": float("nan")}, r"head\.v_min must be below"),
        ({"v_min": 1e8, "v_max": 1e8 + 1}, r"v_max .* have no 51 evenly spaced atoms"),
        ({"v_min": -3e38, "v_max": 3e38}, r"v_max .* have no 51 evenly spaced atoms"),
    ],
)
def test_wrong_settings(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        CategoricalHead(2, 2, **settings)
