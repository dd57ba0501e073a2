import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from lrl.functional.bootstrap import greedy_policy, huber, select_action_value, td_target

finite = st.floats(-100.0, 100.0, width=32)
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 4))


@st.composite
def next_values(draw):
    """Draw a reward and a discount per row, and the values of both networks."""
    batch, actions = draw(SIZES)
    row = st.lists(finite, min_size=actions, max_size=actions)
    q = [draw(st.lists(row, min_size=batch, max_size=batch)) for _ in range(2)]
    reward = draw(st.lists(finite, min_size=batch, max_size=batch))
    discount = draw(st.lists(st.sampled_from([0.0, 0.9, 0.99]), min_size=batch, max_size=batch))
    return reward, discount, q[0], q[1]


@given(next_values())
def test_targets_equal_a_loop_over_rows(case: tuple):
    reward, discount, online, target = case
    q_learning, double = [], []
    for r, d, online_row, target_row in zip(reward, discount, online, target, strict=True):
        best = online_row.index(max(online_row))
        q_learning.append(r + d * max(target_row))
        double.append(r + d * target_row[best])
    reward, discount = torch.tensor(reward), torch.tensor(discount)
    online, target = torch.tensor(online), torch.tensor(target)

    actual = td_target(reward, discount, target, greedy_policy(target))
    torch.testing.assert_close(actual, torch.tensor(q_learning), rtol=1e-5, atol=1e-4)
    actual = td_target(reward, discount, target, greedy_policy(online))
    torch.testing.assert_close(actual, torch.tensor(double), rtol=1e-5, atol=1e-4)


def test_a_soft_policy_bootstraps_with_its_expectation():
    target = td_target(
        torch.tensor([1.0]),
        torch.tensor([0.5]),
        torch.tensor([[2.0, 6.0, 100.0]]),
        torch.tensor([[0.25, 0.75, 0.0]]),
    )
    assert target.tolist() == [1.0 + 0.5 * (0.25 * 2.0 + 0.75 * 6.0)]


def test_a_discount_of_zero_ignores_what_follows():
    target = td_target(
        torch.tensor([-2.0]), torch.zeros(1), torch.tensor([[1e30]]), torch.ones(1, 1)
    )
    assert target.tolist() == [-2.0]


def test_greedy_policy_is_one_hot_and_takes_the_first_of_equal_values():
    policy = greedy_policy(torch.tensor([[0.0, 7.0, 7.0], [-1.0, -2.0, -3.0]]))
    assert policy.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("error", "delta", "loss", "gradient"),
    [
        (0.0, 1.0, 0.0, 0.0),
        (0.5, 1.0, 0.125, 0.5),
        (-1.0, 1.0, 0.5, -1.0),
        (3.0, 1.0, 2.5, 1.0),
        (-1000.0, 1.0, 999.5, -1.0),
        (3.0, 2.0, 4.0, 2.0),
    ],
)
def test_huber_and_its_gradient(error: float, delta: float, loss: float, gradient: float):
    tensor = torch.tensor([error], requires_grad=True)
    result = huber(tensor, delta)
    result.sum().backward()
    assert result.item() == loss
    assert tensor.grad is not None
    assert tensor.grad.item() == gradient  # beyond the knee +-delta, never 0


@given(st.floats(-50.0, 50.0), st.floats(0.1, 10.0))
def test_huber_equals_torch(error: float, delta: float):
    tensor = torch.tensor([error], dtype=torch.float64)
    expected = torch.nn.functional.huber_loss(
        tensor, torch.zeros_like(tensor), reduction="none", delta=delta
    )
    torch.testing.assert_close(huber(tensor, delta), expected)


def test_select_action_value_picks_per_row():
    q = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert select_action_value(q, torch.tensor([2, 0])).tolist() == [3.0, 4.0]


def test_shapes_are_checked_during_tests():
    ones = torch.ones(2)
    with pytest.raises(TypeCheckError):
        td_target(ones, torch.ones(3), torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(TypeCheckError):  # a column would broadcast to [2, 2]
        td_target(torch.ones(2, 1), ones, torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(TypeCheckError):
        select_action_value(torch.ones(2, 4), torch.ones(2))
