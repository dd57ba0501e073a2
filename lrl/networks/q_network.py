"""The Q-network: an encoder and a head, and a recurrent core between them if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lrl.networks.categories import build_encoder
from lrl.networks.encoders import Encoder
from lrl.networks.heads import Head
from lrl.networks.layers import NoisyLinear
from lrl.networks.recurrent import RecurrentCore
from lrl.parts.recipe import Recipe, blamed_on
from lrl.types import Column, EnvSpec, Memory, Observation, SequenceBatch, leaves_of, map_leaves


class Unrolled(NamedTuple):
    """Observations of sequences, in the form in which the network's head gets them.

    Made from `QNetwork.unroll`: for the same network they stand for the observations themselves.
    """

    features: Tensor
    """`[rows, features]`."""


class QNetwork(nn.Module):
    """From observations to action values; the learner, its target and every actor hold one.

    With a recurrent core it needs what it remembers beside each observation: where that is asked
    for below, it may be left out by networks without a core only.
    """

    def __init__(self, encoder: Encoder, head: Head, core: RecurrentCore | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.head = head
        self._noisy = [part for part in self.modules() if isinstance(part, NoisyLinear)]

    @property
    def is_noisy(self) -> bool:
        """Whether a layer has noise of its own."""
        return bool(self._noisy)

    @property
    def memory(self) -> Mapping[str, Column]:
        """What it remembers from step to step, a column for each value; empty without a core."""
        return {} if self.core is None else self.core.memory

    def features(
        self, observation: Observation, memory: Memory | None = None
    ) -> tuple[Tensor, Memory | None]:
        """Return what the head gets, `[batch, features]`, and what is remembered from now on.

        Raises:
            ValueError: It has a core, but no memory was given.
        """
        if isinstance(observation, Unrolled):
            return observation.features, None
        features = self.encoder(observation)
        if self.core is None:
            return features, None
        return self.core(features, self._known(memory))

    def unroll(self, sequences: SequenceBatch) -> Tensor:
        """Return what the head gets of the rows behind the burn-in, `[batch, rows, features]`.

        It remembers from row to row, and nothing where an episode begins. Gradients go through
        what it remembers, but not into the burn-in, which only says what is remembered behind it;
        without a core nothing is, and those rows are not looked at.

        Raises:
            ValueError: It has a core, but the sequences begin without a memory.
        """
        burn_in, observation = sequences.burn_in, sequences.observation
        if self.core is None:
            return self._encoded(observation, slice(burn_in, None))
        memory, begins = self._known(sequences.memory), sequences.begins
        if burn_in:
            with torch.no_grad():
                features = self._encoded(observation, slice(burn_in))
                memory = self.core.memory_after(features, memory, begins[:, :burn_in])
        features = self._encoded(observation, slice(burn_in, None))
        return self.core.unroll(features, memory, begins[:, burn_in:])

    def _encoded(self, observation: Observation, rows: slice) -> Tensor:
        """Return the encoder's features of some rows of sequences."""
        cut = map_leaves(lambda leaf: leaf[:, rows], observation)
        shape = next(iter(leaves_of(cut).values())).shape[:2]
        return self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), cut)).unflatten(0, shape)

    def forward(self, observation: Observation, memory: Memory | None = None) -> Any:
        """Return the head's values, `[batch, actions, ...]` or a tuple."""
        return self.head(self.features(observation, memory)[0])

    def q_values(self, observation: Observation, memory: Memory | None = None) -> Tensor:
        """Return expected values to choose actions by, `[batch, actions]`."""
        return self.head.q_values(self.features(observation, memory)[0])

    def sample_noise(self) -> None:
        """Draw new noise in every noisy layer, from torch's global generator."""
        for layer in self._noisy:
            layer.sample_noise()

    def _known(self, memory: Memory | None) -> Memory:
        if memory is None:
            raise ValueError(
                f"a network with a {type(self.core).__name__} needs what it remembered before "
                "the observations: give `batch.memory`, `batch.next_memory`, or what a policy's "
                "`begin` returns"
            )
        return memory


@dataclass(frozen=True)
class NetworkRecipe:
    """Everything needed to build the same network in another process; plain data, picklable."""

    env_spec: EnvSpec
    encoder: Recipe
    head: Recipe
    core: Recipe | None = None

    def build(self) -> QNetwork:
        """Build the network with fresh random weights (torch's global generator)."""
        with blamed_on("model.encoder"):
            encoder = build_encoder(self.encoder, self.env_spec.observation)
            num_features = encoder.num_features
        core: RecurrentCore | None = None
        if self.core is not None:
            with blamed_on("model.core"):
                core = made = self.core(num_features)
                num_features = made.num_features
        with blamed_on("model.head"):
            head: Head = self.head(num_features, self.env_spec.num_actions)
            head.set_branches(self.env_spec.action.branches)
        return QNetwork(encoder, head, core)

    def memory(self) -> Mapping[str, Column]:
        """Return what the network remembers, without a change to torch's global generator."""
        if self.core is None:
            return {}
        with torch.random.fork_rng(devices=[]):
            return self.build().memory


def vector_size(network: nn.Module) -> int:
    """Return how many numbers `weights_of` holds."""
    return sum(map(_num_floats, network.state_dict().values()))


@torch.no_grad()
def weights_of(network: nn.Module) -> Tensor:
    """Copy all weights and buffers into a flat float32 vector, in the order of the state dict.

    It is on the host: from a GPU they come in one copy. Of types that float32 does not hold exactly
    (int64, float64) it has the bits, so that a buffer of large numbers arrives as it is.
    """
    flat = [tensor.reshape(-1) for tensor in network.state_dict().values()]
    parts = [part.view(torch.float32) if _is_wide(part) else part.float() for part in flat]
    return torch.cat(parts).cpu()


@torch.no_grad()
def read_vector(network: nn.Module, vector: Tensor) -> None:
    """Set all weights and buffers from what `weights_of` returned."""
    tensors = list(network.state_dict().values())
    # `split` raises if the vector has another size.
    parts = vector.split(list(map(_num_floats, tensors)))
    for tensor, part in zip(tensors, parts, strict=True):
        if _is_wide(tensor):
            part = part.clone().view(tensor.dtype)  # a clone begins at a whole number
        tensor.copy_(part.view(tensor.shape))


def _is_wide(tensor: Tensor) -> bool:
    return tensor.element_size() >= 4 and tensor.dtype != torch.float32


def _num_floats(tensor: Tensor) -> int:
    return tensor.numel() * (tensor.element_size() // 4 if _is_wide(tensor) else 1)
