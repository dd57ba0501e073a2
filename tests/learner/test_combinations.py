"""Every head with every bootstrap rule, dueling and noisy or not: what all of them must do."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from helpers.tiny_networks import random_batch
from torch import Tensor

from lrl.learner import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
    NoBootstrap,
)
from lrl.learner.dqn import DQN
from lrl.networks import (
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    MLPEncoder,
    NoisyLinear,
    QuantileHead,
    ScalarHead,
)
from lrl.networks.q_network import read_vector, weights_of
from lrl.types import Batch, EnvSpec

ENCODER = functools.partial(MLPEncoder, hidden_sizes=(8,))
HEADS: dict[type[Head], dict[str, Any]] = {
    ScalarHead: {},
    CategoricalHead: {"num_atoms": 11},
    QuantileHead: {"num_quantiles": 5},
    ImplicitQuantileHead: {"num_quantiles": 5, "num_target_quantiles": 4, "embedding_size": 6},
}
RULES = (MaxBootstrap, DoubleBootstrap, MunchausenBootstrap)


class Combination(NamedTuple):
    head: type[Head]
    rule: type[BootstrapRule]
    dueling: bool
    noisy: bool

    def build(self, spec: EnvSpec) -> DQN:
        """Return an agent whose two networks differ, as they do while it learns."""
        torch.manual_seed(0)
        switches = {"dueling": self.dueling, "noisy": self.noisy}
        head = functools.partial(self.head, hidden_size=8, **HEADS[self.head], **switches)
        agent = DQN(ENCODER, head, self.rule, env_spec=spec)
        agent.target.load_state_dict(agent.network_recipe.build().state_dict())
        return agent

    def __str__(self) -> str:
        switches = [name for name in ("dueling", "noisy") if getattr(self, name)]
        return "-".join([self.head.__name__, self.rule.__name__, *switches])


ALL = [Combination(*each) for each in itertools.product(HEADS, RULES, (False, True), (False, True))]
# Each row draws levels of its own in the implicit head.
DETERMINISTIC = [combination for combination in ALL if combination.head is not ImplicitQuantileHead]
# Compiling is slow: these have every head, rule and switch.
SOME = [
    Combination(ScalarHead, DoubleBootstrap, dueling=True, noisy=True),
    Combination(CategoricalHead, DoubleBootstrap, dueling=True, noisy=True),
    Combination(QuantileHead, MaxBootstrap, dueling=False, noisy=False),
    Combination(ImplicitQuantileHead, MunchausenBootstrap, dueling=True, noisy=True),
]
# With the slow ones, every head meets both switches in all ways, and each rule.
MORE = [
    Combination(head, RULES[(first + index) % 3], *switches)
    for first, head in enumerate(HEADS)
    for index, switches in enumerate(itertools.product((False, True), repeat=2))
]
COMPILED = [*SOME, *(pytest.param(c, marks=pytest.mark.slow) for c in MORE if c not in SOME)]
every_combination = pytest.mark.parametrize("combination", ALL, ids=str)
every_max_combination = pytest.mark.parametrize(
    "combination", [each for each in ALL if each.rule is MaxBootstrap], ids=str
)


def step(agent: Any, batch: Batch) -> dict[str, Tensor]:
    """Return what a training step says; its noise and levels are the same every time."""
    torch.manual_seed(1)
    return agent.training_step(batch, 0)


@every_combination
def test_shapes_and_numbers(combination: Combination, tiny_spec: EnvSpec):
    agent, batch = combination.build(tiny_spec), random_batch()
    q = agent(batch.observation)
    assert q.shape == (8, 2)
    result = step(agent, batch)
    assert result["loss"].shape == ()
    assert result["priorities"].shape == (8,)
    assert result["keys"] is batch.keys
    for number in (q, result["loss"], result["priorities"]):
        assert number.isfinite().all()
    assert result["priorities"].min() >= 0.0
    noisy = sum(isinstance(module, NoisyLinear) for module in agent.online.modules())
    assert noisy == (2 * (1 + combination.dueling) if combination.noisy else 0)


@every_combination
def test_every_parameter_learns_and_the_target_network_does_not(
    combination: Combination, tiny_spec: EnvSpec
):
    agent = combination.build(tiny_spec)
    agent.target.requires_grad_()  # as if nothing but the code kept gradients out
    step(agent, random_batch(32))["loss"].backward()
    for name, parameter in agent.online.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert all(parameter.grad is None for parameter in agent.target.parameters())


@every_combination
def test_importance_weights_act_linearly_and_on_the_loss_alone(
    combination: Combination, tiny_spec: EnvSpec
):
    """Elsewhere a loss ignores them, or takes them before its knee."""
    agent, batch = combination.build(tiny_spec), random_batch()
    first, second = batch.weights, batch.weights.flip(0)

    def results(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        agent.zero_grad()
        result = step(agent, replace(batch, weights=weights))
        result["loss"].backward()
        gradients = [p.grad.flatten() for p in agent.online.parameters() if p.grad is not None]
        return result["loss"].detach(), torch.cat(gradients), result["priorities"]

    one, two, both = results(first), results(second), results(3.0 * first + second)
    for index in range(2):  # loss and gradient
        expected = 3.0 * one[index] + two[index]
        torch.testing.assert_close(both[index], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(both[2], one[2])


@every_combination
def test_the_target_is_taken_where_the_batch_says_and_only_if_nothing_terminated(
    combination: Combination, tiny_spec: EnvSpec
):
    """Elsewhere n-step rewards meet the distribution of one step on, or bootstrap past an end."""
    agent, batch = combination.build(tiny_spec), random_batch()
    moved = replace(batch, next_observation=batch.next_observation + 1.0)
    change = step(agent, moved)["priorities"] - step(agent, batch)["priorities"]
    changed = change.abs() > 1e-5  # sums of other probabilities round differently
    assert changed.tolist() == (batch.discount > 0.0).tolist()
    assert 0 < changed.sum() < 8


@pytest.mark.parametrize("combination", DETERMINISTIC, ids=str)
def test_the_order_of_a_batch_does_not_matter(combination: Combination, tiny_spec: EnvSpec):
    agent, batch, order = combination.build(tiny_spec), random_batch(), torch.arange(7, -1, -1)
    parts = {name: part[order] for name, part in vars(batch).items() if part is not None}
    straight, other = step(agent, batch), step(agent, replace(batch, **parts))
    torch.testing.assert_close(other["loss"], straight["loss"])
    torch.testing.assert_close(other["priorities"], straight["priorities"][order])


@pytest.fixture(params=["all", "masked"])
def batch(request: pytest.FixtureRequest) -> Batch:
    """Random transitions; if masked, the one action, the other or both are allowed after them."""
    batch = random_batch(32)
    if request.param == "all":
        return batch
    both = torch.ones(32, 2, dtype=torch.bool)
    next_mask = torch.tensor([[True, False], [False, True], [True, True], [True, True]])
    return replace(batch, action_mask=both, next_action_mask=next_mask.repeat(8, 1))


@every_max_combination
def test_double_with_equal_networks_equals_max(
    combination: Combination, batch: Batch, tiny_spec: EnvSpec
):
    plain = combination.build(tiny_spec)
    double = combination._replace(rule=DoubleBootstrap).build(tiny_spec)
    for agent in (plain, double):
        agent.target = agent.online  # the noise is the same, too
    result, expected = step(double, batch), step(plain, batch)
    assert torch.equal(result["loss"], expected["loss"])
    assert torch.equal(result["priorities"], expected["priorities"])


@every_max_combination
def test_cold_munchausen_without_its_bonus_equals_max(
    combination: Combination, batch: Batch, tiny_spec: EnvSpec
):
    plain = combination.build(tiny_spec)
    munchausen = combination._replace(rule=MunchausenBootstrap).build(tiny_spec)
    assert step(munchausen, batch)["loss"] != step(plain, batch)["loss"]
    munchausen.bootstrap = MunchausenBootstrap(alpha=0.0, temperature=1e-6)
    result, expected = step(munchausen, batch), step(plain, batch)
    for name in ("loss", "priorities"):
        torch.testing.assert_close(result[name], expected[name], rtol=1e-5, atol=1e-5)


@every_max_combination
def test_without_bootstrapping_every_head_learns_the_rewards(
    combination: Combination, tiny_spec: EnvSpec
):
    agent = combination._replace(rule=NoBootstrap).build(tiny_spec)
    batch = replace(random_batch(), next_observation=None, discount=torch.zeros(8))
    losses = agent.updater.losses(batch)
    torch.testing.assert_close(losses.td.target, batch.reward)
    losses.loss.backward()
    assert all(parameter.grad is not None for parameter in agent.online.parameters())


@every_combination
def test_checkpoint_round_trip(combination: Combination, tiny_spec: EnvSpec):
    agent, file = combination.build(tiny_spec), io.BytesIO()
    step(agent, random_batch())  # draws noise, which stays out of the file
    content = {"state_dict": agent.state_dict(), "hyper_parameters": dict(agent.hparams)}
    torch.save(content, file)
    file.seek(0)
    content = torch.load(file, weights_only=True)
    assert not [name for name in content["state_dict"] if name.endswith("_noise")]
    loaded = DQN(**content["hyper_parameters"])
    loaded.load_state_dict(content["state_dict"])
    assert dict(loaded.hparams) == dict(agent.hparams)
    assert torch.equal(step(loaded, random_batch())["loss"], step(agent, random_batch())["loss"])
    observation = torch.randn(5, 2)
    assert torch.equal(loaded.eval()(observation), agent.eval()(observation))


@every_combination
def test_an_actor_has_the_same_values_as_the_learner(combination: Combination, tiny_spec: EnvSpec):
    agent = combination.build(tiny_spec)
    step(agent, random_batch())
    vector = weights_of(agent.online)
    actor = agent.network_recipe.build()
    read_vector(actor, vector)
    observation = torch.randn(5, 2)
    noisy = agent.online.q_values(observation)
    q = agent.online.eval().q_values(observation)
    assert torch.equal(actor.eval().q_values(observation), q)
    assert torch.equal(noisy, q) != combination.noisy


@pytest.mark.parametrize("combination", COMPILED, ids=str)
def test_compiled_and_eager_steps_are_equal(
    combination: Combination, tiny_spec: EnvSpec, monkeypatch: pytest.MonkeyPatch
):
    """The whole step is one graph: nothing in it waits for a number."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    eager, batch = combination.build(tiny_spec), random_batch()
    compiled = copy.deepcopy(eager)
    torch.compiler.reset()
    run = torch.compile(compiled.training_step, backend="aot_eager", fullgraph=True)
    results = []
    for training_step in (eager.training_step, run):
        torch.manual_seed(1)
        results.append(training_step(batch, 0))
        results[-1]["loss"].backward()
    torch.testing.assert_close(results[1], results[0])
    for one, other in zip(eager.online.parameters(), compiled.online.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
