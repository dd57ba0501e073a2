from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.functional import n_step_return

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
