import math

import pytest
import torch
from torch import nn

from lrl.networks.layers import ActionLayers, NoisyLinear
from lrl.types import ConfigError


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def noisy_layer() -> NoisyLinear:
    layer = NoisyLinear(3, 2)
    layer.sample_noise()
    return layer


# --- NoisyLinear ----------------------------------------------------------------------------


def test_fresh_noisy_layers_are_as_in_the_paper():
    layer = NoisyLinear(400, 300, sigma=0.5)
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.05  # 1 / sqrt(400)
        assert parameter.std().item() == pytest.approx(0.05 / math.sqrt(3), rel=0.1)  # uniform
    for parameter in (layer.weight_sigma, layer.bias_sigma):
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, 0.025))


def test_noise_is_the_signed_square_root_of_a_normal_draw():
    layer = NoisyLinear(50_000, 1)
    layer.sample_noise()
    noise = layer.input_noise
    normal = noise * noise.abs()
    assert abs(normal.mean().item()) < 0.02
    assert normal.std().item() == pytest.approx(1.0, abs=0.02)
    assert normal.pow(4).mean().item() == pytest.approx(3.0, abs=0.3)
    assert abs(noise.mean().item()) < 0.02


@pytest.mark.parametrize("rows", [5, 64])
def test_the_output_is_that_of_the_noisy_matrix(rows: int):
    layer, features = noisy_layer(), torch.randn(rows, 3)
    noise = torch.outer(layer.output_noise, layer.input_noise)
    weight = layer.weight + layer.weight_sigma * noise
    bias = layer.bias + layer.bias_sigma * layer.output_noise
    torch.testing.assert_close(layer(features), features @ weight.T + bias)


def test_noise_acts_in_training_alone_and_changes_when_it_is_drawn():
    layer, features = noisy_layer(), torch.randn(5, 3)
    clean = features @ layer.weight.T + layer.bias
    noisy = layer(features)
    assert torch.equal(layer(features), noisy)  # a forward draws nothing
    assert (noisy - clean).abs().min() > 0
    layer.sample_noise()
    assert (layer(features) - noisy).abs().min() > 0
    torch.testing.assert_close(layer.eval()(features), clean)


def test_there_is_no_noise_before_it_is_drawn():
    layer, features = NoisyLinear(3, 2), torch.randn(5, 3)
    torch.testing.assert_close(layer(features), features @ layer.weight.T + layer.bias)


def test_the_mean_over_draws_is_the_output_without_noise():
    layer, features = noisy_layer(), torch.randn(4, 3)
    draws = []
    for _ in range(4000):
        layer.sample_noise()
        draws.append(layer(features).detach())
    outputs = torch.stack(draws)
    standard_error = outputs.std(0) / math.sqrt(len(outputs))
    deviation = (outputs.mean(0) - layer.eval()(features)).abs()
    assert (deviation < 4.0 * standard_error).all()
    assert standard_error.min() > 0


def test_noise_teaches_its_own_size():
    layer, gradients = noisy_layer(), []
    for rows in (1, 64):  # two products, and one
        layer.zero_grad()
        (layer(torch.ones(rows, 3)).sum() / rows).backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
        assert all(gradient.abs().min() > 0 for gradient in gradients[-1])
    torch.testing.assert_close(*gradients)


def test_noise_is_not_in_the_state_dict():
    assert sorted(noisy_layer().state_dict()) == ["bias", "bias_sigma", "weight", "weight_sigma"]


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_must_be_positive(sigma: float):
    with pytest.raises(ConfigError, match=f"sigma must be a finite number above 0, got {sigma}"):
        NoisyLinear(2, 2, sigma)
    with pytest.raises(ConfigError, match=r"^head\.noisy_sigma must be a finite number above 0"):
        ActionLayers(2, 2, noisy=True, noisy_sigma=sigma)


def test_a_text_does_not_make_layers_dueling_or_noisy():
    with pytest.raises(ConfigError, match=r"head\.noisy is 'false', but must be true or false"):
        ActionLayers(2, 2, noisy="false")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"head\.dueling is 'false', but must be true or false"):
        ActionLayers(2, 2, dueling="false")  # pyright: ignore[reportArgumentType]


# --- ActionLayers ---------------------------------------------------------------------------


def matrix(layer: nn.Module, features: torch.Tensor) -> torch.Tensor:
    assert isinstance(layer, nn.Linear)
    return features @ layer.weight.T + layer.bias


def stream(layers: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """Compute a hidden layer with ReLU and a linear one by hand."""
    assert isinstance(layers, nn.Sequential)
    return matrix(layers[2], matrix(layers[0], features).clamp(min=0.0))


@pytest.mark.parametrize("shape", [(7,), (2, 7)])
def test_plain_layers_are_one_matrix(shape: tuple[int, ...]):
    layers, features = ActionLayers(3, num_actions=2, size=4), torch.randn(*shape, 3)
    expected = matrix(layers.actions, features).view(*shape, 2, 4)
    torch.testing.assert_close(layers(features), expected)
    assert sum(parameter.numel() for parameter in layers.parameters()) == 3 * 8 + 8


def test_a_hidden_layer_by_hand():
    layers, features = ActionLayers(3, 2, 4, hidden_size=5), torch.randn(7, 3)
    torch.testing.assert_close(layers(features), stream(layers.actions, features).view(7, 2, 4))


def test_dueling_is_value_plus_advantage_minus_their_mean():
    layers, features = ActionLayers(3, 2, 4, hidden_size=5, dueling=True), torch.randn(7, 3)
    assert layers.value is not None
    value = stream(layers.value, features).view(7, 1, 4)
    advantage = stream(layers.actions, features).view(7, 2, 4)
    mean = (advantage[:, :1] + advantage[:, 1:]) / 2
    torch.testing.assert_close(layers(features), value + advantage - mean)


def test_dueling_keeps_the_order_of_advantages_and_averages_to_the_value():
    layers, features = ActionLayers(3, 6, dueling=True), torch.randn(50, 3)
    advantage = layers.actions(features)
    output = layers(features).squeeze(-1)
    assert torch.equal(output.argmax(1), advantage.argmax(1))
    assert layers.value is not None
    torch.testing.assert_close(output.mean(1), layers.value(features).squeeze(1))


def test_a_constant_advantage_changes_nothing():
    layers, features = ActionLayers(3, 4, 2, dueling=True), torch.randn(5, 3)
    before = layers(features)
    assert isinstance(layers.actions, nn.Linear)
    with torch.no_grad():
        layers.actions.bias.add_(torch.tensor([100.0, -10.0]).repeat(4))  # of both numbers
    torch.testing.assert_close(layers(features), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dueling", [False, True])
def test_noisy_layers_are_noisy_throughout(dueling: bool):
    layers = ActionLayers(3, 2, 4, 5, dueling, noisy=True, noisy_sigma=0.25)
    linear = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
    assert len(linear) == (4 if dueling else 2)
    for layer in linear:
        assert isinstance(layer, NoisyLinear)
        initial = 0.25 / math.sqrt(layer.in_features)
        torch.testing.assert_close(layer.bias_sigma.mean().item(), initial)


def test_a_hidden_layer_must_have_units():
    with pytest.raises(ConfigError, match=r"head\.hidden_size must be at least 1 or null, got 0"):
        ActionLayers(3, 2, hidden_size=0)
