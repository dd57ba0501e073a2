import pytest
import torch
from helpers.products import counted_products
from torch import Tensor
from torch.nn import functional

from lrl.networks import Linear, NoisyLinear, onednn_products
from lrl.networks.linear import linear

SIDE = 1024  # as many inputs as outputs make the smallest weight that oneDNN gets


def uses_onednn(output: Tensor) -> bool:
    """Tell by what would compute the gradient, past the views of `linear`."""
    function = output.grad_fn
    while function is not None and function.name() == "ViewBackward0":
        function = function.next_functions[0][0]
    return function is not None and function.name() == "_OneDNNBackward"


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def tensors(*shape: int) -> list[Tensor]:
    """Return input, weight and bias of a large layer."""
    return [each.requires_grad_() for each in (draw(*shape, SIDE), draw(SIDE, SIDE), draw(SIDE))]


def assert_same(given: list[Tensor], *, onednn: bool = True) -> None:
    """Check output and gradients against torch's."""
    with onednn_products():
        found = linear(*given)
    expected = functional.linear(*given)
    assert uses_onednn(found) == onednn
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    with torch.no_grad(), onednn_products():
        torch.testing.assert_close(linear(*given), expected, rtol=1e-4, atol=1e-3)
    asked = [each for each in given if each.requires_grad]
    wanted = draw(*expected.shape)
    ours, theirs = (torch.autograd.grad(each, asked, wanted) for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(3,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_output_and_gradients_of_a_large_layer_are_those_of_torch(shape, has_bias):
    assert_same(tensors(*shape)[: 3 if has_bias else 2])


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_layers_may_be_frozen_in_part(frozen):
    given = tensors(3)
    given[frozen] = given[frozen].detach()
    assert_same(given)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, weight, bias: [draw(SIDE, 3).t(), weight, bias],
        lambda rows, weight, bias: [draw(SIDE + 3).unfold(0, SIDE, 1), weight, bias],  # overlap
        lambda rows, weight, bias: [rows, draw(SIDE, SIDE).t().requires_grad_(), bias],
        lambda rows, weight, bias: [rows, draw(2 * SIDE).unfold(0, SIDE, 1)[:SIDE], bias],
        lambda rows, weight, bias: [rows, weight, draw(SIDE, 3)[:, 1]],
        lambda rows, weight, bias: [rows, weight, draw(1).expand(SIDE)],
    ],
    ids=["turned input", "input", "turned weight", "weight", "column", "expanded bias"],
)
def test_views_are_read_as_they_are(change):
    assert_same(change(*tensors(3)))


def test_a_gradient_of_the_gradient_is_that_of_torch():
    given = tensors(3)

    def penalty(product) -> Tensor:
        value = product(*given).pow(2).sum()
        (gradient,) = torch.autograd.grad(value, given[0], create_graph=True)
        (found,) = torch.autograd.grad(gradient.pow(2).sum(), given[1])
        return found

    expected = penalty(functional.linear)
    with onednn_products():
        error = (penalty(linear) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_layers_use_it_where_it_is_wanted():
    rows, _, _ = tensors(3)
    for layer in (Linear(SIDE, SIDE), NoisyLinear(SIDE, SIDE).eval()):
        assert not uses_onednn(layer(rows))
        with onednn_products():
            assert uses_onednn(layer(rows))
        assert not uses_onednn(layer(rows))


def test_both_products_of_a_noisy_layer_are_onednns(monkeypatch):
    rows, _, _ = tensors(3)
    noisy = NoisyLinear(SIDE, SIDE)
    noisy.sample_noise()
    expected = noisy(rows)
    calls = counted_products(monkeypatch)
    with onednn_products():
        torch.testing.assert_close(noisy(rows), expected, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2


def test_transforms_work_where_it_is_not_wanted():
    layer = Linear(SIDE, SIDE)
    gradient = torch.func.vmap(torch.func.grad(lambda row: layer(row).sum()))(draw(3, SIDE))
    torch.testing.assert_close(gradient, layer.weight.sum(0).expand(3, -1))


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # comes with any change of the flags
def test_other_products_stay_with_torch(monkeypatch):
    rows, weight, bias = tensors(3)
    assert_same([rows, weight[:-1], bias[:-1]], onednn=False)  # too small
    assert_same([rows.double(), weight.double(), bias.double()], onednn=False)
    assert_same([rows, weight, bias[:1]], onednn=False)  # one number for all outputs
    assert_same(tensors(0), onednn=False)
    with torch.autocast("cpu", torch.bfloat16), onednn_products():
        assert linear(rows, weight, bias).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same([rows, weight, bias], onednn=False)
    monkeypatch.setattr("lrl.networks.linear._multiply", None)  # a torch without oneDNN
    assert_same([rows, weight, bias], onednn=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, weight, bias: (rows[:, 1:], weight, bias),
        lambda rows, weight, bias: (rows, weight[None], None),
        lambda rows, weight, bias: (rows, weight, bias[1:]),
        lambda rows, weight, bias: (rows, weight, bias.double()),
        lambda rows, weight, bias: (rows, weight, bias.to("meta")),
    ],
    ids=["features", "axes", "length of bias", "type of bias", "device of bias"],
)
def test_mistakes_are_named_in_the_words_of_torch(change):
    given = change(*tensors(3))
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        functional.linear(*given)
    with pytest.raises(type(expected.value)) as found, onednn_products():
        linear(*given)
    assert str(found.value) == str(expected.value)
