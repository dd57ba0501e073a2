"""The Q-network: an encoder and a head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrl.networks.encoders import Encoder
from lrl.networks.heads import Head
from lrl.recipe import Recipe
from lrl.types import ConfigError, EnvSpec


class QNetwork(nn.Module):
    """From observations to action values; the learner, its target and every actor hold one."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, observation: Tensor) -> Tensor:
        """Return the head's values, `[batch, actions, ...]`."""
        return self.head(self.encoder(observation))

    def q_values(self, observation: Tensor) -> Tensor:
        """Return expected values, `[batch, actions]`."""
        return self.head.q_values(self(observation))


@dataclass(frozen=True)
class NetworkRecipe:
    """Everything needed to build the same network in another process; plain data, picklable."""

    env_spec: EnvSpec
    encoder: Recipe
    head: Recipe

    def build(self) -> QNetwork:
        """Build the network with fresh random weights (torch's global generator)."""
        encoder = self.encoder(self.env_spec.observation_shape)
        if not isinstance(encoder, Encoder):
            raise ConfigError(f"encoder must be a lrl.networks.Encoder, got {type(encoder)}")
        head = self.head(encoder.num_features, self.env_spec.num_actions)
        if not isinstance(head, Head):
            raise ConfigError(f"head must be a lrl.networks.Head, got {type(head)}")
        return QNetwork(encoder, head)


def vector_size(network: nn.Module) -> int:
    """Return how many numbers `write_vector` writes."""
    return sum(tensor.numel() for tensor in network.state_dict().values())


@torch.no_grad()
def write_vector(network: nn.Module, out: Tensor) -> None:
    """Copy all weights and buffers into a flat float32 vector, in the order of the state dict."""
    offset = 0
    for tensor in network.state_dict().values():
        out[offset : offset + tensor.numel()].copy_(tensor.reshape(-1))
        offset += tensor.numel()


@torch.no_grad()
def read_vector(network: nn.Module, vector: Tensor) -> None:
    """Set all weights and buffers from what `write_vector` wrote."""
    offset = 0
    for tensor in network.state_dict().values():
        tensor.copy_(vector[offset : offset + tensor.numel()].view(tensor.shape))
        offset += tensor.numel()
