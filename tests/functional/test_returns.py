from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.functional import lambda_return, n_step_return

N = 4
REWARDS = st.lists(st.integers(-3, 3), min_size=N, max_size=N)
FLAGS = st.lists(st.booleans(), min_size=N, max_size=N)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ([0, 0, 0], [0, 0, 0], (1.75, 0.125, 3)),
        ([1, 0, 0], [0, 0, 0], (1.0, 0.0, 1)),
        ([0, 0, 1], [0, 0, 0], (1.75, 0.0, 3)),
        ([0, 0, 0], [0, 1, 0], (1.5, 0.25, 2)),
        ([0, 0, 1], [1, 0, 0], (1.0, 0.5, 1)),  # an end behind the first is of another episode
        ([0, 1, 0], [0, 1, 0], (1.5, 0.0, 2)),  # both: terminated wins
    ],
)
def test_hand_computed(terminated: list, truncated: list, expected: tuple) -> None:
    returns, discount, steps = n_step_return(
        torch.ones(1, 3), torch.tensor([terminated]).bool(), torch.tensor([truncated]).bool(), 0.5
    )
    assert (returns.item(), discount.item(), steps.item()) == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(REWARDS, FLAGS, FLAGS, st.integers(1, N), st.sampled_from([0.0, 0.5, 1.0]))
def test_equals_naive_loop(
    rewards: list[int], terminated: list[bool], truncated: list[bool], n: int, gamma: float
) -> None:
    expected_return, expected_discount, expected_steps = 0.0, 1.0, 0
    for reward, end, cut in list(zip(rewards, terminated, truncated, strict=True))[:n]:
        expected_return += expected_discount * reward
        expected_discount *= gamma
        expected_steps += 1
        if end:
            expected_discount = 0.0
        if end or cut:
            break
    returns, discount, steps = n_step_return(
        torch.tensor([rewards[:n]], dtype=torch.float32),
        torch.tensor([terminated[:n]]),
        torch.tensor([truncated[:n]]),
        gamma,
    )
    assert returns.tolist() == [expected_return]
    assert discount.tolist() == [expected_discount]
    assert steps.tolist() == [expected_steps]


def test_rows_behind_the_end_are_never_read() -> None:
    rewards = torch.tensor([[1.0, torch.nan, torch.inf]])
    flags = torch.tensor([[True, False, False]])
    returns, _, _ = n_step_return(rewards, flags, torch.zeros_like(flags), 0.9)
    assert returns.item() == 1.0


@pytest.mark.parametrize("n", [1, 3])
def test_types_follow_the_rewards(n: int) -> None:
    flags = torch.zeros(2, n, dtype=torch.bool)
    returns, discount, steps = n_step_return(torch.ones(2, n).double(), flags, flags, 0.99)
    assert (returns.dtype, discount.dtype, steps.dtype) == (
        torch.float64,
        torch.float64,
        torch.int64,
    )
    assert discount.tolist() == [0.99**n] * 2


LENGTH = 5
VALUES = st.lists(st.integers(-3, 3), min_size=LENGTH, max_size=LENGTH)
SWITCHES = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)
HALVES = st.sampled_from([0.0, 0.5, 1.0])


def lambda_returns(
    rewards: list[float],
    next_values: list[float],
    terminated: list[int],
    goes_on: list[int],
    gamma: float,
    lambda_: float,
) -> list[float]:
    """Those of one row."""
    rows = (torch.tensor([numbers]).float() for numbers in (rewards, next_values))
    flags = (torch.tensor([switches]).bool() for switches in (terminated, goes_on))
    return lambda_return(*rows, *flags, gamma=gamma, lambda_=lambda_)[0].tolist()


@pytest.mark.parametrize(
    ("terminated", "goes_on", "expected"),
    [
        # 3 + 8/2 = 7; 2 + (4/2 + 7/2)/2 = 4.75; 1 + (2/2 + 4.75/2)/2 = 2.6875
        ([0, 0, 0], [1, 1, 1], [2.6875, 4.75, 7.0]),
        ([0, 0, 0], [1, 1, 0], [2.6875, 4.75, 7.0]),  # what the last column says is not read
        ([0, 1, 0], [1, 1, 1], [2.0, 2.0, 7.0]),  # 1 + (2/2 + 2/2)/2: nothing from behind the end
        # 3; 2 + (4/2 + 3/2)/2 = 3.75; 1 + (2/2 + 3.75/2)/2 = 2.4375
        ([0, 0, 1], [1, 1, 1], [2.4375, 3.75, 3.0]),
        # Truncated behind the second: 2 + 4/2 = 4; 1 + (2/2 + 4/2)/2 = 2.5
        ([0, 0, 0], [1, 0, 1], [2.5, 4.0, 7.0]),
    ],
)
def test_lambda_returns_by_hand(
    terminated: list[int], goes_on: list[int], expected: list[float]
) -> None:
    found = lambda_returns([1, 2, 3], [2, 4, 8], terminated, goes_on, gamma=0.5, lambda_=0.5)
    assert found == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES, VALUES, SWITCHES, SWITCHES, HALVES, HALVES)
def test_lambda_returns_mix_the_returns_of_all_lengths(
    rewards: list[float],
    next_values: list[float],
    terminated: list[int],
    goes_on: list[int],
    gamma: float,
    lambda_: float,
) -> None:
    """Weights of n steps are (1 - lambda) * lambda^(n-1), of the longest what is left."""
    found = lambda_returns(rewards, next_values, terminated, goes_on, gamma, lambda_)
    for begin in range(LENGTH):
        last = begin
        while last < LENGTH - 1 and goes_on[last] and not terminated[last]:
            last += 1
        n_step = []
        for end in range(begin, last + 1):
            parts = [gamma ** (t - begin) * rewards[t] for t in range(begin, end + 1)]
            bootstrap = 0.0 if terminated[end] else next_values[end]
            n_step.append(sum(parts) + gamma ** (end - begin + 1) * bootstrap)
        weights = [(1 - lambda_) * lambda_**n for n in range(len(n_step) - 1)]
        weights.append(lambda_ ** (len(n_step) - 1))
        mixed = sum(w * g for w, g in zip(weights, n_step, strict=True))
        assert found[begin] == pytest.approx(mixed, abs=1e-5)


def test_lambda_returns_read_nothing_behind_an_end() -> None:
    nan = float("nan")
    ended = lambda_returns([1, nan, nan], [nan, nan, nan], [1, 0, 0], [1, 1, 1], 0.9, 0.5)
    assert ended[0] == 1.0
    cut = lambda_returns([1, nan, nan], [2, nan, nan], [0, 0, 0], [0, 1, 1], 0.5, 0.5)
    assert cut[0] == 2.0
