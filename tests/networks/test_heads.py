import pytest
import torch

from lrl.functional.bootstrap import greedy_policy
from lrl.networks import ScalarHead
from lrl.networks.heads import TDLoss
from lrl.types import ConfigError

VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
ACTION = torch.tensor([1, 0, 0])
NEXT_VALUES = torch.tensor([[5.0, 1.0], [7.0, 9.0], [2.0, 3.0]])
REWARD = torch.tensor([1.0, -1.0, 0.25])
DISCOUNT = torch.tensor([0.5, 0.0, 0.25])
# 1 + 0.5 * 5, terminated, 0.25 + 0.25 * 3
TARGET = [3.5, -1.0, 1.0]
ERROR = [2.0 - 3.5, 3.0 + 1.0, 0.0 - 1.0]


def td_loss(head: ScalarHead, values: torch.Tensor) -> TDLoss:
    policy = greedy_policy(NEXT_VALUES)
    return head.td_loss(values, ACTION, NEXT_VALUES, policy, REWARD, DISCOUNT)


@pytest.mark.parametrize(
    ("loss", "expected", "slopes"),
    [
        ("huber", [1.0, 3.5, 0.5], [-1.0, 1.0, -1.0]),
        ("mse", [0.5 * 1.5**2, 8.0, 0.5], ERROR),
    ],
)
def test_scalar_loss_by_hand(loss, expected: list[float], slopes: list[float]):
    values = VALUES.clone().requires_grad_()
    result = td_loss(ScalarHead(4, 2, loss), values)
    assert result.target.tolist() == TARGET
    assert result.prediction.tolist() == [2.0, 3.0, 0.0]
    assert result.priority.tolist() == [abs(error) for error in ERROR]
    assert result.loss.tolist() == expected

    result.loss.sum().backward()
    assert values.grad is not None
    # Only the action taken learns, and beyond the knee it still does.
    assert values.grad.tolist() == [[0.0, slopes[0]], [slopes[1], 0.0], [slopes[2], 0.0]]


def test_only_the_loss_has_a_gradient():
    result = td_loss(ScalarHead(4, 2), VALUES.clone().requires_grad_())
    needs_gradient = {name: value.requires_grad for name, value in result._asdict().items()}
    assert needs_gradient == {
        "loss": True, "priority": False, "prediction": False, "target": False
    }  # fmt: skip


def test_next_values_get_no_gradient():
    next_values = NEXT_VALUES.clone().requires_grad_()
    policy = greedy_policy(NEXT_VALUES)
    values = VALUES.clone().requires_grad_()
    ScalarHead(4, 2).td_loss(
        values, ACTION, next_values, policy, REWARD, DISCOUNT
    ).loss.sum().backward()
    assert next_values.grad is None


@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_gradient_equals_finite_differences(loss):
    head = ScalarHead(4, 2, loss)
    values = VALUES.double().requires_grad_()
    next_values, reward, discount = NEXT_VALUES.double(), REWARD.double() + 0.1, DISCOUNT.double()

    def losses(values: torch.Tensor) -> torch.Tensor:
        policy = greedy_policy(next_values)
        return head.td_loss(values, ACTION, next_values, policy, reward, discount).loss

    assert torch.autograd.gradcheck(losses, (values,))


def test_samples_do_not_mix():
    order = torch.tensor([2, 0, 1])
    policy = greedy_policy(NEXT_VALUES)
    straight = td_loss(ScalarHead(4, 2), VALUES)
    permuted = ScalarHead(4, 2).td_loss(
        VALUES[order], ACTION[order], NEXT_VALUES[order], policy[order], REWARD[order],
        DISCOUNT[order],
    )  # fmt: skip
    for name, value in straight._asdict().items():
        assert value.shape == (3,), name
        assert getattr(permuted, name).tolist() == value[order].tolist(), name


def test_scalar_head_is_one_matrix():
    head = ScalarHead(3, 2)
    features = torch.randn(5, 3)
    values = head(features)
    torch.testing.assert_close(values, features @ head.linear.weight.T + head.linear.bias)
    assert head.q_values(values) is values


def test_unknown_loss():
    with pytest.raises(ConfigError, match=r"head\.loss must be 'huber' or 'mse', got 'l1'"):
        ScalarHead(4, 2, "l1")  # pyright: ignore[reportArgumentType]
