"""Networks small enough to compute by hand, and batches for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrl.learner.dqn import DQN
from lrl.networks import Encoder, NoisyLinear, QNetwork, ScalarHead
from lrl.types import Batch, EnvSpec


class FlatEncoder(Encoder):
    """The observation itself, times a factor: with a scalar head the network is linear."""

    def __init__(self, observation_shape: tuple[int, ...], factor: float = 1.0) -> None:
        super().__init__()
        (self.num_features,) = observation_shape
        self.factor = factor

    def encode(self, observation: Tensor) -> Tensor:
        return self.factor * observation


class ModalEncoder(Encoder):
    """A noisy layer, and two that change themselves when they are used in training mode."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_features = 4
        linear = nn.Linear(observation_shape[0], 4)
        self.spectral = nn.utils.parametrizations.spectral_norm(linear)
        self.norm = nn.BatchNorm1d(4)
        self.noisy = NoisyLinear(4, 4)

    def encode(self, observation: Tensor) -> Tensor:
        return self.noisy(self.norm(self.spectral(observation)))


def linear_dqn(tiny_spec: EnvSpec, **settings: Any) -> DQN:
    """Return an agent whose action values are a weight matrix times the observation."""
    head = functools.partial(ScalarHead, loss="huber")
    return DQN(**{"encoder": FlatEncoder, "head": head, "env_spec": tiny_spec, **settings})


def matrix_of(network: QNetwork) -> Any:
    """Return the one layer of a linear network."""
    head = network.head
    assert isinstance(head, ScalarHead)
    assert isinstance(head.layers.actions, nn.Linear)
    return head.layers.actions


def set_weights(network: QNetwork, weight: Sequence[Sequence[float]]) -> None:
    """Set the matrix (one row per action) of a linear network; its bias becomes 0."""
    linear = matrix_of(network)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(weight))
        linear.bias.zero_()


def make_batch(
    observation: Sequence[Sequence[float]],
    action: Sequence[int],
    reward: Sequence[float],
    discount: Sequence[float],
    next_observation: Sequence[Sequence[float]],
    weights: Sequence[float] | None = None,
) -> Batch:
    """Return a batch of lists; importance weights are 1 if they are not given."""
    size = len(action)
    return Batch(
        observation=torch.tensor(observation, dtype=torch.float32),
        action=torch.tensor(action),
        reward=torch.tensor(reward, dtype=torch.float32),
        discount=torch.tensor(discount, dtype=torch.float32),
        next_observation=torch.tensor(next_observation, dtype=torch.float32),
        weights=torch.ones(size) if weights is None else torch.tensor(weights),
        keys=torch.stack([torch.zeros(size), torch.arange(size)], dim=1).long(),
    )


def random_batch(size: int = 8, seed: int = 0) -> Batch:
    """Return random transitions of 2 numbers and 2 actions, with weights that differ."""
    rng = torch.Generator().manual_seed(seed)
    return make_batch(
        torch.randn(size, 2, generator=rng).tolist(),
        torch.randint(2, (size,), generator=rng).tolist(),
        torch.randn(size, generator=rng).tolist(),
        (0.9 * torch.randint(2, (size,), generator=rng)).tolist(),
        torch.randn(size, 2, generator=rng).tolist(),
        torch.rand(size, generator=rng).tolist(),
    )
