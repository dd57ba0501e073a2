import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lrl.networks import Linear, NoisyLinear
from lrl.networks.linear import linear

SIDE = 1024  # as many inputs as outputs make the smallest weight that oneDNN gets


def uses_onednn(output: Tensor) -> bool:
    """Tell by what would compute the gradient, past the views of `linear`."""
    function = output.grad_fn
    while function is not None and function.name() == "ViewBackward0":
        function = function.next_functions[0][0]
    return function is not None and function.name() == "_OneDNNBackward"


def tensors(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    return draw(*shape, SIDE), draw(SIDE, SIDE), draw(SIDE)


@pytest.mark.parametrize("shape", [(3,), (), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_output_and_gradients_of_a_large_layer_are_those_of_torch(shape, has_bias):
    *given, bias = tensors(*shape)
    if has_bias:
        given.append(bias)
    found, expected = linear(*given), functional.linear(*given)
    assert uses_onednn(found) == (found.numel() > 0)  # oneDNN takes no empty batch
    assert not uses_onednn(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    wanted = torch.randn(*expected.shape, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        torch.autograd.grad(found, given, wanted),
        torch.autograd.grad(expected, given, wanted),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_the_gradient_is_that_of_torch():
    rows, weight, bias = tensors(3)

    def penalty(product) -> Tensor:
        value = product(rows, weight, bias).pow(2).sum()
        (gradient,) = torch.autograd.grad(value, rows, create_graph=True)
        (found,) = torch.autograd.grad(gradient.pow(2).sum(), weight)
        return found

    expected = penalty(functional.linear)
    error = (penalty(linear) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_a_layer_that_is_frozen_in_part_gets_the_other_gradients():
    rows, weight, bias = tensors(3)
    linear(rows.detach(), weight, bias.detach()).sum().backward()
    assert weight.grad is not None
    assert rows.grad is None
    assert bias.grad is None


def test_layers_use_it():
    rows, _, _ = tensors(3)
    noisy = NoisyLinear(SIDE, SIDE)
    noisy.eval()
    for layer in (Linear(SIDE, SIDE), noisy):
        assert uses_onednn(layer(rows))
        with torch.no_grad():
            expected = functional.linear(rows, layer.weight, layer.bias)
            torch.testing.assert_close(layer(rows), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # comes with any change of the flags
def test_other_products_stay_with_torch(monkeypatch):
    rows, weight, bias = tensors(3)
    assert not uses_onednn(linear(rows, weight[:-1], bias[:-1]))  # too small
    double = linear(rows.double(), weight.double(), bias.double())
    assert double.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(rows, weight, bias).dtype == torch.bfloat16
    with torch.device("meta"):
        shapes = linear(torch.empty(3, SIDE), torch.empty(SIDE, SIDE))
    assert shapes.device.type == "meta"
    with torch.backends.mkldnn.flags(enabled=False):
        assert not uses_onednn(linear(rows, weight, bias))
    monkeypatch.setattr("lrl.networks.linear._multiply", None)  # a torch without oneDNN
    assert torch.equal(linear(rows, weight, bias), functional.linear(rows, weight, bias))
