import pytest
import torch

from lrl.functional.bootstrap import greedy_policy
from lrl.networks import BellmanTarget, ScalarHead
from lrl.types import ConfigError

VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
ACTION = torch.tensor([1, 0, 0])
NEXT_VALUES = torch.tensor([[5.0, 1.0], [7.0, 9.0], [2.0, 3.0]])
TARGET = BellmanTarget(
    reward=torch.tensor([1.0, -1.0, 0.25]),
    discount=torch.tensor([0.5, 0.0, 0.25]),
    next_values=NEXT_VALUES,
    next_policy=greedy_policy(NEXT_VALUES),
)
GOAL = [1.0 + 0.5 * 5.0, -1.0, 0.25 + 0.25 * 3.0]
ERROR = [2.0 - 3.5, 3.0 + 1.0, 0.0 - 1.0]


@pytest.mark.parametrize(
    ("loss", "expected", "slopes"),
    [
        ("huber", [1.0, 3.5, 0.5], [-1.0, 1.0, -1.0]),
        ("mse", [0.5 * 1.5**2, 8.0, 0.5], ERROR),
    ],
)
def test_scalar_loss_by_hand(loss, expected: list[float], slopes: list[float]):
    values = VALUES.clone().requires_grad_()
    td = ScalarHead(4, 2, loss).td_loss(values, ACTION, TARGET)
    assert td.target.tolist() == GOAL
    assert td.prediction.tolist() == [2.0, 3.0, 0.0]
    assert td.priority.tolist() == [abs(error) for error in ERROR]
    assert td.loss.tolist() == expected

    td.loss.sum().backward()
    assert values.grad is not None
    # Beyond the knee the action taken still learns.
    assert values.grad.tolist() == [[0.0, slopes[0]], [slopes[1], 0.0], [slopes[2], 0.0]]


def test_scalar_target_of_a_soft_policy_with_bonus_by_hand():
    target = TARGET._replace(
        next_policy=torch.tensor([[0.25, 0.75]] * 3), next_bonus=torch.tensor([[4.0, 0.0]] * 3)
    )
    td = ScalarHead(4, 2, "huber").td_loss(VALUES, ACTION, target)
    expected = [1.0 + 0.5 * (0.25 * 9.0 + 0.75 * 1.0), -1.0, 0.25 + 0.25 * (0.25 * 6 + 0.75 * 3)]
    assert td.target.tolist() == expected


def test_scalar_head_is_one_matrix():
    head, features = ScalarHead(3, 2), torch.randn(5, 3)
    values = head(features)
    torch.testing.assert_close(values, head.layers.actions(features))
    assert sum(parameter.numel() for parameter in head.parameters()) == 3 * 2 + 2
    assert head.expected_values(values) is values


def test_unknown_loss():
    with pytest.raises(ConfigError, match=r"head\.loss must be 'huber' or 'mse', got 'l1'"):
        ScalarHead(4, 2, "l1")  # pyright: ignore[reportArgumentType]
