import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from lrl.functional.bootstrap import (
    greedy_policy,
    huber,
    masked,
    munchausen,
    select_action_value,
    soft_log_policy,
    td_target,
)

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


def scaled_log_probability(row: list[float], allowed: list[bool], a: int, tau: float) -> float:
    """Return tau * log softmax(row / tau)[a] over the allowed actions, relative to action `a`."""
    exponents = [(q - row[a]) / tau for q, ok in zip(row, allowed, strict=True) if ok]
    return -tau * float(np.logaddexp.reduce(exponents)) if allowed[a] else -math.inf


@st.composite
def soft_cases(draw):
    """Draw values of two observations, large or nearly equal, with masks and a temperature."""
    batch, actions = draw(SIZES)
    value = st.one_of(st.floats(-1e4, 1e4), st.floats(-0.1, 0.1), st.sampled_from([0.0, 1e4]))
    row = st.lists(value, min_size=actions, max_size=actions)
    mask = st.lists(st.booleans(), min_size=actions, max_size=actions).filter(any)
    q, next_q = (draw(st.lists(row, min_size=batch, max_size=batch)) for _ in range(2))
    allowed, next_allowed = (draw(st.lists(mask, min_size=batch, max_size=batch)) for _ in "12")
    action = [draw(st.sampled_from([a for a, ok in enumerate(row) if ok])) for row in allowed]
    temperature = draw(st.one_of(st.sampled_from([1e-3, 0.03, 1.0]), st.floats(1e-4, 100.0)))
    return q, next_q, allowed, next_allowed, action, temperature


def double(rows: list) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@given(soft_cases())
def test_soft_log_policy_equals_a_loop_over_allowed_actions(case: tuple):
    q, _, allowed, _, _, tau = case
    expected = [
        [scaled_log_probability(row, mask, a, tau) for a in range(len(row))]
        for row, mask in zip(q, allowed, strict=True)
    ]
    actual = soft_log_policy(masked(double(q), torch.tensor(allowed)), tau)
    torch.testing.assert_close(actual, double(expected), rtol=1e-9, atol=1e-9)
    # What trains is float32: as exact as its values are.
    single = masked(double(q).float(), torch.tensor(allowed))
    torch.testing.assert_close(
        soft_log_policy(single, tau),
        soft_log_policy(single.double(), tau).float(),
        rtol=1e-5,
        atol=1e-5 * tau,
    )


@given(soft_cases(), st.floats(-10.0, 0.0), st.booleans())
def test_munchausen_equals_a_loop_over_rows_and_actions(case: tuple, clip: float, masks: bool):
    q, next_q, allowed, next_allowed, action, tau = case
    if not masks:
        allowed = next_allowed = [[True] * len(row) for row in q]
    policy, bonus, reward_bonus = [], [], []
    for row, next_row, ok, next_ok, a in zip(q, next_q, allowed, next_allowed, action, strict=True):
        logs = [scaled_log_probability(next_row, next_ok, b, tau) for b in range(len(next_row))]
        policy.append([math.exp(each / tau) for each in logs])
        bonus.append([-each if each > -math.inf else 0.0 for each in logs])
        reward_bonus.append(max(clip, scaled_log_probability(row, ok, a, tau)))
    actual = munchausen(
        double(q), torch.tensor(action), double(next_q), tau, clip,
        *((torch.tensor(allowed), torch.tensor(next_allowed)) if masks else ()),
    )  # fmt: skip
    for tensor, expected in zip(actual, (policy, bonus, reward_bonus), strict=True):
        torch.testing.assert_close(tensor, double(expected), rtol=1e-9, atol=1e-9)


@given(soft_cases())
def test_munchausens_expectation_is_the_soft_maximum_of_allowed_values(case: tuple):
    """Elsewhere 0 * infinity of an action that is not allowed makes the target NaN."""
    q, next_q, _, next_allowed, action, tau = case
    policy, bonus, _ = munchausen(
        double(q), torch.tensor(action), double(next_q), tau, -1.0, None, torch.tensor(next_allowed)
    )
    ones = torch.ones(len(q), dtype=torch.float64)
    expected = []
    for row, ok in zip(next_q, next_allowed, strict=True):
        best = max((a for a, each in enumerate(ok) if each), key=row.__getitem__)
        expected.append(1.0 + row[best] - scaled_log_probability(row, ok, best, tau))
    actual = td_target(ones, ones, double(next_q) + bonus, policy)
    torch.testing.assert_close(actual, double(expected), rtol=1e-9, atol=1e-9)


@given(soft_cases())
def test_masked_equals_a_loop(case: tuple):
    q, _, allowed, *_ = case
    expected = [
        [value if ok else -math.inf for value, ok in zip(row, mask, strict=True)]
        for row, mask in zip(q, allowed, strict=True)
    ]
    assert masked(double(q), torch.tensor(allowed)).tolist() == expected
    assert masked(double(q), None).tolist() == q


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
