from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lrl.functional.bootstrap import huber
from lrl.functional.distributional import (
    project_categorical,
    quantile_huber,
    select_action_distribution,
)

finite = st.floats(-30.0, 30.0, width=32)
share = st.floats(0.0, 1.0, width=32)
SUPPORT = torch.linspace(-2.0, 2.0, 5)


def test_select_action_distribution_picks_per_row():
    values = torch.arange(12.0).view(2, 3, 2)
    assert select_action_distribution(values, torch.tensor([2, 0])).tolist() == [[4, 5], [6, 7]]


# --- Projection -----------------------------------------------------------------------------


def project_one_by_one(
    values: list[float], probabilities: list[float], low: float, high: float, atoms: int
) -> list[float]:
    """Project as the paper's Algorithm 1 does, in double precision."""
    step = (high - low) / (atoms - 1)
    projected = [0.0] * atoms
    for value, probability in zip(values, probabilities, strict=True):
        position = (min(max(value, low), high) - low) / step
        lower = min(int(position), atoms - 2)
        projected[lower] += probability * (lower + 1 - position)
        projected[lower + 1] += probability * (position - lower)
    return projected


@st.composite
def distributions(draw, value: st.SearchStrategy[float] = finite):
    """Draw a support, and values with probabilities that need not sum to 1."""
    batch, size, atoms = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(2, 6))
    low = draw(st.integers(-20, 10))
    high = low + draw(st.integers(1, 20))
    row = st.lists(value, min_size=size, max_size=size)
    weights = st.lists(share, min_size=size, max_size=size)
    values = draw(st.lists(row, min_size=batch, max_size=batch))
    probabilities = draw(st.lists(weights, min_size=batch, max_size=batch))
    return values, probabilities, low, high, atoms


@given(distributions(value=finite | st.integers(-30, 30).map(float)))
def test_projection_equals_a_loop(case: tuple):
    values, probabilities, low, high, atoms = case
    support = torch.linspace(low, high, atoms)
    actual = project_categorical(torch.tensor(values), torch.tensor(probabilities), support)
    expected = [
        project_one_by_one(*row, low, high, atoms)
        for row in zip(values, probabilities, strict=True)
    ]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@given(distributions())
def test_projection_keeps_the_mass_and_inside_the_support_the_mean(case: tuple):
    values, probabilities, low, high, atoms = case
    values, probabilities = torch.tensor(values).double(), torch.tensor(probabilities).double()
    support = torch.linspace(low, high, atoms, dtype=torch.float64)
    projected = project_categorical(values, probabilities, support)
    assert projected.min() >= 0.0
    torch.testing.assert_close(projected.sum(1), probabilities.sum(1))
    mean = (probabilities * values.clamp(low, high)).sum(1)
    torch.testing.assert_close((projected * support).sum(1), mean)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-2.0, [1, 0, 0, 0, 0]),
        (0.0, [0, 0, 1, 0, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (0.25, [0, 0, 0.75, 0.25, 0]),
        (1.75, [0, 0, 0, 0.25, 0.75]),
        (-7.0, [1, 0, 0, 0, 0]),
        (float("inf"), [0, 0, 0, 0, 1]),
    ],
)
def test_projection_of_one_value(value: float, expected: list[float]):
    projected = project_categorical(torch.tensor([[value]]), torch.ones(1, 1), SUPPORT)
    assert projected.tolist() == [expected]


def test_a_value_that_is_no_number_spoils_its_own_row_only():
    values = torch.tensor([[float("nan"), 1.0], [0.5, 1.0]])
    projected = project_categorical(values, torch.full((2, 2), 0.5), SUPPORT)
    assert projected[0].isnan().any()
    assert projected[1].tolist() == [0, 0, 0.25, 0.75, 0]


@pytest.mark.parametrize(("low", "high", "atoms"), [(-10.0, 10.0, 51), (0.0, 0.3, 7), (-1, 1e3, 2)])
def test_projection_is_the_identity_on_its_own_support(low: float, high: float, atoms: int):
    support = torch.linspace(low, high, atoms)
    probabilities = torch.rand(4, atoms, generator=torch.Generator().manual_seed(0))
    projected = project_categorical(support.expand(4, -1), probabilities, support)
    torch.testing.assert_close(projected, probabilities, rtol=1e-5, atol=1e-5)


def test_all_mass_on_one_value_wherever_it_was():
    """A terminal transition: every atom of the next distribution becomes the reward."""
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    projected = project_categorical(torch.full((1, 4), 1.0), probabilities, SUPPORT)
    torch.testing.assert_close(projected, torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]))


# --- Quantiles ------------------------------------------------------------------------------


def quantile_huber_one_by_one(
    quantiles: list[float], taus: list[float], target: list[float], kappa: float
) -> float:
    total = 0.0
    for quantile, tau in zip(quantiles, taus, strict=True):
        for sample in target:
            error = sample - quantile
            if kappa == 0.0:
                loss = abs(error)
            elif abs(error) <= kappa:
                loss = 0.5 * error**2 / kappa
            else:
                loss = abs(error) - 0.5 * kappa
            total += abs(tau - (1.0 if error < 0 else 0.0)) * loss
    return total / len(target)


@st.composite
def quantile_rows(draw):
    batch, n, m = (draw(st.integers(1, 4)) for _ in range(3))
    rows = [st.lists(finite, min_size=size, max_size=size) for size in (n, m)]
    taus = st.lists(share, min_size=n, max_size=n)
    shared = draw(st.booleans())
    levels = [draw(taus)] * batch if shared else [draw(taus) for _ in range(batch)]
    quantiles, target = ([draw(row) for _ in range(batch)] for row in rows)
    return quantiles, levels, shared, target


@given(quantile_rows(), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_quantile_huber_equals_two_loops(case: tuple, kappa: float):
    quantiles, levels, shared, target = case
    taus = torch.tensor(levels[:1] if shared else levels)
    actual = quantile_huber(torch.tensor(quantiles), taus, torch.tensor(target), kappa)
    rows = zip(quantiles, levels, target, strict=True)
    expected = torch.tensor([quantile_huber_one_by_one(*row, kappa) for row in rows])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


def test_it_is_summed_over_predictions_and_averaged_over_samples():
    def loss(n: int, m: int) -> float:
        levels = torch.full((1, n), 0.5)
        return quantile_huber(torch.zeros(1, n), levels, torch.ones(1, m), kappa=1.0).item()

    assert [loss(1, 1), loss(4, 1), loss(1, 4), loss(4, 4)] == [0.25, 1.0, 0.25, 1.0]


@given(finite, finite)
def test_one_median_is_half_the_huber_loss(prediction: float, target: float):
    quantile, sample = torch.tensor([[prediction]]), torch.tensor([[target]])
    actual = quantile_huber(quantile, torch.tensor([[0.5]]), sample, kappa=1.0)
    torch.testing.assert_close(actual, 0.5 * huber((quantile - sample)[0]))


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_the_minimum_is_the_quantile(tau: float):
    samples = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0))
    candidates = torch.linspace(-3.0, 3.0, 601).unsqueeze(1)
    losses = quantile_huber(
        candidates, torch.tensor([[tau]]), samples.expand(len(candidates), -1), kappa=0.0
    )
    best = candidates[losses.argmin()].item()
    assert best == pytest.approx(samples.quantile(tau).item(), abs=0.011)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("error", "slope"), [(1e4, -0.3), (-1e4, 0.7)])
def test_large_errors_still_teach(kappa: float, error: float, slope: float):
    quantile = torch.zeros(1, 1, requires_grad=True)
    quantile_huber(quantile, torch.tensor([[0.3]]), torch.tensor([[error]]), kappa).sum().backward()
    assert quantile.grad is not None
    assert quantile.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_gradient_equals_finite_differences(kappa: float):
    rng = torch.Generator().manual_seed(0)
    quantiles = (2.0 * torch.randn(3, 4, generator=rng).double()).requires_grad_()
    taus, target = torch.rand(3, 4, generator=rng).double(), torch.randn(3, 5, generator=rng)

    def loss(quantiles: Tensor) -> Tensor:
        return quantile_huber(quantiles, taus, target.double(), kappa)

    assert torch.autograd.gradcheck(loss, (quantiles,))
