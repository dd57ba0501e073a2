"""Units of a network that say nothing: those behind a ReLU that were 0 for everything they saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SeenUnits:
    """Notes which units of a network were ever above 0; see `seen_units`."""

    def __init__(self) -> None:
        self._dead: list[Tensor] = []

    def see(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        """Take the output of a ReLU: a unit is a column of the last axis, or an image's channel."""
        axis = 1 if output.ndim == 4 else output.ndim - 1
        others = [each for each in range(output.ndim) if each != axis]
        self._dead.append(((output.detach() > 0).sum(dim=others) == 0).float().mean())

    def dead_share(self) -> Tensor | None:
        """Return the share of units that were never above 0, a scalar; None if none was seen.

        It is that of the layer with the largest: where all of one are dead, what the network says
        is the same for every observation.
        """
        return torch.stack(self._dead).amax() if self._dead else None


@contextmanager
def seen_units(network: nn.Module) -> Iterator[SeenUnits]:
    """Watch the units behind every `nn.ReLU` of a network for as long as the context lasts.

    A unit that is 0 for every input has no gradient either, and learns nothing more (Sokar et al.
    2023, https://arxiv.org/abs/2302.12902, with a threshold of 0).

    Example:
        >>> layer = nn.Linear(1, 2)
        >>> layer.weight.data, layer.bias.data = torch.tensor([[1.0], [-1.0]]), torch.zeros(2)
        >>> with seen_units(network := nn.Sequential(layer, nn.ReLU())) as units:
        ...     _ = network(torch.ones(3, 1))
        >>> units.dead_share()
        tensor(0.5000)
    """
    units = SeenUnits()
    relus = [module for module in network.modules() if isinstance(module, nn.ReLU)]
    handles = [module.register_forward_hook(units.see) for module in relus]
    try:
        yield units
    finally:
        for handle in handles:
            handle.remove()
