import pytest
import torch
from torch import nn

import lrl.networks
from lrl.networks import ConvEncoder, Encoder, ImpalaEncoder, MLPEncoder, NatureEncoder
from lrl.networks.encoders import _AdaptiveMaxPool, scaled
from lrl.networks.layers import NoisyLinear
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


@pytest.mark.parametrize("shape", [(3, 4, 6, 5), (3, 1, 6, 5), (3, 12), (2, 3, 4, 5, 6)])
def test_bytes_are_scaled_whatever_their_layout(shape):
    frames = torch.randint(0, 256, (shape[0], shape[1] + 1, *shape[2:]), dtype=torch.uint8)
    frames = frames[:, 1:]  # as next observations lie in a batch
    expected = frames.to(torch.float32) / 255.0
    assert scaled(frames, takes_channels_last=False).is_contiguous()
    assert scaled(frames, takes_channels_last=False).equal(expected)
    if len(shape) == 4:
        found = scaled(frames, takes_channels_last=True)
        assert found.equal(expected)
        assert found.is_contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            found = scaled(frames, takes_channels_last=True)
        assert found.is_contiguous()
        assert found.equal(expected)


@pytest.mark.parametrize("name", ["NatureEncoder", "ImpalaEncoder"])
def test_stacked_colours_count_together(name):
    torch.manual_seed(0)
    stacked = getattr(lrl.networks, name)((4, 3, 40, 40))
    torch.manual_seed(0)
    flat = getattr(lrl.networks, name)((12, 40, 40))
    frames = torch.randint(0, 256, (2, 4, 3, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(stacked(frames), flat(frames.flatten(1, 2)))


def test_an_encoder_of_your_own_gets_frames_as_they_lie():
    class Own(Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(4, 2, 3)
            self.num_features = 2 * 8 * 8

        def encode(self, observation: torch.Tensor) -> torch.Tensor:
            return self.convolution(observation).view(len(observation), -1)

    assert Own()(torch.zeros(3, 4, 10, 10, dtype=torch.uint8)).shape == (3, 128)


def test_channels_last_frames_give_the_same_features_and_gradients():
    torch.manual_seed(0)
    encoder = NatureEncoder((4, 84, 84), hidden_size=None)
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    assert NatureEncoder.takes_channels_last
    found, expected = encoder(frames), encoder.encode(frames.to(torch.float32) / 255.0)
    torch.testing.assert_close(found, expected)
    factors = torch.randn_like(found)
    weights = list(encoder.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((found * factors).sum(), weights),
        torch.autograd.grad((expected * factors).sum(), weights),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


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


def test_mlp_encoder_takes_single_numbers():
    encoder = MLPEncoder((), hidden_sizes=(4,))
    torch.manual_seed(0)
    numbers = torch.randn(5)
    assert torch.equal(encoder(numbers), encoder.layers(numbers.view(5, 1)))


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


def test_booleans_become_zero_and_one():
    encoder = Recorder()
    encoder(torch.tensor([[False, True]]))
    assert encoder.seen.dtype == torch.float32
    assert encoder.seen.tolist() == [[0.0, 1.0]]


def test_a_torso_without_a_dense_layer_leaves_the_features_to_the_head():
    assert NatureEncoder((4, 84, 84), hidden_size=None).num_features == 3136
    encoder = ConvEncoder((6, 10, 10), layers=((16, 3, 1),), hidden_size=None)
    assert encoder.num_features == 16 * 8 * 8
    assert encoder(torch.zeros(2, 6, 10, 10, dtype=torch.bool)).shape == (2, 1024)


def test_conv_encoder_takes_one_pixel_more_and_no_fewer():
    layers = ((8, 5, 5), (8, 5, 5))  # 5 of 5: 25 pixels leave one
    assert ConvEncoder((4, 25, 25), layers, hidden_size=None).num_features == 8
    with pytest.raises(ConfigError, match=r"at least 25 pixels a side, got \(4, 24, 25\)"):
        ConvEncoder((4, 24, 25), layers)
    with pytest.raises(ConfigError, match=r"encoder\.layers must list channels.* got \(8, 0, 1\)"):
        ConvEncoder((4, 25, 25), ((8, 0, 1),))


def test_impala_encoder_has_the_published_layers():
    encoder = ImpalaEncoder((4, 84, 84))
    convolutions = [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]
    pairs = [(layer.in_channels, layer.out_channels) for layer in convolutions]
    blocks = [[(channels, channels)] * 4 for channels in (16, 32, 32)]
    assert pairs == [(4, 16), *blocks[0], (16, 32), *blocks[1], (32, 32), *blocks[2]]
    assert encoder.convolutions(torch.zeros(2, 4, 84, 84)).shape == (2, 32 * 11 * 11)
    assert encoder(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 256)
    wide = ImpalaEncoder((1, 40, 40), width=2, pool_size=6, hidden_size=None)
    assert wide.num_features == 64 * 6 * 6
    small = ImpalaEncoder((1, 9, 9), pool_size=6, hidden_size=None)
    assert small.num_features == 32 * 6 * 6  # pooling may enlarge as well


@pytest.mark.parametrize("size", [1, 5, 6, 9, 11, 13])
def test_pooling_is_that_of_torch(size: int):
    values = torch.randn(2, 3, size, size + 1)
    assert torch.equal(_AdaptiveMaxPool(6)(values), nn.AdaptiveMaxPool2d(6)(values))


def test_spectral_norm_bounds_the_residual_convolutions():
    torch.manual_seed(0)
    encoder = ImpalaEncoder((1, 16, 16), spectral_norm=True)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(10.0)
        for _ in range(50):  # each forward in training mode takes a step of the power iteration
            encoder(torch.rand(1, 1, 16, 16))
    weights = [layer.weight for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]
    norms = [float(torch.linalg.matrix_norm(w.detach().flatten(1), 2)) for w in weights]
    assert norms[1] == pytest.approx(1.0, rel=0.01)
    assert sum(norm < 1.05 for norm in norms) == 12  # all but the first of each section


ENCODERS = [
    (MLPEncoder, (100,), {"hidden_sizes": (8, 7)}),
    (ConvEncoder, (3, 10, 10), {"hidden_size": 7}),
    (NatureEncoder, (1, 36, 36), {"hidden_size": 7}),
    (ImpalaEncoder, (1, 16, 16), {"hidden_size": 7}),
]


@pytest.mark.parametrize(("encoder_class", "shape", "settings"), ENCODERS)
def test_the_last_layer_may_be_noisy(encoder_class, shape, settings):
    torch.manual_seed(0)
    encoder = encoder_class(shape, noisy=True, noisy_sigma=0.3, **settings)
    (noisy,) = [layer for layer in encoder.modules() if isinstance(layer, NoisyLinear)]
    assert noisy.out_features == encoder.num_features == 7
    torch.testing.assert_close(noisy.bias_sigma, torch.full((7,), 0.3 / noisy.in_features**0.5))
    observation = torch.rand(2, *shape)
    quiet = encoder.eval()(observation)
    noisy.sample_noise()
    assert torch.equal(encoder(observation), quiet)
    assert not torch.equal(encoder.train()(observation), quiet)


@pytest.mark.parametrize(("encoder_class", "shape", "settings"), ENCODERS)
def test_layer_norm_makes_features_independent_of_the_scale(encoder_class, shape, settings):
    torch.manual_seed(0)
    plain, normed = (encoder_class(shape, layer_norm=on, **settings) for on in (False, True))
    norms = [layer for layer in normed.modules() if isinstance(layer, nn.GroupNorm | nn.LayerNorm)]
    assert norms
    for encoder in (plain, normed):
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    observation = torch.rand(2, *shape)
    torch.testing.assert_close(plain(10 * observation), 10 * plain(observation))
    torch.testing.assert_close(normed(10 * observation), normed(observation), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImpalaEncoder((4,)), r"ImpalaEncoder needs .* at least 8 pixels a side"),
        (lambda: ConvEncoder((10, 10, 4), ((16, 3, 1),)), r"\(10, 10, 4\); put channels first"),
        (lambda: ImpalaEncoder((1, 16, 16), width=0), r"encoder\.width must be at least 1, got 0"),
        (lambda: ImpalaEncoder((1, 16, 16), pool_size=0), r"encoder\.pool_size must be at least 1"),
        (
            lambda: ImpalaEncoder((1, 16, 16), hidden_size=None, layer_norm=True),
            r"encoder\.layer_norm is true, but encoder\.hidden_size is null",
        ),
        (
            lambda: NatureEncoder((1, 36, 36), hidden_size=None, noisy=True),
            r"encoder\.noisy is true, but encoder\.hidden_size is null",
        ),
        (
            lambda: MLPEncoder((2,), noisy_sigma=0.1),
            r"encoder\.noisy_sigma is 0\.1, but encoder\.noisy is false",
        ),
        (lambda: NatureEncoder((1, 36, 36), noisy_sigma=-1.0), r"encoder\.noisy_sigma is -1\.0"),
        (lambda: NatureEncoder((1, 36, 36), hidden_size=0), r"encoder\.hidden_size must be at"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
