"""Encoders: from an observation to a feature vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lrl.networks.layers import DEFAULT_SIGMA, NoisyLinear, sigma_of
from lrl.networks.linear import Linear
from lrl.types import ConfigError, Observation, map_leaves


class Encoder(nn.Module, ABC):
    """Turn observations `[batch, *observation_shape]` into features `[batch, num_features]`.

    Subclasses take `observation_shape` first; other arguments come from the configuration.
    They set `num_features`, and they receive float observations: uint8 ones are scaled to [0, 1]
    before they arrive, booleans are 0 and 1, and categories one-hot. For a space with leaves the
    shape is a dict of shapes, and an observation a dict of tensors, by the names of the leaves.
    """

    num_features: int
    choice: str = ""
    """What it chose where its settings left it to it, said at a run's start."""
    takes_channels_last: ClassVar[bool] = False
    """Whether images of bytes may arrive in torch's memory format channels last."""
    takes_columns: ClassVar[bool] = False
    """Whether it takes `EnvSpec.observation` in place of the shape, and observations as they are
    stored, neither scaled nor one-hot."""

    @abstractmethod
    def encode(self, observation: Any) -> Tensor:
        """Return the features of float observations."""

    def forward(self, observation: Observation) -> Tensor:
        """Return the features; uint8 observations are divided by 255 here and nowhere else."""
        if self.takes_columns:
            return self.encode(observation)
        return self.encode(map_leaves(self._as_floats, observation))

    def _as_floats(self, leaf: Tensor) -> Tensor:
        if leaf.dtype == torch.uint8:
            return scaled(leaf, self.takes_channels_last and leaf.dim() == 4)
        return leaf.to(torch.float32) if leaf.dtype == torch.bool else leaf


def scaled(observation: Tensor, takes_channels_last: bool) -> Tensor:
    """Return uint8 values divided by 255, of images in the memory format that suits the processor.

    Convolutions in float32 on a CPU are faster with channels last, and follow their input. Frames
    are interleaved while they are bytes, which is faster than to do so while converting them. In
    bfloat16 channels last is slower.
    """
    device = observation.device.type
    if takes_channels_last and device == "cpu" and not torch.is_autocast_enabled(device):
        observation = torch.stack(observation.unbind(1), -1).permute(0, 3, 1, 2)
    return observation.to(torch.float32).div_(255.0)


class MLPEncoder(Encoder):
    """Fully connected layers with ReLU; observations of any shape are flattened.

    Args:
        hidden_sizes: Units of each layer; the last one is the number of features.
        layer_norm: Normalise each layer before its ReLU.
        noisy: Make the last layer a noisy one.
        noisy_sigma: Initial standard deviation of its noise, times the root of its inputs.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        hidden_sizes: tuple[int, ...] = (120, 84),
        layer_norm: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
    ) -> None:
        super().__init__()
        _check_array(observation_shape, "MLPEncoder")
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise ConfigError(
                f"encoder.hidden_sizes must hold at least one positive size, got {hidden_sizes}"
            )
        sigma = sigma_of("encoder", noisy, noisy_sigma)
        sizes = [prod(observation_shape), *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()]
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            is_last = index == len(hidden_sizes) - 1
            layers += dense(inputs, outputs, layer_norm, sigma if is_last else None)
        self.layers = nn.Sequential(*layers)
        self.num_features = sizes[-1]

    @override
    def encode(self, observation: Tensor) -> Tensor:
        # nn.Flatten refuses single numbers, but its place is in the names of saved weights.
        return self.layers(observation.reshape(observation.shape[0], -1))


class ConvEncoder(Encoder):
    """Convolutions with ReLU and without padding, then at most one fully connected layer.

    Args:
        observation_shape: (channels, height, width), or (frames, channels, height, width).
        layers: Channels, kernel size and stride of each convolution.
        hidden_size: Units of the fully connected layer, the number of features; null leaves it
            out, for heads that have a hidden layer of their own.
        layer_norm: Normalise each layer over channels and pixels before its ReLU.
        noisy: Make the fully connected layer a noisy one.
        noisy_sigma: Initial standard deviation of its noise, times the root of its inputs.
    """

    takes_channels_last = True

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        layers: Sequence[tuple[int, int, int]] = ((16, 3, 1),),
        hidden_size: int | None = 128,
        layer_norm: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
    ) -> None:
        super().__init__()
        shape = _image_shape(observation_shape, type(self).__name__, _smallest_side(layers))
        channels = [shape[0], *(layer[0] for layer in layers)]
        modules: list[nn.Module] = []
        for (inputs, outputs), (_, kernel, stride) in zip(pairwise(channels), layers, strict=True):
            modules.append(nn.Conv2d(inputs, outputs, kernel, stride))
            if layer_norm:
                modules.append(nn.GroupNorm(1, outputs))
            modules.append(nn.ReLU())
        self.convolutions = nn.Sequential(*modules, nn.Flatten())
        flat = _num_outputs(self.convolutions, shape)
        sigma = sigma_of("encoder", noisy, noisy_sigma)
        self.dense = _last_layer(flat, hidden_size, layer_norm, sigma)
        self.num_features = hidden_size or flat

    @override
    def encode(self, observation: Tensor) -> Tensor:
        return self.dense(self.convolutions(observation.flatten(1, -3)))


class NatureEncoder(ConvEncoder):
    """The convolutional network of Mnih et al. 2015 ("Human-level control", Methods).

    Three convolutions (32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3 stride 1) and one fully
    connected layer, all with ReLU. An 84x84 input gives 3136 values before that layer.

    Args:
        observation_shape: (frames, height, width), or (frames, channels, height, width), at least
            36 pixels high and wide.
        hidden_size: Units of the fully connected layer, the number of features; null leaves it
            out, for heads that have a hidden layer of their own.
        layer_norm: Normalise each layer over channels and pixels before its ReLU.
        noisy: Make the fully connected layer a noisy one.
        noisy_sigma: Initial standard deviation of its noise, times the root of its inputs.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        hidden_size: int | None = 512,
        layer_norm: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
    ) -> None:
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        super().__init__(observation_shape, layers, hidden_size, layer_norm, noisy, noisy_sigma)


class ImpalaEncoder(Encoder):
    """The deep residual network of Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, fig. 3.

    Three sections of a 3x3 convolution, 3x3 max-pooling with stride 2 and two residual blocks,
    with 16, 32 and 32 channels.

    Args:
        observation_shape: (frames, height, width), or (frames, channels, height, width).
        width: Multiplies the channels (2 in Schmidt and Schmied 2021, arXiv:2111.10247).
        spectral_norm: Divide the residual blocks' convolutions by their largest singular value
            (Gogianu et al. 2021, arXiv:2105.05246).
        pool_size: Side of an adaptive max-pooling after the last section (6 in Clark et al. 2024,
            arXiv:2411.03820): features no longer depend on the image's size. Null for none.
        hidden_size: Units of a fully connected layer at the end, the number of features (256 in
            the paper); null leaves it out, for heads that have a hidden layer of their own.
        layer_norm: Normalise that layer before its ReLU.
        noisy: Make that layer a noisy one.
        noisy_sigma: Initial standard deviation of its noise, times the root of its inputs.
    """

    takes_channels_last = True

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        width: int = 1,
        spectral_norm: bool = False,
        pool_size: int | None = None,
        hidden_size: int | None = 256,
        layer_norm: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
    ) -> None:
        super().__init__()
        shape = _image_shape(observation_shape, "ImpalaEncoder", 8)
        for name, value in (("width", width), ("pool_size", pool_size)):
            if value is not None and value < 1:
                raise ConfigError(f"encoder.{name} must be at least 1, got {value}")
        channels = [shape[0], 16 * width, 32 * width, 32 * width]
        sections = [_impala_section(*pair, spectral_norm) for pair in pairwise(channels)]
        if layer_norm and hidden_size is None:
            raise ConfigError(
                "encoder.layer_norm is true, but encoder.hidden_size is null: there is no layer to "
                "normalise"
            )
        pool = [_AdaptiveMaxPool(pool_size)] if pool_size else []
        self.convolutions = nn.Sequential(*sections, nn.ReLU(), *pool, nn.Flatten())
        flat = _num_outputs(self.convolutions, shape)
        sigma = sigma_of("encoder", noisy, noisy_sigma)
        self.dense = _last_layer(flat, hidden_size, layer_norm, sigma)
        self.num_features = hidden_size or flat

    @override
    def encode(self, observation: Tensor) -> Tensor:
        return self.dense(self.convolutions(observation.flatten(1, -3)))


class _AdaptiveMaxPool(nn.Module):
    """`nn.AdaptiveMaxPool2d`, which ONNX has no operator for and CUDA no deterministic gradient.

    Of several largest values in a window each has its share of the gradient.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    @override
    def forward(self, values: Tensor) -> Tensor:
        for axis in (-2, -1):
            size = values.shape[axis]
            starts = [index * size // self.side for index in range(self.side)]
            ends = [-(-(index + 1) * size // self.side) for index in range(self.side)]
            windows = [
                values.narrow(axis, start, end - start).amax(axis)
                for start, end in zip(starts, ends, strict=True)
            ]
            values = torch.stack(windows, axis)
        return values


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to their input (Espeholt et al. 2018)."""

    def __init__(self, channels: int, spectral_norm: bool) -> None:
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        if spectral_norm:
            first, second = map(nn.utils.parametrizations.spectral_norm, (first, second))
        self.layers = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, values: Tensor) -> Tensor:
        """Return the input plus what the convolutions make of it."""
        return values + self.layers(values)


def dense(
    inputs: int, outputs: int, layer_norm: bool = False, noisy_sigma: float | None = None
) -> list[nn.Module]:
    """Return a fully connected layer, noisy where sigma is given, its normalisation and ReLU."""
    layer = Linear(inputs, outputs)
    if noisy_sigma is not None:
        layer = NoisyLinear(inputs, outputs, noisy_sigma)
    return [layer, *([nn.LayerNorm(outputs)] if layer_norm else []), nn.ReLU()]


def _last_layer(
    flat: int, hidden_size: int | None, layer_norm: bool, noisy_sigma: float | None
) -> nn.Module:
    if hidden_size is not None and hidden_size < 1:
        raise ConfigError(f"encoder.hidden_size must be at least 1, or null, got {hidden_size}")
    if hidden_size is None:
        if noisy_sigma is not None:
            raise ConfigError(
                "encoder.noisy is true, but encoder.hidden_size is null: there is no layer to make "
                "noisy; set head.noisy instead"
            )
        return nn.Identity()
    return nn.Sequential(*dense(flat, hidden_size, layer_norm, noisy_sigma))


def _impala_section(inputs: int, outputs: int, spectral_norm: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        ResidualBlock(outputs, spectral_norm),
        ResidualBlock(outputs, spectral_norm),
    )


@torch.no_grad()
def _num_outputs(network: nn.Module, image_shape: tuple[int, ...]) -> int:
    network.eval()  # spectral normalisation would take a step
    count = network(torch.zeros(1, *image_shape)).shape[1]
    network.train()
    return count


def _smallest_side(layers: Sequence[tuple[int, int, int]]) -> int:
    """Return the smallest image that leaves one pixel after unpadded convolutions."""
    side = 1
    for layer in reversed(layers):
        if len(layer) != 3 or min(layer) < 1:
            raise ConfigError(
                "encoder.layers must list channels, kernel size and stride of each convolution, "
                f"all at least 1, got {layer}"
            )
        _, kernel, stride = layer
        side = (side - 1) * stride + kernel
    return side


def _check_array(observation_shape: Any, name: str) -> None:
    if isinstance(observation_shape, Mapping):
        raise ConfigError(
            f"encoder: {name} takes one array, but observations are a dict of "
            f"{sorted(observation_shape)}: use lrl.networks.MultiEncoder, your own encoder, or put "
            "gymnasium.wrappers.FlattenObservation into env.wrappers"
        )


def _image_shape(observation_shape: tuple[int, ...], name: str, side: int) -> tuple[int, ...]:
    """Return (channels, height, width), where those of stacked frames count together."""
    _check_array(observation_shape, name)
    is_too_small = min(observation_shape[-2:], default=0) < side
    if len(observation_shape) not in (3, 4) or is_too_small or _is_channels_last(observation_shape):
        raise ConfigError(
            f"encoder: {name} needs observations of shape (channels, height, width), or a stack of "
            f"them, at least {side} pixels a side, got {observation_shape}; put "
            "channels first (lrl.envs.ChannelsFirst in env.wrappers does, where there is one "
            "array), or use MLPEncoder or your own"
        )
    return (prod(observation_shape[:-2]), *observation_shape[-2:])


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether a shape can only be meant as a square image, then its 1 to 4 channels."""
    return len(shape) == 3 and shape[0] == shape[1] > 4 >= shape[2]
