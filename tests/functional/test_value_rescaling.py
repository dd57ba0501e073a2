import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrl.functional.value_rescaling import rescale_value, unrescale_value

EPSILONS = st.sampled_from([1e-3, 1e-2, 0.5])
RETURNS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("value", "epsilon", "expected"),
    [(0.0, 0.01, 0.0), (3.0, 0.01, 1.03), (-3.0, 0.01, -1.03), (999_999.0, 1e-3, 999 + 999.999)],
)
def test_by_hand(value: float, epsilon: float, expected: float):
    rescaled = rescale_value(torch.tensor([value]).double(), epsilon)
    assert rescaled.item() == pytest.approx(expected, rel=1e-12)
    assert unrescale_value(rescaled, epsilon).item() == pytest.approx(value, rel=1e-12)


@given(RETURNS, EPSILONS)
def test_both_equal_the_formulas_of_the_paper(value: float, epsilon: float):
    tensor = torch.tensor([value], dtype=torch.float64)
    rescaled = math.copysign(math.sqrt(abs(value) + 1) - 1, value) + epsilon * value
    assert rescale_value(tensor, epsilon).item() == pytest.approx(rescaled, rel=1e-9, abs=1e-9)
    inner = (math.sqrt(1 + 4 * epsilon * (abs(value) + 1 + epsilon)) - 1) / (2 * epsilon)
    returns = math.copysign(inner**2 - 1, value)
    assert unrescale_value(tensor, epsilon).item() == pytest.approx(returns, rel=1e-9, abs=1e-9)


@given(RETURNS, EPSILONS)
def test_round_trip(value: float, epsilon: float):
    tensor = torch.tensor([value], dtype=torch.float64)
    torch.testing.assert_close(
        unrescale_value(rescale_value(tensor, epsilon), epsilon), tensor, rtol=1e-12, atol=1e-300
    )


@given(st.floats(-1e6, 1e6, width=32), EPSILONS)
def test_single_precision_loses_nothing_near_0_either(value: float, epsilon: float):
    tensor = torch.tensor([value])
    torch.testing.assert_close(
        unrescale_value(rescale_value(tensor, epsilon), epsilon), tensor, rtol=1e-5, atol=1e-40
    )


def test_order_is_kept_and_large_values_shrink():
    values = torch.linspace(-1e5, 1e5, 1001)
    rescaled = rescale_value(values, 1e-3)
    assert (rescaled.diff() > 0).all()
    assert rescaled.abs().max() < 420


@pytest.mark.parametrize("function", [rescale_value, unrescale_value])
def test_gradients(function):
    values = torch.tensor([-50.0, -0.5, 1e-4, 2.0, 1e3]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: function(x, 0.01), (values,))
