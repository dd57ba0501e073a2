import pickle

import pytest
import torch
from helpers.tiny_networks import FlatEncoder
from torch import nn

from lrl.networks import MLPEncoder, NatureEncoder, NetworkRecipe, QNetwork, ScalarHead
from lrl.networks.q_network import read_vector, vector_size, write_vector
from lrl.recipe import Recipe
from lrl.types import EnvSpec

ATARI = EnvSpec((4, 84, 84), "uint8", 6, frame_stack=4, frame_skip=4)


def build(spec: EnvSpec, encoder: type, **arguments) -> QNetwork:
    recipe = NetworkRecipe(
        spec,
        Recipe(f"{encoder.__module__}.{encoder.__qualname__}", arguments),
        Recipe.of(ScalarHead),
    )
    return pickle.loads(pickle.dumps(recipe)).build()


def test_nature_network_has_1_687_206_parameters():
    network = build(ATARI, NatureEncoder)
    assert vector_size(network) == 1_684_128 + (512 * 6 + 6) == 1_687_206
    assert network.q_values(torch.zeros(2, *ATARI.observation_shape, dtype=torch.uint8)).shape == (
        2, 6,
    )  # fmt: skip


def test_recipe_arguments_arrive(tiny_spec: EnvSpec):
    network = build(tiny_spec, FlatEncoder, factor=3.0)
    assert isinstance(network.encoder, FlatEncoder)
    assert network.encoder.factor == 3.0
    assert network.q_values(torch.ones(4, 2)).shape == (4, 2)


def test_vector_round_trip(tiny_spec: EnvSpec):
    source = build(tiny_spec, MLPEncoder, hidden_sizes=[5, 3])
    copy = build(tiny_spec, MLPEncoder, hidden_sizes=[5, 3])
    assert vector_size(source) == (2 * 5 + 5) + (5 * 3 + 3) + (3 * 2 + 2)
    vector = torch.empty(vector_size(source))
    write_vector(source, vector)
    read_vector(copy, vector)
    for name, tensor in source.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor), name

    vector.zero_()  # neither network may share the vector's memory
    observation = torch.randn(3, 2)
    assert torch.equal(copy(observation), source(observation))
    assert source(observation).abs().sum() > 0


def test_vector_holds_weights_in_the_order_of_the_state_dict():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.bias.copy_(torch.tensor([5.0, 6.0]))
    vector = torch.empty(6)
    write_vector(layer, vector)
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_vector_carries_buffers_too():
    source, copy = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    source(torch.randn(8, 3))
    vector = torch.empty(vector_size(source))
    write_vector(source, vector)
    read_vector(copy, vector)
    torch.testing.assert_close(copy.state_dict(), source.state_dict(), rtol=0, atol=0)
    assert copy.num_batches_tracked == 1


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_vector_of_another_size_is_refused(difference: int):
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="sum exactly"):
        write_vector(layer, torch.empty(6 + difference))
    with pytest.raises(RuntimeError, match="sum exactly"):
        read_vector(layer, torch.zeros(6 + difference))
