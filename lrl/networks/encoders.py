"""Encoders: from an observation to a feature vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from lrl.types import ConfigError


class Encoder(nn.Module, ABC):
    """Turn observations `[batch, *observation_shape]` into features `[batch, num_features]`.

    Subclasses take `observation_shape` first; other arguments come from the configuration.
    They set `num_features`, and they receive float observations: uint8 ones are scaled to [0, 1]
    before they arrive.
    """

    num_features: int

    @abstractmethod
    def encode(self, observation: Tensor) -> Tensor:
        """Return the features of float observations."""

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features; uint8 observations are divided by 255 here and nowhere else."""
        if observation.dtype == torch.uint8:
            observation = observation.to(torch.float32).div_(255.0)
        return self.encode(observation)


class MLPEncoder(Encoder):
    """Fully connected layers with ReLU; observations of any shape are flattened.

    Args:
        observation_shape: Shape of one observation.
        hidden_sizes: Units of each layer; the last one is the number of features.
    """

    def __init__(
        self, observation_shape: tuple[int, ...], hidden_sizes: tuple[int, ...] = (120, 84)
    ) -> None:
        super().__init__()
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise ConfigError(
                f"encoder.hidden_sizes must hold at least one positive size, got {hidden_sizes}"
            )
        sizes = [prod(observation_shape), *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.num_features = sizes[-1]

    def encode(self, observation: Tensor) -> Tensor:
        """Return the features of float observations."""
        return self.layers(observation)


class NatureEncoder(Encoder):
    """The convolutional network of Mnih et al. 2015 ("Human-level control", Methods).

    Three convolutions (32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3 stride 1) and one fully
    connected layer, all with ReLU. An 84x84 input gives 3136 values before that layer.

    Args:
        observation_shape: (frames, height, width), at least 36 pixels high and wide.
        hidden_size: Units of the fully connected layer, the number of features.
    """

    def __init__(self, observation_shape: tuple[int, ...], hidden_size: int = 512) -> None:
        super().__init__()
        if len(observation_shape) != 3 or min(observation_shape[1:]) < 36:
            raise ConfigError(
                "encoder: NatureEncoder needs observations of shape (frames, height, width), at "
                f"least 36 pixels a side, got {observation_shape}; use MLPEncoder or your own"
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, *observation_shape)).shape[1]
        self.dense = nn.Sequential(nn.Linear(flat, hidden_size), nn.ReLU())
        self.num_features = hidden_size

    def encode(self, observation: Tensor) -> Tensor:
        """Return the features of float observations."""
        return self.dense(self.convolutions(observation))
