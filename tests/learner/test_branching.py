"""Several branches: targets and losses computed by hand, and every head with every rule."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from helpers.tiny_networks import FlatEncoder, make_batch, set_weights
from torch import Tensor, nn

from lrl.learner import BootstrapRule, DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.learner.bootstrap import NextValues
from lrl.learner.branching import branched_loss, branched_target
from lrl.learner.dqn import DQN
from lrl.networks import (
    BellmanTarget,
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    MLPEncoder,
    QuantileHead,
    ScalarHead,
    TDLoss,
)
from lrl.networks.quantile_heads import Quantiles
from lrl.types import ActionSpec, Batch, EnvSpec

BRANCHES = ActionSpec((2, 3))
SPEC = replace(EnvSpec.box((2,), "float32", 5), action=BRANCHES)
MASKED = replace(SPEC, action=replace(BRANCHES, masks=True))
ONE = make_batch([[1, 0]], [[1, 0]], [1.0], [0.5], [[0, 1]])  # pyright: ignore[reportArgumentType]
NEXT_Q = torch.tensor([[0.0, 4.0, 1.0, 7.0, 2.0]])
"""The best choices are 1 and 1."""


def target_of(
    rule: BootstrapRule, batch: Batch = ONE, values: Any = NEXT_Q, **known: Tensor
) -> BellmanTarget:
    known = {"next_q": NEXT_Q, **known}
    return branched_target(rule, batch, NextValues(values, **known), BRANCHES)


def expected(target: BellmanTarget) -> Tensor:
    """Return the value of a target whose next values are numbers."""
    bonus = 0.0 if target.next_bonus is None else target.next_bonus
    mixed = (target.next_policy * (target.next_values + bonus)).sum(dim=1)
    return target.reward + target.discount * mixed


# --- Targets --------------------------------------------------------------------------------


def test_the_best_choices_of_all_branches_count_alike():
    target = target_of(MaxBootstrap())
    assert target.next_policy.tolist() == [[0.0, 0.5, 0.0, 0.5, 0.0]]
    assert expected(target).tolist() == [1.0 + 0.5 * (4 + 7) / 2]
    assert target.next_bonus is None


def test_each_branch_is_chosen_by_the_online_network_and_valued_by_the_target_network():
    online = torch.tensor([[9.0, 0.0, 0.0, 0.0, 9.0]])
    target = target_of(DoubleBootstrap(), online_next_q=online)
    assert expected(target).tolist() == [1.0 + 0.5 * (0 + 2) / 2]


def test_only_allowed_choices_of_each_branch_are_believed_in():
    mask = torch.tensor([[True, False, True, False, True]])
    target = target_of(MaxBootstrap(), replace(ONE, next_action_mask=mask))
    assert expected(target).tolist() == [1.0 + 0.5 * (0 + 2) / 2]


def test_munchausen_pays_the_mean_of_its_bonuses():
    """With equal values each branch's policy is uniform, and entropy pays back what it costs."""
    q, next_q = torch.zeros(1, 5), torch.tensor([[2.0, 2.0, 3.0, 3.0, 3.0]])
    rule = MunchausenBootstrap(alpha=0.5, temperature=1.0, clip=-10.0)
    target = target_of(rule, values=next_q, next_q=next_q, q=q)
    half, third = 1 / 2, 1 / 3
    torch.testing.assert_close(
        target.next_policy, torch.tensor([[half, half, third, third, third]]) / 2
    )
    mean = (math.log(2) + math.log(3)) / 2
    torch.testing.assert_close(target.reward, torch.tensor([1.0 - 0.5 * mean]))
    torch.testing.assert_close(expected(target), torch.tensor([1.0 + 0.5 * 2.5]))


def test_a_rule_sees_one_branch_at_a_time():
    class Noting(BootstrapRule):
        needs_next_q = True
        seen: list[tuple[list, list, Tensor | None]] = []  # noqa: RUF012

        def target(self, batch: Batch, next_values: NextValues) -> BellmanTarget:
            assert next_values.next_q is not None
            assert batch.next_action_mask is not None
            self.seen.append((batch.action.tolist(), next_values.next_q.tolist(), next_values.q))
            policy = batch.next_action_mask.float()
            return BellmanTarget(batch.reward, batch.discount, next_values.values, policy)

    mask = torch.tensor([[True, False, False, True, False]])
    rule = Noting()
    target = target_of(rule, replace(ONE, next_action_mask=mask))
    assert rule.seen == [([1], [[0.0, 4.0]], None), ([0], [[1.0, 7.0, 2.0]], None)]
    assert target.next_policy.tolist() == [[0.5, 0.0, 0.0, 0.5, 0.0]]


# --- Losses ---------------------------------------------------------------------------------


def test_the_loss_is_the_mean_and_the_priority_the_sum_over_branches():
    head = ScalarHead(2, 5)
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]], requires_grad=True)
    td = branched_loss(head, values, ONE.action, target_of(MaxBootstrap()), BRANCHES)
    assert td.target.tolist() == [3.75]  # 2 and 3 were predicted
    assert td.loss.tolist() == [(0.5 * 1.75**2 + 0.5 * 0.75**2) / 2]
    assert td.priority.tolist() == [1.75 + 0.75]
    assert td.prediction.tolist() == [2.5]
    td.loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, -1.75 / 2, -0.75 / 2, 0.0, 0.0]]


@pytest.mark.parametrize("head", [QuantileHead, ImplicitQuantileHead])
def test_quantiles_of_the_choices_are_mixed_level_by_level(head: Any):
    quantiles = torch.zeros(1, 5, 2)
    quantiles[0, 1] = torch.tensor([1.5, 3.5])  # of the choice 1 in the first branch
    following = torch.zeros(1, 5, 2)
    following[0, 1], following[0, 3] = torch.tensor([0.0, 4.0]), torch.tensor([2.0, 6.0])
    taus = torch.tensor([[0.25, 0.75]])
    target = target_of(MaxBootstrap(), values=Quantiles(following, taus))
    td = branched_loss(
        head(2, 5, num_quantiles=2, kappa=0.0), Quantiles(quantiles, taus), ONE.action, target,
        BRANCHES,
    )  # fmt: skip
    # Mixed they are 1 and 5, the target 1.5 and 3.5. The first branch predicts that, which costs
    # 0.25 for each level; the second predicts 0, which costs 0.25 and 0.75 of 2.5 in the mean.
    torch.testing.assert_close(td.loss, torch.tensor([(0.5 + 2.5) / 2]))
    torch.testing.assert_close(td.priority, torch.tensor([0.0 + 2.5]))
    assert td.target.tolist() == [2.5]


def test_atoms_of_the_choices_share_the_target():
    head = CategoricalHead(2, 5, num_atoms=3, v_min=0.0, v_max=2.0)
    following = torch.full((1, 5, 3), -1e9)
    following[0, 1, 2] = following[0, 3, 0] = 0.0  # certainly 2, and certainly 0
    following[0, [0, 2, 4]] = 0.0
    batch = replace(ONE, reward=torch.zeros(1))
    target = target_of(MaxBootstrap(), batch, following)
    logits = torch.zeros(1, 5, 3)
    logits[0, 2] = torch.tensor([0.25, 0.5, 0.25]).log()
    td = branched_loss(head, logits, ONE.action, target, BRANCHES)
    # The target is 0 or 1, each with probability 1/2.
    first, second = math.log(3), -0.5 * math.log(0.25) - 0.5 * math.log(0.5)
    torch.testing.assert_close(td.loss, torch.tensor([(first + second) / 2]))
    torch.testing.assert_close(td.priority, torch.tensor([first + second - 2 * math.log(2)]))
    torch.testing.assert_close(td.target, torch.tensor([0.5]))


def test_one_branch_is_not_touched():
    head, batch = ScalarHead(2, 5), replace(ONE, action=torch.tensor([3]))
    values, spec = torch.randn(1, 5), ActionSpec((5,))
    known = NextValues(NEXT_Q, NEXT_Q)
    target = branched_target(MaxBootstrap(), batch, known, spec)
    assert target.next_policy.tolist() == [[0, 0, 0, 1, 0]]
    td = branched_loss(head, values, batch.action, target, spec)
    assert all(map(torch.equal, td, head.td_loss(values, batch.action, target)))


# --- Networks and agents --------------------------------------------------------------------


def test_dueling_branches_share_the_value_and_centre_their_own_advantages():
    head = ScalarHead(4, 5, dueling=True)
    head.set_branches((2, 3))
    features = torch.randn(6, 4)
    assert head.layers.value is not None
    value = head.layers.value(features)
    for part in BRANCHES.split(head.q_values(features)):
        torch.testing.assert_close(part.mean(dim=1, keepdim=True), value)


HEADS: dict[type[Head], dict[str, Any]] = {
    ScalarHead: {},
    CategoricalHead: {"num_atoms": 11},
    QuantileHead: {"num_quantiles": 5},
    ImplicitQuantileHead: {"num_quantiles": 5, "num_target_quantiles": 4, "embedding_size": 6},
}
RULES = (MaxBootstrap, DoubleBootstrap, MunchausenBootstrap)
ALL = list(itertools.product(HEADS, RULES, (False, True)))


def build(head: type[Head], rule: type[BootstrapRule], dueling: bool, spec: EnvSpec = SPEC) -> DQN:
    torch.manual_seed(0)
    settings = {**HEADS[head], "dueling": dueling, "noisy": dueling, "hidden_size": 8}
    agent = DQN(
        functools.partial(MLPEncoder, hidden_sizes=(8,)), functools.partial(head, **settings),
        rule, env_spec=spec,
    )  # fmt: skip
    agent.target.load_state_dict(agent.network_recipe.build().state_dict())
    return agent


def random_batch(size: int = 8, masks: bool = False) -> Batch:
    rng = torch.Generator().manual_seed(0)
    actions = [torch.randint(n, (size,), generator=rng) for n in BRANCHES.branches]
    batch = make_batch(
        torch.randn(size, 2, generator=rng).tolist(),
        torch.stack(actions, dim=1).tolist(),  # pyright: ignore[reportArgumentType]
        torch.randn(size, generator=rng).tolist(),
        (0.9 * torch.randint(2, (size,), generator=rng)).tolist(),
        torch.randn(size, 2, generator=rng).tolist(),
        torch.rand(size, generator=rng).tolist(),
    )
    if not masks:
        return batch
    mask = torch.rand(size, 5, generator=rng) < 0.5
    mask[:, 0] = mask[:, 4] = True
    return replace(batch, action_mask=torch.ones(size, 5, dtype=torch.bool), next_action_mask=mask)


def step(agent: Any, batch: Batch) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return agent.training_step(batch, 0)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(("head", "rule", "dueling"), ALL)
def test_every_head_learns_in_branches_by_every_rule(head, rule, dueling, masks):
    agent, batch = build(head, rule, dueling, MASKED if masks else SPEC), random_batch(32, masks)
    assert agent(batch.observation).shape == (32, 5)
    result = step(agent, batch)
    assert result["loss"].isfinite()
    assert result["priorities"].shape == (32,)
    assert result["priorities"].isfinite().all()
    result["loss"].backward()
    for name, parameter in agent.online.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    spec = agent.env_spec
    assert spec is not None
    features = agent.target.features(batch.next_observation)[0]
    values, next_q = agent.target.head.target_and_q_values(features)
    known = NextValues(values, next_q, next_q, next_q)
    policy = branched_target(agent.bootstrap, batch, known, spec.action).next_policy
    torch.testing.assert_close(policy.sum(dim=1), torch.ones(32))
    for part in spec.action.split(policy):
        torch.testing.assert_close(part.sum(dim=1), torch.full((32,), 0.5))


@pytest.mark.parametrize("head", HEADS)
def test_actors_copies_know_the_branches(head):
    agent = build(head, MaxBootstrap, dueling=True)
    copy = agent.network_recipe.build()
    copy.load_state_dict(agent.online.state_dict())
    observation = torch.randn(5, 2)
    assert torch.equal(copy.eval().q_values(observation), agent.eval()(observation))
    loaded = DQN(**dict(agent.hparams))
    loaded.load_state_dict(agent.state_dict())
    assert torch.equal(loaded.eval()(observation), agent(observation))


@pytest.mark.parametrize(
    "head", [CategoricalHead, pytest.param(ScalarHead, marks=pytest.mark.slow)]
)
def test_compiled_and_eager_steps_are_equal(head, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    agent, batch = build(head, MunchausenBootstrap, dueling=True), random_batch(masks=True)
    torch.compiler.reset()
    compiled = torch.compile(agent.training_step, backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(batch, 0)["loss"], step(agent, batch)["loss"])


def test_the_agent_chooses_in_each_branch_and_counts_what_was_greedy():
    agent = DQN(FlatEncoder, env_spec=SPEC)
    set_weights(agent.online, [[1, 0], [0, 1], [0, 3], [2, 2], [3, 0]])
    observation = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert agent.act(observation).tolist() == [[0, 2], [1, 0]]
    mask = torch.tensor([[False, True, True, True, False], [True, False, True, True, True]])
    assert agent.act(observation, mask).tolist() == [[1, 1], [0, 0]]


class PlainHead(Head):
    """Knows of no branches."""

    def __init__(self, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features)

    def expected_values(self, values: Tensor) -> Tensor:
        return values

    def td_loss(self, values: Tensor, action: Tensor, target: BellmanTarget) -> TDLoss:
        prediction = values.gather(1, action[:, None])[:, 0]
        next_value = (target.next_policy * target.next_values).sum(dim=1)
        goal = target.reward + target.discount * next_value
        error = (prediction - goal).abs()
        return TDLoss(0.5 * error.square(), error.detach(), prediction.detach(), goal)


@pytest.mark.parametrize("rule", [MaxBootstrap, DoubleBootstrap])
def test_a_head_that_takes_every_action_by_itself_need_not_know(rule):
    plain, own = (DQN(FlatEncoder, head, rule, env_spec=SPEC) for head in (PlainHead, ScalarHead))
    for one, other in ((plain.online, own.online), (plain.target, own.target)):
        one.load_state_dict(dict(zip(one.state_dict(), other.state_dict().values(), strict=True)))
    batch = random_batch()
    torch.testing.assert_close(step(plain, batch), step(own, batch))
