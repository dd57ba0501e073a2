"""Encoders of observations with leaves, and of categories."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from helpers.tiny_networks import FlatEncoder
from torch import nn

from lrl import DQN
from lrl.networks import (
    ConvEncoder,
    EmbeddingEncoder,
    Encoder,
    MLPEncoder,
    MultiEncoder,
    NatureEncoder,
    NetworkRecipe,
    NoisyLinear,
    ScalarHead,
)
from lrl.networks.categories import OneHot, build_encoder
from lrl.networks.multi_encoder import usual_encoder
from lrl.parts.recipe import Recipe
from lrl.types import ActionSpec, Column, ConfigError, EnvSpec

UNKNOWN: Any = {"units": 3}
COLUMNS = {
    "arm.mode": Column("int8", categories=(3,)),
    "arm.position": Column("float32", (2,)),
    "camera": Column("uint8", (1, 10, 10)),
}


def observation(batch: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "arm.mode": torch.randint(3, (batch,), generator=generator).to(torch.int8),
        "arm.position": torch.rand(batch, 2, generator=generator),
        "camera": torch.randint(256, (batch, 1, 10, 10), generator=generator).to(torch.uint8),
    }


class Seen(Encoder):
    """Gives what it got as it is."""

    def __init__(self, observation_shape: Any) -> None:
        super().__init__()
        self.observation_shape, self.num_features = observation_shape, 1

    def encode(self, observation: Any) -> Any:
        return observation


def test_categories_reach_encoders_of_numbers_one_hot():
    columns = {"a": Column("int8", (2,), categories=(2, 3)), "b": Column("uint8", (1,))}
    encoder = build_encoder(Recipe.of(Seen), columns)
    assert isinstance(encoder, OneHot)
    assert encoder.encoder.observation_shape == {"a": (5,), "b": (1,)}
    leaf = torch.tensor([[1, 0], [0, 2]], dtype=torch.int8)
    seen: Any = encoder({"a": leaf, "b": torch.tensor([[255], [51]], dtype=torch.uint8)})
    assert seen["a"].tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert seen["b"].tolist() == [[1.0], [pytest.approx(0.2)]]
    assert leaf.tolist() == [[1, 0], [0, 2]]


def test_a_stack_of_categories_is_a_stack_of_one_hot_numbers():
    encoder = build_encoder(Recipe.of(Seen), {"": Column("int8", (), 2, categories=(3,))})
    inner: Any = encoder.get_submodule("encoder")
    assert inner.observation_shape == (2, 3)
    assert encoder(torch.tensor([[2, 0]], dtype=torch.int8)).tolist() == [[[0, 0, 1], [1, 0, 0]]]


def test_encoders_of_numbers_alone_are_left_as_they_are():
    encoder = build_encoder(Recipe.of(MLPEncoder), {"": Column("float32", (2,))})
    assert type(encoder) is MLPEncoder


@pytest.mark.parametrize("stack", [1, 2])
def test_an_embedding_has_a_table_for_each_category(stack: int):
    column = Column("int16", (2,), stack, categories=(300, 2))
    encoder = EmbeddingEncoder({"": column}, size=4)
    assert encoder.num_features == 8 * stack
    leaf = torch.tensor([[[299, 1], [0, 0]]], dtype=torch.int16)[:, :stack]
    rows = [299, 301, 0, 300][: 2 * stack]
    leaf = leaf if stack > 1 else leaf[:, 0]
    assert torch.equal(encoder(leaf), encoder.table.weight[rows].reshape(1, -1))


def test_an_embedding_equals_one_hot_numbers_before_a_layer():
    column = Column("int8", (3,), categories=(4, 5, 2))
    encoder = EmbeddingEncoder({"": column}, size=6)
    one_hot = OneHot({"": column}, Seen((11,)))
    leaf = torch.tensor([[3, 0, 1], [0, 4, 0]], dtype=torch.int8)
    numbers: Any = one_hot(leaf)
    parts = torch.split(torch.eye(11), [4, 5, 2])
    expected = torch.cat([numbers @ part.T @ part @ encoder.table.weight for part in parts], dim=1)
    torch.testing.assert_close(encoder(leaf), expected)


@pytest.mark.parametrize(
    ("columns", "size", "text"),
    [
        ({"": Column("float32", (2,))}, 3, r"takes categories, .* got float32 numbers \(2,\)"),
        (COLUMNS, 3, r"got the leaves \['arm.mode'"),
        ({"": Column("int8", categories=(3,))}, 0, "encoder.size must be at least 1, got 0"),
    ],
)
def test_what_an_embedding_refuses(columns: dict[str, Column], size: int, text: str):
    with pytest.raises(ConfigError, match=text):
        EmbeddingEncoder(columns, size)


def test_features_are_those_of_the_leaves_side_by_side():
    torch.manual_seed(0)
    encoders: dict[str, Any] = {
        "arm.mode": functools.partial(EmbeddingEncoder, size=3),
        "arm.position": {"class_path": "lrl.networks.MLPEncoder", "init_args": {}},
        "camera": functools.partial(ConvEncoder, hidden_size=7),
    }
    multi = MultiEncoder(COLUMNS, encoders, hidden_size=None)
    mode, position, camera = multi.encoders
    leaves = observation()
    expected = [
        mode(leaves["arm.mode"]),
        position(leaves["arm.position"]),
        camera(leaves["camera"]),
    ]
    assert torch.equal(multi(leaves), torch.cat(expected, dim=1))
    assert multi.num_features == 3 + 84 + 7
    assert multi.choice == ""
    joined = MultiEncoder(COLUMNS, encoders, hidden_size=5, layer_norm=True)
    assert joined(leaves).shape == (2, 5)
    assert [type(layer) for layer in joined.joined] == [
        type(joined.joined[0]),
        nn.LayerNorm,
        nn.ReLU,
    ]


def test_an_ignored_leaf_costs_nothing():
    multi = MultiEncoder(COLUMNS, ignored=["camera", "arm.mode"], hidden_size=3)
    leaves = {"arm.position": observation()["arm.position"]}  # the others are not even asked for
    assert multi(leaves).shape == (2, 3)
    assert sum(p.numel() for p in multi.parameters()) == (2 * 64 + 64) + (64 * 3 + 3)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column("float32"), functools.partial(MLPEncoder, hidden_sizes=(64,))),
        (Column("float32", (3,), stack=4), functools.partial(MLPEncoder, hidden_sizes=(64,))),
        (Column("uint8", (84, 84), stack=4), functools.partial(NatureEncoder, hidden_size=None)),
        (Column("uint8", (3, 36, 36)), functools.partial(NatureEncoder, hidden_size=None)),
        (
            Column("uint8", (3, 48, 48), stack=4),
            functools.partial(NatureEncoder, hidden_size=None),
        ),
        (
            Column("bool", (4, 10, 10)),
            functools.partial(ConvEncoder, layers=((16, 3, 1), (32, 3, 1)), hidden_size=None),
        ),
        (
            Column("uint8", (1, 4, 35)),
            functools.partial(ConvEncoder, layers=((16, 3, 1),), hidden_size=None),
        ),
        (Column("uint8", (5, 2, 9)), functools.partial(MLPEncoder, hidden_sizes=(64,))),
        (Column("int16", categories=(256,)), functools.partial(MLPEncoder, hidden_sizes=(64,))),
        (
            Column("int8", (4, 4, 4), categories=(2,) * 64),
            functools.partial(MLPEncoder, hidden_sizes=(64,)),
        ),
        (Column("int16", (2,), categories=(200, 57)), EmbeddingEncoder),
    ],
)  # fmt: skip
def test_the_usual_encoder_of_a_leaf(column: Column, expected: Any):
    assert Recipe.of(usual_encoder("a", column)) == Recipe.of(expected)


@pytest.mark.parametrize(
    "column",
    [
        Column("uint8", (84, 84, 3)),
        Column("uint8", (84, 84, 1)),
        Column("uint8", (84, 84, 3), stack=4),
        Column("uint8", (2, 3, 8, 8)),
    ],
)
def test_images_in_another_order_of_axes_need_an_encoder_of_their_own(column: Column):
    with pytest.raises(ConfigError, match=r"the leaf 'eye' .* \(channels, height, width\)"):
        MultiEncoder({"eye": column})
    assert MultiEncoder({"eye": column}, {"eye": MLPEncoder}).num_features == 256


@pytest.mark.parametrize(("count", "expected"), [(256, OneHot), (257, MultiEncoder)])
def test_very_many_categories_are_looked_up_where_nothing_is_set(count: int, expected: type):
    agent = DQN(env_spec=EnvSpec({"": Column("int16", categories=(count,))}, ActionSpec((2,))))
    assert type(agent.online.encoder) is expected


@pytest.mark.parametrize(("count", "says"), [(999, ""), (1000, "1000 categories as one-hot")])
def test_many_categories_as_one_hot_numbers_are_told(count: int, says: str):
    encoder = build_encoder(Recipe.of(MLPEncoder), {"": Column("int16", categories=(count,))})
    assert encoder.choice.startswith(says)
    assert bool(encoder.choice) == bool(says)


def test_what_it_chose_is_told():
    multi = MultiEncoder(COLUMNS, {"camera": ConvEncoder})
    assert multi.choice == (
        "arm.mode (3 categories ()) MLPEncoder(hidden_sizes=(64,)); "
        "arm.position (float32 (2,)) MLPEncoder(hidden_sizes=(64,))"
    )


def test_what_the_encoder_of_a_leaf_says_is_told():
    many = {"a": Column("int16", categories=(2000,)), "b": Column("float32", (2,))}
    multi = MultiEncoder(many, {"a": MLPEncoder})
    assert multi.choice.startswith("a: 2000 categories as one-hot numbers (an Embed")
    assert multi.choice.endswith("cost); b (float32 (2,)) MLPEncoder(hidden_sizes=(64,))")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"encoders": {"eye": MLPEncoder}}, r"encoders names 'eye', but .*\['arm.mode', 'arm.pos"),
        ({"ignored": ["eye"]}, r"ignored names 'eye', but the leaves"),
        ({"ignored": ["camera"], "encoders": {"camera": MLPEncoder}}, "leave one of them out"),
        ({"ignored": list(COLUMNS)}, "all leaves"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, or null, got 0"),
        ({"hidden_size": None, "layer_norm": True}, "there is no layer to normalise"),
        ({"encoders": {"camera": ScalarHead}}, "encoders.camera must be a subclass of .*Encoder"),
        ({"encoders": {"camera": NatureEncoder}}, "leaf 'camera': .* needs observations of"),
        ({"encoders": {"camera": {"class_path": "lrl.networks.MLPEncoder", "init_args": {"a": 3}}}},
         "encoders.camera cannot be built: TypeError"),
    ],
)  # fmt: skip
def test_wrong_settings_are_told(settings: dict[str, Any], text: str):
    with pytest.raises(ConfigError, match=text):
        MultiEncoder(COLUMNS, **settings)


def spec() -> EnvSpec:
    return EnvSpec(COLUMNS, ActionSpec((2,)))


def network_recipe() -> NetworkRecipe:
    encoders = {"arm.position": functools.partial(FlatEncoder, factor=2.0)}
    encoder = functools.partial(MultiEncoder, encoders=encoders, ignored=["camera"])
    return NetworkRecipe(spec(), Recipe.of(encoder), Recipe.of(ScalarHead))


def test_a_recipe_with_encoders_in_it_pickles_and_fits_in_a_checkpoint(tmp_path):
    recipe = network_recipe()
    torch.manual_seed(0)
    network = recipe.build()
    torch.manual_seed(0)
    other = pickle.loads(pickle.dumps(recipe)).build()
    assert torch.equal(other.q_values(observation()), network.q_values(observation()))
    torch.save(recipe.encoder.as_dict(), tmp_path / "recipe")
    saved = torch.load(tmp_path / "recipe", weights_only=True)
    assert saved["init_args"]["encoders"]["arm.position"] == {
        "class_path": "helpers.tiny_networks.FlatEncoder", "init_args": {"factor": 2.0}
    }  # fmt: skip
    assert Recipe.of(saved) == recipe.encoder


def test_a_checkpoint_cannot_have_a_leaf_encoded_by_what_it_likes():
    evil = {"class_path": "os.system", "init_args": {}}
    data = {"class_path": "lrl.networks.MultiEncoder", "init_args": {"encoders": {"camera": evil}}}
    with pytest.raises(ConfigError, match=r"must be a class at the top level"):
        Recipe.of(data, "model.encoder", Encoder)
    evil["class_path"] = "subprocess.Popen"
    recipe = NetworkRecipe(spec(), Recipe.of(data), Recipe.of(ScalarHead))
    with pytest.raises(ConfigError, match=r"encoders\.camera must be a subclass of .*Encoder"):
        recipe.build()


def test_the_default_encoder_of_an_agent_fits_observations_with_leaves():
    agent = DQN(env_spec=spec())
    assert type(agent.online.encoder) is MultiEncoder
    assert agent.hparams["encoder"]["class_path"].endswith(".MultiEncoder")
    assert agent.act(observation()).shape == (2,)
    plain = DQN(env_spec=EnvSpec.box((3,), "float32", 2))
    assert type(plain.online.encoder) is MLPEncoder
    written_out = functools.partial(MLPEncoder, hidden_sizes=(120, 84), layer_norm=False)
    assert type(DQN(written_out, env_spec=spec()).online.encoder) is MultiEncoder
    with pytest.raises(ConfigError, match=r"MLPEncoder takes one array.*lrl\.networks\.MultiEnc"):
        DQN(functools.partial(MLPEncoder, hidden_sizes=(8,)), env_spec=spec())


def test_noise_norms_and_copies_reach_the_leaves():
    encoders = {name: functools.partial(MLPEncoder, noisy=True) for name in COLUMNS}
    head = functools.partial(ScalarHead, dueling=True)
    agent = DQN(functools.partial(MultiEncoder, encoders=encoders), head, env_spec=spec())
    assert sum(isinstance(layer, NoisyLinear) for layer in agent.online.modules()) == 3
    before = agent.online.q_values(observation())
    agent.online.sample_noise()
    assert not torch.equal(agent.online.q_values(observation()), before)
    twin = copy.deepcopy(agent.online)
    assert torch.equal(twin.q_values(observation()), agent.online.q_values(observation()))
