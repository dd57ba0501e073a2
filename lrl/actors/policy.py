"""The local behaviour policy: a copy of the online network inside the acting process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from lrl.actors.actor import BehaviourPolicy, Decision
from lrl.actors.process import Pulse
from lrl.actors.slot import ActorSlot
from lrl.networks.layers import NoisyLinear
from lrl.networks.q_network import NetworkRecipe, QNetwork, read_vector, vector_size, weights_of
from lrl.transport import Weights, WeightStore
from lrl.types import Column, Memory, Observation, leaves_of, map_leaves


class NetworkPolicy(BehaviourPolicy):
    """Action values from a network of this process, which someone else trains.

    Used by the synchronous mode and by evaluation; `version` is whatever the caller sets. While it
    acts all layers are in eval mode, so that acting changes none of them, but for noisy layers
    that explore; then the modes are as before.

    Args:
        network: The network.
        device: Where it is.
        noise: Draw new noise from torch's global generator for every call; without, as in
            evaluation, noisy layers give their mean.
        noise_per_row: Draw it for every observation of a call apart.
    """

    def __init__(
        self,
        network: QNetwork,
        device: torch.device | str = "cpu",
        noise: bool = True,
        noise_per_row: bool = False,
    ) -> None:
        self.network = network
        self.device = torch.device(device)
        self.noise_per_row = noise_per_row
        self.version = 0
        modules = list(network.modules())
        self._noisy = [layer for layer in modules if noise and isinstance(layer, NoisyLinear)]
        self._modes = [(vars(module), module in self._noisy) for module in modules]

    @property
    @override
    def memory(self) -> Mapping[str, Column]:
        return self.network.memory

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return action values, the version, and what the network remembers from now on."""
        # In the instances' dicts, because an assignment takes 1 us a layer and a forward 40.
        wrong = [attributes for attributes, mode in self._modes if attributes["training"] != mode]
        _toggle(wrong)
        try:
            with torch.inference_mode():
                tensors = map_leaves(self._tensor, observation)
                rows = len(next(iter(leaves_of(tensors).values()))) if self.noise_per_row else None
                for layer in self._noisy:
                    layer.sample_noise(rows)
                remembered = map_leaves(self._tensor, memory)
                features, after = self.network.features(tensors, remembered)
                q = self.network.head.q_values(features)
                return Decision(q.float().cpu().numpy(), self.version, self._arrays(after))
        finally:
            _toggle(wrong)

    def _tensor(self, leaf: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.tensor(leaf, device=self.device)  # its own: a network may write into it

    def _arrays(self, memory: Memory | None) -> Memory | None:
        """Return a memory in the types of its columns."""
        if memory is None:
            return None
        return {
            name: memory[name].to(getattr(torch, column.dtype)).cpu().numpy()
            for name, column in self.network.memory.items()
        }


def _toggle(modules: list[dict[str, Any]]) -> None:
    for attributes in modules:
        attributes["training"] = not attributes["training"]


def publish_weights(network: QNetwork, store: WeightStore, version: int) -> None:
    """Copy a network's weights and buffers into the store, as its latest version."""
    store.publish(weights_of(network).numpy(), version)


class SubscribedPolicy(BehaviourPolicy):
    """A copy of the online network that takes new weights before acting, from wherever they are.

    Runs in the process of an actor or an inference server. Never blocks: a forward uses the newest
    version published before it began.

    Args:
        network: The network, on its device.
        store: The weights.
        device: See `NetworkPolicy`, as for the next two.
        noise: See `NetworkPolicy`.
        noise_per_row: See `NetworkPolicy`.
    """

    def __init__(
        self,
        network: QNetwork,
        store: Weights,
        device: torch.device | str = "cpu",
        noise: bool = True,
        noise_per_row: bool = False,
    ) -> None:
        network.requires_grad_(False).eval()
        self.policy = NetworkPolicy(network, device, noise, noise_per_row)
        self.store = store
        self.version = -1
        self._vector = torch.empty(vector_size(network), dtype=torch.float32)

    @property
    @override
    def memory(self) -> Mapping[str, Column]:
        return self.policy.memory

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return action values and the policy version that gave them."""
        if self.store.version != self.version:
            self.refresh()
        return self.policy(observation, memory)

    def refresh(self) -> None:
        """Take the newest weights, if there are newer ones."""
        version = self.store.read(self._vector.numpy(), newer_than=self.version)
        if version is not None:
            read_vector(self.policy.network, self._vector.to(self.policy.device))
            self.version = self.policy.version = version


@dataclass(frozen=True)
class LocalPolicyFactory:
    """Builds the behaviour policy inside the actor process; picklable.

    All its groups of environments share the network.
    """

    recipe: NetworkRecipe
    store: Weights

    def build(self, slots: Sequence[ActorSlot], pulse: Pulse) -> list[SubscribedPolicy]:
        """Build the network on one thread and take the current weights.

        Noisy layers draw from torch's global generator, which the first slot seeds.
        """
        torch.set_num_threads(1)
        torch.manual_seed(slots[0].policy_seed())
        policy = SubscribedPolicy(self.recipe.build(), self.store)
        policy.refresh()
        return [policy] * len(slots)
