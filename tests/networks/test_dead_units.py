"""Units that were never above 0: of layers and of images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lrl.networks.dead_units import seen_units


def test_the_layer_with_most_dead_units_counts():
    first, second = nn.Linear(1, 4), nn.Linear(4, 2)
    network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0], [1.0], [1.0], [-1.0]]))
        first.bias.zero_()
        second.weight.copy_(torch.tensor([[1.0] * 4, [-1.0] * 4]))
        second.bias.zero_()
    with seen_units(network) as units:
        network(torch.tensor([[1.0], [2.0]]))
    assert units.dead_share() == 0.5  # one of four, and one of two
    with seen_units(network) as units:
        network(torch.tensor([[1.0], [-2.0]]))  # which each unit of the first layer is alive for
    assert units.dead_share() == 0.5
    assert not any(module._forward_hooks for module in network.modules())


def test_a_channel_is_alive_if_it_is_somewhere():
    image = torch.full((2, 3, 4, 4), -1.0)
    image[1, 0, 2, 2] = 1.0
    image[0, 2] = 0.5
    relu = nn.ReLU()
    with seen_units(relu) as units:
        relu(image)
    share = units.dead_share()
    assert share is not None
    assert share.item() == pytest.approx(1 / 3)


def test_units_of_quantiles_are_those_of_the_last_axis():
    relu = nn.ReLU()
    with seen_units(relu) as units:
        relu(torch.tensor([[[1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]]))
    share = units.dead_share()
    assert share is not None
    assert share.item() == pytest.approx(2 / 3)


def test_a_network_without_relus_has_no_share():
    network = nn.Linear(2, 2)
    with seen_units(network) as units:
        network(torch.zeros(1, 2))
    assert units.dead_share() is None
