import pytest
import torch
from helpers.tiny_networks import FlatEncoder, linear_dqn, make_batch, random_batch, set_weights
from hypothesis import given
from hypothesis import strategies as st

from lrl.learner.bootstrap import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
    NextValues,
    NoBootstrap,
    ask_target,
)
from lrl.networks import QNetwork, ScalarHead
from lrl.networks.heads import BellmanTarget
from lrl.types import Batch, ConfigError, EnvSpec

NEXT = [[3.0, 2.0], [1.0, 4.0]]


def network(weight: list[list[float]]) -> QNetwork:
    network = QNetwork(FlatEncoder((2,)), ScalarHead(2, len(weight)))
    set_weights(network, weight)
    return network


def target_of(
    rule: BootstrapRule, batch: Batch, online: QNetwork, target: QNetwork
) -> BellmanTarget:
    (next_values,) = ask_target(rule, target, batch)
    next_q = online.q_values(batch.next_observation)
    return rule.target(batch, next_values._replace(online_next_q=next_q))


def batch(**masks: torch.Tensor) -> Batch:
    made = make_batch([[1.0, 0.0], [0.0, 1.0]], [1, 0], [0.5, -0.5], [0.9, 0.0], NEXT)
    return Batch(**{**vars(made), **masks})


ONLINE = [[1.0, 0.0], [0.0, 1.0]]  # q of the next observations = (3, 2) and (1, 4)
TARGET = [[0.0, 1.0], [1.0, 0.0]]  # q of the next observations = (2, 3) and (4, 1)


@pytest.mark.parametrize(
    ("rule", "policy"), [(MaxBootstrap(), [[0, 1], [1, 0]]), (DoubleBootstrap(), [[1, 0], [0, 1]])]
)
def test_rules_ask_different_networks(rule: BootstrapRule, policy: list[list[int]]):
    target = target_of(rule, batch(), network(ONLINE), network(TARGET))
    assert target.next_policy.tolist() == policy
    assert target.next_values.tolist() == [[2.0, 3.0], [4.0, 1.0]]  # always of the target network
    assert target.reward.tolist() == [0.5, -0.5]
    assert target.discount.tolist() == pytest.approx([0.9, 0.0])
    assert target.next_bonus is None


@pytest.mark.parametrize("rule", [MaxBootstrap(), DoubleBootstrap(), MunchausenBootstrap()])
def test_no_rule_believes_in_an_action_that_is_not_allowed(rule: BootstrapRule):
    allowed = torch.tensor([[True, False], [False, True]])
    masks = {"action_mask": torch.ones(2, 2, dtype=torch.bool), "next_action_mask": allowed}
    target = target_of(rule, batch(**masks), network(ONLINE), network(TARGET))
    assert target.next_policy.tolist() == [[1, 0], [0, 1]]
    if target.next_bonus is not None:
        assert target.next_bonus.isfinite().all()
        assert target.next_bonus.tolist() == [[0, 0], [0, 0]]


def test_munchausen_by_hand():
    rule = MunchausenBootstrap(0.5, temperature=1.0, clip=-0.6)
    target = target_of(rule, batch(), network(ONLINE), network(TARGET))
    policy = torch.tensor([[2.0, 3.0], [4.0, 1.0]]).softmax(1)
    torch.testing.assert_close(target.next_policy, policy)
    torch.testing.assert_close(target.next_bonus, -policy.log())
    # q of the observations = (0, 1) and (1, 0); actions 1 and 0 are taken, both with
    # log-probability -0.3133, above the bound of -0.6.
    expected = torch.tensor([0.5, -0.5]) + 0.5 * torch.tensor([0.0, 1.0]).log_softmax(0)[1]
    torch.testing.assert_close(target.reward, expected)
    rule = MunchausenBootstrap(0.5, temperature=1.0, clip=-0.1)
    clipped = target_of(rule, batch(), network(ONLINE), network(TARGET))
    torch.testing.assert_close(clipped.reward, torch.tensor([0.45, -0.55]))


@pytest.mark.parametrize("seed", range(5))
def test_cold_munchausen_without_bonus_is_max(seed: int):
    torch.manual_seed(seed)
    online, target = network([[0.0, 0.0]] * 4), QNetwork(FlatEncoder((2,)), ScalarHead(2, 4))
    cold = MunchausenBootstrap(alpha=0.0, temperature=1e-6)
    with torch.no_grad():
        soft, hard = (
            target_of(cold, random_batch(), online, target),
            target_of(MaxBootstrap(), random_batch(), online, target),
        )
    assert torch.equal(soft.next_policy, hard.next_policy)
    assert torch.equal(soft.reward, hard.reward)
    assert soft.next_bonus is not None
    assert (soft.next_policy * soft.next_bonus).abs().max() < 1e-5


@given(st.integers(0, 1000))
def test_double_with_equal_networks_is_max(seed: int):
    torch.manual_seed(seed)
    online = QNetwork(FlatEncoder((2,)), ScalarHead(2, 4))
    double = target_of(DoubleBootstrap(), random_batch(), online, online)
    plain = target_of(MaxBootstrap(), random_batch(), online, online)
    assert torch.equal(double.next_policy, plain.next_policy)


def test_with_equal_networks_both_agents_have_the_same_loss(tiny_spec: EnvSpec):
    torch.manual_seed(0)
    plain = linear_dqn(tiny_spec)
    double = linear_dqn(tiny_spec, bootstrap=DoubleBootstrap)
    double.load_state_dict(plain.state_dict())
    losses = [agent.training_step(random_batch(), 0)["loss"].item() for agent in (plain, double)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, r"bootstrap\.alpha must be between 0 and 1, got 1\.5"),
        ({"temperature": 0.0}, r"bootstrap\.temperature must be a finite number above 0, got 0\.0"),
        ({"clip": 1.0}, r"bootstrap\.clip must be at most 0, got 1\.0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], message: str):
    with pytest.raises(ConfigError, match=message):
        MunchausenBootstrap(**settings)


def test_several_batches_are_dealt_their_rows_and_all_what_is_of_no_row():
    class WithSupport(ScalarHead):
        def target_values(self, features):
            return self(features), torch.arange(3.0)

    net = QNetwork(FlatEncoder((2,)), WithSupport(2, 2))
    set_weights(net, TARGET)
    first, second = ask_target(DoubleBootstrap(), net, batch(), batch())
    for found in (first, second):
        assert found.values[0].tolist() == [[2.0, 3.0], [4.0, 1.0]]
        assert found.values[1].tolist() == [0.0, 1.0, 2.0]


def test_without_bootstrapping_the_reward_is_the_target_and_nobody_is_asked():
    poisoned = network([[torch.nan, torch.nan]] * 2)
    assert ask_target(NoBootstrap(), poisoned, batch(), batch()) == [NextValues(None)] * 2
    agent = linear_dqn(EnvSpec.box((2,), "float32", 2), bootstrap=NoBootstrap)
    set_weights(agent.online, [[1.0, 2.0], [3.0, 4.0]])
    agent.target.load_state_dict(poisoned.state_dict())
    made = Batch(**{**vars(batch()), "next_observation": None})
    losses = agent.updater.losses(made)
    assert losses.td.target.tolist() == [0.5, -0.5]
    assert losses.td.prediction.tolist() == [3.0, 2.0]  # of actions 1 and 0
    assert losses.loss.item() == 2.0  # Huber's, of errors of 2.5
    agent.move_target(0)
    assert agent.target(made.observation).isnan().all()  # it is not moved either
