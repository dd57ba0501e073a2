"""A recurrent core between encoder and head, and what the network says of its memory."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_networks import FlatEncoder
from torch import Tensor

from lrl import DQN
from lrl.actors.policy import NetworkPolicy
from lrl.networks import GRUCore, LSTMCore, MLPEncoder, NetworkRecipe, RecurrentCore, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.types import Column, ConfigError, EnvSpec, Memory, RowKind, SequenceBatch
from lrl.video.film import FilmedPolicy

HIDDEN = {"hidden": Column("float32", (5,))}


@pytest.fixture
def recipe(tiny_spec: EnvSpec) -> NetworkRecipe:
    core = Recipe("lrl.networks.recurrent.GRUCore", {"hidden_size": 5})
    recipe = NetworkRecipe(tiny_spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead), core)
    return pickle.loads(pickle.dumps(recipe))


def test_the_network_says_what_it_remembers_before_it_is_built(recipe: NetworkRecipe):
    before = torch.get_rng_state()
    assert recipe.memory() == HIDDEN
    assert torch.equal(torch.get_rng_state(), before)
    assert recipe.build().memory == HIDDEN


def test_values_follow_from_observation_and_memory(recipe: NetworkRecipe):
    network: Any = recipe.build()
    observation, hidden = torch.randn(4, 2), torch.randn(4, 5)
    features, after = network.features(observation, {"hidden": hidden})
    expected = network.core.cell(network.encoder(observation), hidden)
    assert torch.equal(features, expected)
    assert torch.equal(after["hidden"], expected)
    q = network.q_values(observation, {"hidden": hidden})
    assert torch.equal(q, network.head.q_values(expected))
    assert torch.equal(network(observation, {"hidden": hidden}), network.head(expected))
    assert not torch.equal(q, network.q_values(observation, {"hidden": hidden + 1}))


def test_a_memory_that_is_left_out_is_asked_for(recipe: NetworkRecipe):
    with pytest.raises(ValueError, match="GRUCore needs what it remembered"):
        recipe.build().q_values(torch.zeros(1, 2))


def test_a_policy_goes_on_from_what_it_returned(recipe: NetworkRecipe):
    network: Any = recipe.build()
    policy = NetworkPolicy(network)
    memory, hidden = policy.begin(3), torch.zeros(3, 5)
    assert memory is not None
    np.testing.assert_array_equal(memory["hidden"], hidden)
    with torch.inference_mode():
        for step in range(4):
            observation = torch.full((3, 2), float(step))
            decision = policy(observation.numpy(), memory)
            hidden = network.core(network.encoder(observation), {"hidden": hidden})[0]
            memory = decision.memory
            assert memory is not None
            assert memory["hidden"].dtype == np.float32
            np.testing.assert_array_equal(memory["hidden"], hidden)
            np.testing.assert_array_equal(decision.values, network.head.q_values(hidden))


class Tally(RecurrentCore):
    """Remembers how many observations there were, and their sum: two columns, one of integers."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.memory = {"count": Column("int64"), "sum": Column("float32", (num_features,))}

    def forward(self, features: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, Memory]:
        after = {"count": memory["count"] + 1, "sum": memory["sum"] + features}
        return after["sum"] / after["count"][:, None], after


def test_a_core_may_remember_several_things_of_any_type(tiny_spec: EnvSpec):
    recipe = NetworkRecipe(
        tiny_spec, Recipe.of(FlatEncoder), Recipe.of(ScalarHead), Recipe.of(Tally)
    )
    policy = NetworkPolicy(recipe.build())
    memory = policy.begin(2)
    for step in (1.0, 2.0, 3.0):
        memory = policy(torch.full((2, 2), step).numpy(), memory).memory
    assert memory is not None
    assert {name: value.dtype.name for name, value in memory.items()} == {
        name: column.dtype for name, column in recipe.memory().items()
    }
    assert memory["count"].tolist() == [3, 3]
    assert memory["sum"].tolist() == [[6.0, 6.0]] * 2


def test_a_filmed_policy_expects_what_the_policy_does(recipe: NetworkRecipe):
    network = recipe.build()
    policy, filmed = NetworkPolicy(network), FilmedPolicy(network)
    for _ in range(2):
        memory = policy.begin(1)
        filmed.begin()
        for step in range(3):
            observation = np.full((1, 2), step, np.float32)
            values, _, memory = policy(observation, memory)
            np.testing.assert_array_equal(filmed(observation).q, values[0])


def test_a_policy_without_a_core_remembers_nothing(tiny_spec: EnvSpec):
    network = NetworkRecipe(tiny_spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead)).build()
    policy = NetworkPolicy(network)
    assert policy.begin(2) is None
    assert policy(np.zeros((2, 2), np.float32)).memory is None


def test_a_wrong_core_is_named(tiny_spec: EnvSpec):
    with pytest.raises(ConfigError, match=r"core\.hidden_size must be at least 1, got 0"):
        GRUCore(3, hidden_size=0)
    wrong: Any = ScalarHead
    with pytest.raises(ConfigError, match=r"model\.core must be a subclass"):
        DQN(core=wrong, env_spec=tiny_spec)


def test_the_agent_s_specification_has_what_it_remembers(tiny_spec: EnvSpec):
    agent = DQN(core=GRUCore, env_spec=tiny_spec)
    assert agent.env_spec is not None
    assert agent.env_spec.memory == {"hidden": Column("float32", (128,))}
    again = DQN(**agent.hparams)
    assert again.network_recipe == agent.network_recipe
    assert DQN(env_spec=agent.env_spec).network_recipe.env_spec == tiny_spec


CORES = {
    GRUCore: {"hidden_size": 5},
    LSTMCore: {"hidden_size": 5},
    Tally: {},
}
STEP, BOUNDARY, PREFIX = RowKind.STEP, RowKind.BOUNDARY, RowKind.PREFIX


def sequences(kinds: list[list[int]], memory: Memory, burn_in: int = 0) -> SequenceBatch:
    """Rows of these kinds with random observations; what is learnt from them does not matter."""
    kind = torch.tensor(kinds, dtype=torch.uint8)
    batch, time = kind.shape
    nothing = torch.zeros(batch, time - burn_in)
    return SequenceBatch(
        kind=kind, frame=torch.randn(batch, time, 2), action=nothing.long(), reward=nothing,
        discount=nothing, next_row=nothing.long(), learns=nothing.bool(),
        weights=torch.ones(batch), keys=torch.zeros(batch, 2).long(), burn_in=burn_in,
        memory=memory,
    )  # fmt: skip


def random_kinds(episode_ends: float, batch: int = 6, time: int = 12) -> list[list[int]]:
    rng = np.random.default_rng(3)
    share = [1 - episode_ends, 0.7 * episode_ends, 0.3 * episode_ends]
    return rng.choice([STEP, BOUNDARY, PREFIX], (batch, time), p=share).tolist()


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("episode_ends", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("burn_in", [0, 4])
def test_sequences_are_what_a_policy_would_have_seen_step_by_step(
    tiny_spec: EnvSpec, core: type[RecurrentCore], episode_ends: float, burn_in: int
):
    """With no end, few and many: torch unrolls all at once, in pieces, or step by step."""
    torch.manual_seed(0)
    made = NetworkRecipe(
        tiny_spec, Recipe.of(FlatEncoder), Recipe.of(ScalarHead),
        Recipe.of(functools.partial(core, **CORES[core])),
    )  # fmt: skip
    network: Any = made.build()
    kinds = random_kinds(episode_ends)
    memory = {
        name: torch.randn(6, *column.shape).to(getattr(torch, column.dtype))
        for name, column in network.memory.items()
    }
    batch = sequences(kinds, memory, burn_in)
    found = network.unroll(batch)
    assert found.shape == (6, 12 - burn_in, network.core.num_features)
    expected = []
    for row in range(12):
        features, memory = network.core(network.encoder(batch.observation[:, row]), memory)
        expected.append(features)
        goes_on = torch.tensor([each[row] == STEP for each in kinds])
        memory = {
            name: value * goes_on.view(-1, *[1] * (value.ndim - 1))
            for name, value in memory.items()
        }
    torch.testing.assert_close(found, torch.stack(expected[burn_in:], dim=1))


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_an_lstm_begins_to_forget_as_its_bias_says(bias: float):
    core = LSTMCore(2, hidden_size=4, forget_bias=bias)
    with torch.no_grad():
        core.cell.weight_ih.zero_()
        core.cell.weight_hh.zero_()
        core.cell.bias_ih[8:12] = core.cell.bias_hh[8:12] = 0.0  # nothing new is written
        _, memory = core(torch.zeros(1, 2), {"hidden": torch.zeros(1, 4), "cell": torch.ones(1, 4)})
    kept = 1 / (1 + np.exp(-bias))
    np.testing.assert_allclose(memory["cell"], np.full((1, 4), kept), rtol=1e-6)


def test_no_gradient_goes_into_the_burn_in_or_across_episodes(tiny_spec: EnvSpec):
    made = NetworkRecipe(
        tiny_spec, Recipe.of(FlatEncoder), Recipe.of(ScalarHead),
        Recipe("lrl.networks.LSTMCore", {"hidden_size": 5}),
    )  # fmt: skip
    network = made.build()
    memory = {name: torch.randn(1, 5) for name in ("hidden", "cell")}
    batch: Any = sequences([[STEP, STEP, STEP, STEP, BOUNDARY, STEP]], memory, burn_in=2)
    frame: Any = batch.frame
    frame.requires_grad_()
    network.unroll(batch)[:, 2:].sum().backward(retain_graph=True)  # rows 4 and 5
    seen = frame.grad[0].abs().sum(dim=1) > 0
    assert seen.tolist() == [False, False, True, True, True, True]
    frame.grad.zero_()
    network.unroll(batch)[:, 3].sum().backward()
    seen = frame.grad[0].abs().sum(dim=1) > 0
    assert seen.tolist() == [False] * 5 + [True]


def test_without_a_core_the_rows_of_the_burn_in_are_left_out(tiny_spec: EnvSpec):
    network = NetworkRecipe(tiny_spec, Recipe.of(FlatEncoder), Recipe.of(ScalarHead)).build()
    batch = sequences([[STEP] * 5] * 2, {}, burn_in=2)
    assert torch.equal(network.unroll(batch), batch.observation[:, 2:])


def test_a_stack_is_made_of_frames_that_are_there_once():
    frames = torch.arange(12.0).view(2, 6, 1)
    batch = sequences([[STEP] * 4] * 2, {})
    stacked = SequenceBatch(**{**vars(batch), "frame": {"stacked": frames, "alone": frames[:, 2:]}})
    assert stacked.observation["stacked"].shape == (2, 4, 3, 1)
    assert stacked.observation["stacked"][1, 2, :, 0].tolist() == [8.0, 9.0, 10.0]
    assert stacked.observation["stacked"].data_ptr() == frames.data_ptr()
    assert torch.equal(stacked.observation["alone"], frames[:, 2:])
