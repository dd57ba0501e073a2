import pytest
import torch
from torch import nn

from lrl.networks import Encoder, MLPEncoder, NatureEncoder
from lrl.types import ConfigError


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_nature_encoder_has_the_published_layers():
    encoder = NatureEncoder((4, 84, 84))
    convolutions = [layer for layer in encoder.convolutions if isinstance(layer, nn.Conv2d)]
    assert [
        (layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0])
        for layer in convolutions
    ] == [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
    assert encoder.convolutions(torch.zeros(2, 4, 84, 84)).shape == (2, 3136)  # 64 * 7 * 7
    assert num_parameters(encoder) == (
        (4 * 8 * 8 * 32 + 32) + (32 * 4 * 4 * 64 + 64) + (64 * 3 * 3 * 64 + 64) + (3136 * 512 + 512)
    )
    assert encoder.num_features == 512
    assert encoder(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 512)


def test_nature_encoder_takes_36_pixels_and_no_fewer():
    assert NatureEncoder((1, 36, 40), hidden_size=8)(torch.zeros(3, 1, 36, 40)).shape == (3, 8)
    with pytest.raises(ConfigError, match=r"\(1, 35, 84\).*MLPEncoder"):
        NatureEncoder((1, 35, 84))
    with pytest.raises(ConfigError, match=r"\(4,\)"):
        NatureEncoder((4,))


def test_mlp_encoder_flattens_and_has_the_sizes_asked_for():
    encoder = MLPEncoder((2, 3), hidden_sizes=(256, 256))
    assert encoder.num_features == 256
    assert num_parameters(encoder) == (6 * 256 + 256) + (256 * 256 + 256)
    assert encoder(torch.zeros(5, 2, 3)).shape == (5, 256)


def test_mlp_encoder_is_matrices_with_relu_between():
    encoder = MLPEncoder((2,), hidden_sizes=(3, 2))
    linear = [layer for layer in encoder.layers if isinstance(layer, nn.Linear)]
    observation = torch.randn(4, 2)
    hidden = (observation @ linear[0].weight.T + linear[0].bias).clamp(min=0)
    expected = (hidden @ linear[1].weight.T + linear[1].bias).clamp(min=0)
    torch.testing.assert_close(encoder(observation), expected)


@pytest.mark.parametrize("hidden_sizes", [(), (4, 0)])
def test_mlp_encoder_refuses_empty_layers(hidden_sizes: tuple[int, ...]):
    with pytest.raises(ConfigError, match=r"encoder\.hidden_sizes"):
        MLPEncoder((2,), hidden_sizes)


class Recorder(Encoder):
    num_features = 2

    def encode(self, observation: torch.Tensor) -> torch.Tensor:
        self.seen = observation
        return observation


def test_uint8_is_scaled_to_one_and_floats_are_not():
    encoder = Recorder()
    encoder(torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    torch.testing.assert_close(encoder.seen, torch.tensor([[0.0, 0.2, 1.0]]))
    encoder(torch.tensor([[0.0, 51.0, 255.0]]))
    assert encoder.seen.tolist() == [[0.0, 51.0, 255.0]]


def test_scaling_does_not_change_the_batch():
    observation = torch.full((1, 3), 255, dtype=torch.uint8)
    Recorder()(observation)
    assert observation.tolist() == [[255, 255, 255]]
