"""What every head promises, whatever its values are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lrl.functional.value_rescaling import rescale_value, unrescale_value
from lrl.networks import (
    BellmanTarget,
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    NoisyLinear,
    QuantileHead,
    ScalarHead,
    TDLoss,
)
from lrl.networks.quantile_heads import QuantileLossHead
from lrl.types import ConfigError

BATCH, FEATURES, ACTIONS = 6, 5, 3
HEADS = {
    "huber": functools.partial(ScalarHead, loss="huber"),
    "mse": functools.partial(ScalarHead, loss="mse"),
    "categorical": functools.partial(CategoricalHead, num_atoms=17, v_min=-40.0, v_max=40.0),
    "quantile": functools.partial(QuantileHead, num_quantiles=5),
    "plain quantile": functools.partial(QuantileHead, num_quantiles=5, kappa=0.0),
    "implicit": functools.partial(
        ImplicitQuantileHead, num_quantiles=5, num_target_quantiles=4, embedding_size=6
    ),
}
every_head = pytest.mark.parametrize("build", HEADS.values(), ids=HEADS.keys())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def change(values: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in a head's values or in a target."""
    if values is None or isinstance(values, Tensor):
        return values if values is None else function(values)
    return type(values)(*(change(value, function) for value in values))


def leaf(values: Any) -> tuple[Any, Tensor]:
    """Return values without history, and the tensor of them that learns."""
    values = change(values, torch.Tensor.detach)
    learning = values if isinstance(values, Tensor) else values.quantiles
    return values, learning.requires_grad_()


def problem(head: Head, **changes: Any) -> tuple[Any, Tensor, BellmanTarget]:
    """Return random values, actions and a target with a soft policy and various discounts."""
    target = BellmanTarget(
        reward=torch.randn(BATCH),
        discount=torch.tensor([0.9, 0.0, 0.99, 0.5, 1.0, 0.81]),
        next_values=head.target_values(2.0 * torch.randn(BATCH, FEATURES)),
        next_policy=torch.randn(BATCH, ACTIONS).softmax(dim=1),
    )
    values = head(2.0 * torch.randn(BATCH, FEATURES))
    return values, torch.arange(BATCH) % ACTIONS, target._replace(**changes)


def certain(head: Head, value: float) -> Any:
    """Return values of a head that is sure of one value, which is among the atoms if it has any."""
    if isinstance(head, CategoricalHead):
        return 1e4 * (head.support == value).float().expand(BATCH, ACTIONS, -1)
    values = change(head(torch.zeros(BATCH, FEATURES)), lambda tensor: tensor.detach().clone())
    leaf(values)[1].detach().fill_(value)
    return values


def assert_equal(actual: TDLoss, expected: TDLoss) -> None:
    for name, value in expected._asdict().items():
        torch.testing.assert_close(getattr(actual, name), value, rtol=1e-4, atol=1e-4)


# --- Every head -----------------------------------------------------------------------------


@every_head
def test_a_number_per_sample_and_only_the_loss_learns(build):
    head = build(FEATURES, ACTIONS)
    td = head.td_loss(*problem(head))
    for name, value in td._asdict().items():
        assert value.shape == (BATCH,), name
        assert value.isfinite().all(), name
        assert value.requires_grad == (name == "loss"), name
    assert td.priority.min() >= 0.0


@every_head
def test_only_the_action_taken_learns(build):
    head = build(FEATURES, ACTIONS)
    values, action, target = problem(head)
    values, learning = leaf(values)
    head.td_loss(values, action, target).loss.sum().backward()
    assert learning.grad is not None
    learns = learning.grad.view(BATCH, ACTIONS, -1).abs().sum(2) > 0
    assert learns.tolist() == nn.functional.one_hot(action, ACTIONS).bool().tolist()


@every_head
def test_no_gradient_into_the_target(build):
    head = build(FEATURES, ACTIONS)
    values, action, target = problem(head, next_bonus=torch.rand(BATCH, ACTIONS))
    next_values, learning = leaf(target.next_values)
    target = target._replace(next_values=next_values)
    parts = [target.reward, target.discount, target.next_policy, target.next_bonus]
    for part in parts:
        part.requires_grad_()
    head.td_loss(values, action, target).loss.sum().backward()
    assert [part.grad for part in (learning, *parts)] == [None] * 5
    assert all(parameter.grad is not None for parameter in head.parameters())


@every_head
def test_a_discount_of_zero_ignores_the_next_observation(build):
    head = build(FEATURES, ACTIONS)
    values, action, target = problem(head, discount=torch.zeros(BATCH))
    other = head.target_values(10.0 * torch.randn(BATCH, FEATURES))
    changed = target._replace(next_values=other, next_policy=target.next_policy.flip(1))
    assert_equal(head.td_loss(values, action, changed), head.td_loss(values, action, target))


@every_head
def test_samples_do_not_mix(build):
    head, order = build(FEATURES, ACTIONS), torch.tensor([5, 2, 0, 1, 4, 3])
    values, action, target = problem(head, next_bonus=torch.rand(BATCH, ACTIONS))
    straight = head.td_loss(values, action, target)

    def shuffle(tensor: Tensor) -> Tensor:
        return tensor[order] if len(tensor) == BATCH else tensor  # levels that all rows share

    permuted = head.td_loss(change(values, shuffle), action[order], change(target, shuffle))
    assert_equal(permuted, TDLoss(*(value[order] for value in straight)))


@every_head
def test_gradient_equals_finite_differences(build):
    head = build(FEATURES, ACTIONS)
    values, action, target = problem(head)
    head, target = head.double(), change(target, torch.Tensor.double)
    values, learning = leaf(change(values, torch.Tensor.double))

    def losses(learning: Tensor) -> Tensor:
        same = learning if isinstance(values, Tensor) else values._replace(quantiles=learning)
        return head.td_loss(same, action, target).loss

    assert torch.autograd.gradcheck(losses, (learning,), fast_mode=True)


@every_head
def test_a_greedy_policy_is_the_choice_of_one_action(build):
    head, best = build(FEATURES, ACTIONS), torch.arange(BATCH) % 2
    one_hot = nn.functional.one_hot(best, ACTIONS).float()
    values, action, greedy = problem(head, next_policy=one_hot)

    def of_the_best(tensor: Tensor) -> Tensor:
        if tensor.shape[1] != ACTIONS:  # levels of quantiles
            return tensor
        return tensor[torch.arange(BATCH), best].unsqueeze(1)

    only = greedy._replace(
        next_values=change(greedy.next_values, of_the_best), next_policy=torch.ones(BATCH, 1)
    )
    assert_equal(head.td_loss(values, action, greedy), head.td_loss(values, action, only))


@every_head
def test_the_same_bonus_for_all_actions_is_a_reward(build):
    head = build(FEATURES, ACTIONS)
    values, action, target = problem(head)
    bonus = target._replace(next_bonus=torch.full((BATCH, ACTIONS), 0.7))
    reward = target._replace(reward=target.reward + 0.7 * target.discount)
    assert_equal(head.td_loss(values, action, bonus), head.td_loss(values, action, reward))


@every_head
def test_means_are_those_of_scalar_values(build):
    head, discount = build(FEATURES, ACTIONS), torch.full((BATCH,), 0.8)  # no atom leaves
    bonus = torch.randn(BATCH, ACTIONS)
    values, action, target = problem(head, discount=discount, next_bonus=bonus)
    td = head.td_loss(values, action, target)
    prediction = head.expected_values(values)[torch.arange(BATCH), action]
    torch.testing.assert_close(td.prediction, prediction.detach())
    next_q = head.expected_values(target.next_values) + bonus
    expected = target.reward + target.discount * (target.next_policy * next_q).sum(1)
    torch.testing.assert_close(td.target, expected.detach(), rtol=1e-4, atol=1e-4)
    if not isinstance(head, CategoricalHead):  # whose priority is a divergence
        error = (td.prediction - td.target).abs()
        torch.testing.assert_close(td.priority, error)


@every_head
@pytest.mark.parametrize("settings", [{}, {"dueling": True, "noisy": True, "hidden_size": 4}])
def test_q_values_are_the_same_every_time(build, settings: dict[str, Any]):
    head, features = build(FEATURES, ACTIONS, **settings), torch.randn(BATCH, FEATURES)
    q = head.q_values(features)
    assert q.shape == (BATCH, ACTIONS)
    assert torch.equal(head.q_values(features), q)
    if not isinstance(head, ImplicitQuantileHead):  # which learns at other levels
        assert torch.equal(head.expected_values(head(features)), q)
    noisy = [module for module in head.modules() if isinstance(module, NoisyLinear)]
    assert len(noisy) == (4 if settings else 0)


# --- Value rescaling ------------------------------------------------------------------------


@every_head
def test_a_rescaled_head_bootstraps_with_returns(build):
    head = build(FEATURES, ACTIONS, value_rescaling=0.01)
    values, action, target = problem(head, next_values=certain(head, 5.0))
    returns = unrescale_value(torch.tensor([5.0]), 0.01)
    q = head.expected_values(target.next_values)
    torch.testing.assert_close(q, returns.expand(BATCH, ACTIONS))
    goal = rescale_value(target.reward + target.discount * returns, 0.01)
    td = head.td_loss(values, action, target)
    torch.testing.assert_close(td.target, goal, rtol=1e-4, atol=1e-4)
    assert td.target.max() < 10.0 < returns.item()  # learnt are values of h, not returns


@pytest.mark.parametrize("build", [HEADS["huber"], HEADS["quantile"], HEADS["categorical"]])
def test_a_rescaled_mean_is_the_mean_of_returns(build):
    """Of uncertain values, h of the mean is not the mean of h."""
    head = build(FEATURES, ACTIONS, value_rescaling=0.01)
    values = head(10.0 * torch.randn(BATCH, FEATURES))
    if isinstance(head, CategoricalHead):
        expected = values.softmax(2) @ unrescale_value(head.support, 0.01)
    elif isinstance(head, QuantileLossHead):
        expected = unrescale_value(values.quantiles, 0.01).mean(2)
    else:
        expected = unrescale_value(values, 0.01)
    torch.testing.assert_close(head.expected_values(values), expected)


@every_head
def test_rescaled_values_take_no_bonus(build):
    head = build(FEATURES, ACTIONS, value_rescaling=0.01)
    with pytest.raises(ConfigError, match=r"head\.value_rescaling is 0\.01, but .* set it to null"):
        head.td_loss(*problem(head, next_bonus=torch.zeros(BATCH, ACTIONS)))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_rescaling_must_be_positive_or_off(epsilon: float):
    with pytest.raises(ConfigError, match=r"head\.value_rescaling must be a .* above 0, or null"):
        ScalarHead(2, 2, value_rescaling=epsilon)


@every_head
def test_noise_that_nobody_makes_is_refused(build):
    with pytest.raises(ConfigError, match=r"head\.noisy_sigma is 0\.1, but head\.noisy is false"):
        build(2, 2, noisy_sigma=0.1)
