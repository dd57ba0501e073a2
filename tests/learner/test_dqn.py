"""The learning rule by hand: what one batch and one `training_step` must give."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.tiny_networks import (
    FlatEncoder,
    linear_dqn,
    make_batch,
    matrix_of,
    random_batch,
    set_weights,
)

from lrl.learner import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.learner.dqn import DQN
from lrl.networks import NoisyLinear, ScalarHead
from lrl.types import Batch, ConfigError, EnvSpec

IDENTITY = [[1.0, 0.0], [0.0, 1.0]]
TARGET = [[1.0, 0.0], [0.0, 3.0]]  # disagrees with the identity about (3, 2)


def agent_with(spec: EnvSpec, online=IDENTITY, target=TARGET, **settings: Any) -> DQN:
    agent = linear_dqn(spec, **settings)
    set_weights(agent.online, online)
    set_weights(agent.target, target)
    return agent


def batch_of_four(weights: Sequence[float] | None = None) -> Batch:
    """One step, a terminated step, a truncated 2-step window, and one beyond Huber's knee."""
    return make_batch(
        observation=[[1.0, 2.0], [1.0, 2.0], [4.0, 0.0], [10.0, 0.0]],
        action=[1, 0, 0, 0],
        reward=[1.0, -1.0, 0.5, 0.0],
        discount=[0.5, 0.0, 0.25, 0.5],
        next_observation=[[3.0, 2.0], [100.0, 100.0], [2.0, 4.0], [3.0, 2.0]],
        weights=weights,
    )


PREDICTIONS = [2.0, 1.0, 4.0, 10.0]
# The target network values (3, 2) as (3, 6) and (2, 4) as (2, 12).
MAX_TARGETS = [1.0 + 0.5 * 6.0, -1.0, 0.5 + 0.25 * 12.0, 0.5 * 6.0]
# The online network prefers action 0 in (3, 2), action 1 in (2, 4).
DOUBLE_TARGETS = [1.0 + 0.5 * 3.0, -1.0, 0.5 + 0.25 * 12.0, 0.5 * 3.0]


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5


def half_square(error: float) -> float:
    return 0.5 * error**2


@pytest.mark.parametrize(
    ("bootstrap", "targets"), [(MaxBootstrap, MAX_TARGETS), (DoubleBootstrap, DOUBLE_TARGETS)]
)
@pytest.mark.parametrize(("loss", "function"), [("huber", huber), ("mse", half_square)])
def test_loss_and_priorities_by_hand(tiny_spec: EnvSpec, bootstrap, targets, loss, function):
    head = functools.partial(ScalarHead, loss=loss)
    agent = agent_with(tiny_spec, bootstrap=bootstrap, head=head)
    batch = batch_of_four()
    result = agent.training_step(batch, 0)
    errors = [p - t for p, t in zip(PREDICTIONS, targets, strict=True)]
    assert result["priorities"].tolist() == [abs(error) for error in errors]
    assert result["loss"].item() == pytest.approx(sum(map(function, errors)) / 4)
    assert result["keys"] is batch.keys


def test_double_selects_with_the_online_and_values_with_the_target_network(tiny_spec: EnvSpec):
    batch = make_batch([[0.0, 0.0]], [0], [0.0], [1.0], [[3.0, 2.0]])

    def target(online, target, bootstrap) -> float:
        agent = agent_with(tiny_spec, online, target, bootstrap=bootstrap)
        return agent.training_step(batch, 0)["priorities"].item()  # the prediction is 0

    assert target(IDENTITY, TARGET, DoubleBootstrap) == 3.0  # action 0 by the identity
    assert target(TARGET, IDENTITY, DoubleBootstrap) == 2.0  # action 1, valued by the identity
    assert target(IDENTITY, TARGET, MaxBootstrap) == 6.0
    assert target(TARGET, IDENTITY, MaxBootstrap) == 3.0


def test_termination_masks_the_next_observation_and_truncation_does_not(tiny_spec: EnvSpec):
    def target(discount: float, next_observation: list[float]) -> float:
        batch = make_batch([[0.0, 0.0]], [0], [2.0], [discount], [next_observation])
        return agent_with(tiny_spec).training_step(batch, 0)["priorities"].item()

    assert target(0.0, [7.0, 7.0]) == target(0.0, [1e6, -1e6]) == 2.0
    assert target(0.5, [7.0, 1.0]) == 2.0 + 3.5


def test_both_networks_draw_noise_of_their_own_for_every_batch(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec, head=functools.partial(ScalarHead, noisy=True))
    seen: list[list[float]] = []
    for _ in range(2):
        agent.training_step(batch_of_four(), 0)
        for network in (agent.online, agent.target):
            (layer,) = (part for part in network.modules() if isinstance(part, NoisyLinear))
            seen.append(layer.input_noise.tolist())
    assert all(numbers.count(0.0) == 0 for numbers in seen)
    assert len(set(map(tuple, seen))) == 4


# --- Importance weights ---------------------------------------------------------------------


def loss_and_gradient(spec: EnvSpec, weights: Sequence[float] | None):
    agent = agent_with(spec)
    result = agent.training_step(batch_of_four(weights), 0)
    result["loss"].backward()
    linear = matrix_of(agent.online)
    return result["loss"].item(), linear.weight.grad, result["priorities"].tolist()


def test_importance_weights_act_once_and_linearly(tiny_spec: EnvSpec):
    plain = [loss_and_gradient(tiny_spec, row.tolist()) for row in torch.eye(4)]
    weights = [0.5, 2.0, 0.25, 1.5]
    loss, gradient, priorities = loss_and_gradient(tiny_spec, weights)
    assert loss == pytest.approx(sum(w * part[0] for w, part in zip(weights, plain, strict=True)))
    torch.testing.assert_close(
        gradient, sum(w * part[1] for w, part in zip(weights, plain, strict=True))
    )
    errors = [p - t for p, t in zip(PREDICTIONS, MAX_TARGETS, strict=True)]
    by_hand = sum(w * huber(error) for w, error in zip(weights, errors, strict=True)) / 4
    assert loss == pytest.approx(by_hand)  # over the batch size, not over the sum of weights
    assert priorities == [abs(error) for error in errors]  # priorities are not weighted


def test_without_weights_the_loss_is_the_mean(tiny_spec: EnvSpec):
    assert loss_and_gradient(tiny_spec, None)[0] == loss_and_gradient(tiny_spec, [1.0] * 4)[0]


# --- Gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [1.5, -40.0, 1e4])
def test_large_errors_still_teach(tiny_spec: EnvSpec, error: float):
    agent = agent_with(tiny_spec)
    batch = make_batch([[error, 0.0]], [0], [0.0], [0.0], [[0.0, 0.0]])
    agent.training_step(batch, 0)["loss"].backward()
    linear = matrix_of(agent.online)
    assert linear.bias.grad.tolist() == [1.0 if error > 0 else -1.0, 0.0]


@pytest.mark.parametrize("bootstrap", [MaxBootstrap, DoubleBootstrap])
def test_only_the_online_value_of_the_action_taken_learns(tiny_spec: EnvSpec, bootstrap):
    agent = agent_with(tiny_spec, bootstrap=bootstrap)
    batch = make_batch([[1.0, 1.0], [5.0, 3.0]], [1, 1], [0.0, 3.0], [0.9, 0.9], [[1.0, 9.0]] * 2)
    batch.next_observation.requires_grad_()
    agent.training_step(batch, 0)["loss"].backward()
    assert all(p.grad is None and not p.requires_grad for p in agent.target.parameters())
    assert batch.next_observation.grad is None
    linear = matrix_of(agent.online)
    assert linear.weight.grad[0].tolist() == [0.0, 0.0]
    assert linear.weight.grad[1].abs().min() > 0


@pytest.mark.parametrize("bootstrap", [MaxBootstrap, DoubleBootstrap])
def test_the_order_of_a_batch_does_not_matter(tiny_spec: EnvSpec, bootstrap):
    agent = linear_dqn(tiny_spec, bootstrap=bootstrap)
    batch, order = random_batch(16), torch.randperm(16, generator=torch.Generator().manual_seed(0))
    parts = {name: part[order] for name, part in vars(batch).items() if part is not None}
    shuffled = Batch(**parts)
    straight, permuted = (agent.training_step(b, 0) for b in (batch, shuffled))
    torch.testing.assert_close(permuted["loss"], straight["loss"])
    torch.testing.assert_close(permuted["priorities"], straight["priorities"][order])
    assert torch.equal(permuted["keys"], straight["keys"][order])


def test_gradient_equals_finite_differences(tiny_spec: EnvSpec):
    agent = agent_with(tiny_spec).double()
    batch = Batch(
        **{
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in vars(batch_of_four([0.5, 2.0, 0.25, 1.5])).items()
            if tensor is not None
        }
    )
    linear = matrix_of(agent.online)
    agent.training_step(batch, 0)["loss"].backward()
    step = 1e-6
    for index in torch.cartesian_prod(torch.arange(2), torch.arange(2)).tolist():
        losses = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                linear.weight[tuple(index)] += sign * step
                losses.append(agent.training_step(batch, 0)["loss"].item())
                linear.weight[tuple(index)] -= sign * step
        slope = (losses[0] - losses[1]) / (2 * step)
        assert linear.weight.grad[tuple(index)].item() == pytest.approx(slope, abs=1e-7)


# --- Acting and settings --------------------------------------------------------------------


def test_acting_is_greedy_in_the_online_network(tiny_spec: EnvSpec):
    agent = agent_with(tiny_spec)
    observation = torch.tensor([[3.0, 2.0], [1.0, 4.0]])
    assert agent(observation).tolist() == [[3.0, 2.0], [1.0, 4.0]]
    actions = agent.act(observation)
    assert actions.tolist() == [0, 1]
    assert actions.dtype == torch.int64
    assert not actions.requires_grad


def test_acting_makes_no_noise(tiny_spec: EnvSpec):
    torch.manual_seed(0)
    noisy = functools.partial(ScalarHead, noisy=True, noisy_sigma=5.0)
    agent = DQN(FlatEncoder, noisy, env_spec=tiny_spec).train()
    agent.online.sample_noise()
    observation = torch.randn(200, 2)
    actions = agent.act(observation)
    assert agent.online.training
    assert not torch.equal(actions, agent(observation).argmax(dim=1))
    assert torch.equal(actions, agent.eval()(observation).argmax(dim=1))


def test_both_networks_start_equal_and_apart(tiny_spec: EnvSpec):
    agent = DQN(env_spec=tiny_spec)
    pairs = list(zip(agent.online.parameters(), agent.target.parameters(), strict=True))
    assert pairs
    for online, target in pairs:
        assert torch.equal(online, target)
        assert online.data_ptr() != target.data_ptr()
        assert online.requires_grad
        assert not target.requires_grad


class NormalisingEncoder(FlatEncoder):
    """Has a whole number in its state, which cannot be averaged."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__(observation_shape)
        self.norm = torch.nn.BatchNorm1d(2)

    def encode(self, observation: torch.Tensor) -> torch.Tensor:
        return self.norm(observation)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_update_target_moves_weights_and_buffers(tiny_spec: EnvSpec, tau: float):
    agent = DQN(NormalisingEncoder, env_spec=tiny_spec, target_update_tau=tau)
    for module, value in ((agent.online, 8.0), (agent.target, 4.0)):
        for tensor in module.state_dict().values():
            tensor.fill_(value)
    agent.update_target()
    for name, tensor in agent.target.state_dict().items():
        expected = 8.0 if tau == 1.0 or not tensor.is_floating_point() else 5.0
        assert (tensor == expected).all(), name
    assert all((tensor == 8.0).all() for tensor in agent.online.state_dict().values())


def test_the_encoder_may_be_configured(tiny_spec: EnvSpec):
    agent = DQN(functools.partial(FlatEncoder, factor=2.0), env_spec=tiny_spec)
    set_weights(agent.online, IDENTITY)
    assert agent(torch.tensor([[3.0, 2.0]])).tolist() == [[6.0, 4.0]]


def local_encoder() -> type:
    class Local(FlatEncoder):
        pass

    return Local


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": lambda shape: FlatEncoder(shape)}, "model.encoder must be a class at the top"),
        ({"encoder": local_encoder()}, "model.encoder must be a class at the top"),
        ({"encoder": ScalarHead}, "model.encoder must be a subclass of .*Encoder"),
        ({"head": FlatEncoder}, "model.head must be a subclass of .*Head"),
        ({"bootstrap": MaxBootstrap()}, "model.bootstrap must be a class"),
        ({"optimizer": torch.nn.Linear}, "model.optimizer must be a subclass of .*Optimizer"),
        ({"lr_scheduler": torch.optim.Adam}, "model.lr_scheduler must be a subclass of .*LRSch"),
        ({"target_update_period_learner_steps": 0}, "target_update_period_learner_steps .* got 0"),
        ({"target_update_tau": 0.0}, "target_update_tau .* got 0.0"),
        ({"target_update_tau": 1.5}, "target_update_tau .* got 1.5"),
        ({"target_update_tau": float("nan")}, "target_update_tau .* got nan"),
        ({"target_update_tau": "0.5"}, "target_update_tau must be a number .* got '0.5'"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        DQN(**settings)


def test_sizes_must_be_known_before_networks_are_built():
    agent = DQN()
    with pytest.raises(ConfigError, match=r"DQN\(env_spec=\.\.\.\)"):
        agent.configure_model()
    with pytest.raises(ConfigError, match="env_spec"):
        _ = agent.network_recipe


def test_rescaled_values_and_a_bonus_are_refused_when_the_network_is_built(tiny_spec: EnvSpec):
    head = functools.partial(ScalarHead, value_rescaling=0.01)
    with pytest.raises(ConfigError, match=r"MunchausenBootstrap adds a bonus.* set value_res"):
        linear_dqn(tiny_spec, head=head, bootstrap=MunchausenBootstrap)
    linear_dqn(tiny_spec, head=head)


def test_a_forbidden_action_is_not_the_greedy_one(tiny_spec: EnvSpec):
    agent = agent_with(tiny_spec)
    observation = torch.tensor([[3.0, 2.0], [1.0, 4.0]])
    assert agent.act(observation).tolist() == [0, 1]
    assert agent.act(observation, torch.tensor([[False, True], [True, True]])).tolist() == [1, 1]


class InPlace(FlatEncoder):
    """Writes into what it is given, which is looked at again."""

    def encode(self, observation):
        observation /= 255
        return observation


class ColumnHead(ScalarHead):
    """Forgets to drop an axis, so that each row's weight would act on all rows' losses."""

    def td_loss(self, values, action, target):
        return super().td_loss(values, action, target)._replace(loss=torch.ones(4, 1))


class NoFeatures(FlatEncoder):
    """Does not say how many features it has."""

    def __init__(self, observation_shape):
        super().__init__(observation_shape)
        del self.num_features


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": InPlace}, r"wrote into the batch .*\(x / 255, not x\.div_"),
        ({"head": ColumnHead}, r"loss of shape \[4, 1\], but must return \[4\], a number for each"),
    ],
    ids=["in place", "another shape"],
)
def test_parts_that_would_learn_something_else_are_refused(tiny_spec, settings, message):
    agent = agent_with(tiny_spec, **settings)
    with pytest.raises(ConfigError, match=message):
        agent.training_step(batch_of_four(), 0)


def test_an_encoder_without_a_number_of_features_is_blamed_itself(tiny_spec):
    with pytest.raises(ConfigError, match=r"model\.encoder cannot be built: .* 'num_features'"):
        linear_dqn(tiny_spec, encoder=NoFeatures)
