"""The agent in a Trainer: when the target moves, what clipping does, what an update is."""

import functools
import math
from dataclasses import replace
from typing import Any

import lightning as L
import pytest
import torch
from helpers.tiny_networks import (
    FlatEncoder,
    ModalEncoder,
    linear_dqn,
    make_batch,
    matrix_of,
    set_weights,
)
from helpers.trainers import SGD, Recorder, batches, equal, train, weights_of

from lrl.learner.dqn import DQN
from lrl.networks import Encoder, ImplicitQuantileHead, NoisyLinear, ScalarHead
from lrl.preflight.settings import is_logging_step
from lrl.types import Batch, EnvSpec

# --- Target network -------------------------------------------------------------------------


def test_hard_updates_copy_every_third_learner_step_and_never_between(tiny_spec: EnvSpec):
    recorder = Recorder()
    agent = linear_dqn(tiny_spec, optimizer=SGD, target_update_period_learner_steps=3)
    train(agent, batches(7), recorder)
    assert recorder.global_steps == list(range(8))
    for step in range(1, 8):
        assert not equal(recorder.online[step], recorder.online[step - 1])  # it does learn
    for step in range(8):
        assert equal(recorder.target[step], recorder.online[step // 3 * 3]), step


def test_soft_updates_average(tiny_spec: EnvSpec):
    recorder = Recorder()
    agent = linear_dqn(
        tiny_spec, optimizer=SGD, target_update_period_learner_steps=2, target_update_tau=0.25
    )
    train(agent, batches(5), recorder)
    expected = recorder.online[0]
    for step in range(6):
        if step in (2, 4):
            pairs = zip(expected, recorder.online[step], strict=True)
            expected = [0.75 * target + 0.25 * online for target, online in pairs]
        for target, value in zip(recorder.target[step], expected, strict=True):
            torch.testing.assert_close(target, value)
        if step in (1, 3, 5):
            assert equal(recorder.target[step], recorder.target[step - 1])


def test_the_target_network_is_not_in_the_optimizer(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec)
    held = {id(p) for group in agent.configure_optimizers().param_groups for p in group["params"]}
    assert held == {id(p) for p in agent.online.parameters()}


# --- Optimisation ---------------------------------------------------------------------------


def test_an_update_by_hand(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec, optimizer=SGD)
    set_weights(agent.online, [[1.0, 0.0], [0.0, 1.0]])
    set_weights(agent.target, [[1.0, 0.0], [0.0, 3.0]])
    batch = make_batch([[1.0, 2.0]], [1], [1.0], [0.5], [[1.0, 1.0]])
    train(agent, [batch], log_every_n_steps=1)
    # Prediction 2, target 1 + 0.5 * 3 = 2.5, so the gradient is -0.5 times (1, 2, and 1).
    linear = matrix_of(agent.online)
    torch.testing.assert_close(linear.weight.detach(), torch.tensor([[1.0, 0.0], [0.05, 1.1]]))
    torch.testing.assert_close(linear.bias.detach(), torch.tensor([0.0, 0.05]))
    assert {name: value.item() for name, value in agent.statistics.items()} == pytest.approx(
        {
            "train/loss": 0.125,
            "train/td_error_mean": 0.5,
            "train/q_mean": 2.0,
            "train/target_mean": 2.5,
            "train/target_minus_q_mean": 0.5,
            "train/reward_mean": 1.0,
            "train/reward_abs_max": 1.0,
            "train/distinct_rows": 1.0,
            "train/target_updates": 0.0,
            "train/greedy_fraction": 1.0,
            "train/grad_norm": 0.5 * math.sqrt(1 + 4 + 1),
        }
    )


def steep_batch() -> Batch:
    """The gradient is (3, 4) and 1 at the bias of action 0: its norm is sqrt(26)."""
    return make_batch([[3.0, 4.0]], [0], [-100.0], [0.0], [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 1.0),
        ({"gradient_clip_val": 0.5}, 0.5 / math.sqrt(26)),
        ({"gradient_clip_val": 100.0}, 1.0),
        ({"gradient_clip_val": 0.5, "gradient_clip_algorithm": "norm"}, 0.5 / math.sqrt(26)),
    ],
)
def test_the_gradient_norm_is_clipped_and_reported(tiny_spec: EnvSpec, settings, scale: float):
    agent = linear_dqn(tiny_spec, optimizer=functools.partial(torch.optim.SGD, lr=1.0))
    set_weights(agent.online, [[0.0, 0.0], [0.0, 0.0]])
    train(agent, [steep_batch()], log_every_n_steps=1, **settings)
    linear = matrix_of(agent.online)
    moved = [*linear.weight[0].tolist(), linear.bias[0].item()]
    assert moved == pytest.approx([-3.0 * scale, -4.0 * scale, -scale], rel=1e-4)
    assert agent.statistics["train/grad_norm"].item() == pytest.approx(math.sqrt(26))  # unclipped


def test_gradients_can_be_clipped_by_value(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec, optimizer=functools.partial(torch.optim.SGD, lr=1.0))
    set_weights(agent.online, [[0.0, 0.0], [0.0, 0.0]])
    train(agent, [steep_batch()], gradient_clip_val=3.5, gradient_clip_algorithm="value")
    linear = matrix_of(agent.online)
    assert linear.weight[0].tolist() == [-3.0, -3.5]


def test_the_share_of_greedy_actions_is_of_the_allowed_ones(tiny_spec: EnvSpec):
    """Before the update; of a distribution, its mean is what counts (the heads' tests)."""
    agent = linear_dqn(tiny_spec, optimizer=SGD)
    set_weights(agent.online, [[1.0, 0.0], [0.0, 1.0]])
    observations = [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]]
    batch = make_batch(observations, [1, 1, 0, 0], [0.0, 1.0, 2.0, -1.0], [0.5] * 4, observations)
    mask = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    train(agent, [replace(batch, action_mask=mask)], log_every_n_steps=1)
    assert agent.statistics["train/greedy_fraction"].item() == 0.5  # rows 0 and 3
    assert agent.statistics["train/reward_mean"].item() == 0.5


def test_rows_that_are_drawn_twice_are_counted_once(tiny_spec: EnvSpec):
    """Keys name a stream and a row; an experience of one's own may have keys of one number."""
    agent = linear_dqn(tiny_spec, optimizer=SGD)
    batch = make_batch(
        [[0.0, 0.0]] * 4, [0] * 4, [0.5, -2.0, 1.0, 0.0], [0.0] * 4, [[0.0, 0.0]] * 4
    )
    keys = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 1]])
    for each, share in ((keys, 0.75), (keys[:, 0], 0.5)):
        train(agent, [replace(batch, keys=each)], log_every_n_steps=1)
        assert agent.statistics["train/distinct_rows"].item() == share
    assert agent.statistics["train/reward_abs_max"].item() == 2.0


def test_updates_of_the_target_network_are_counted(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec, optimizer=SGD, target_update_period_learner_steps=2)
    train(agent, batches(6), log_every_n_steps=1)
    assert agent.statistics["train/target_updates"].item() == 2.0  # after 2 and 4, before the 6th


@pytest.mark.parametrize("encoder", [FlatEncoder, ModalEncoder])
def test_statistics_leave_the_run_as_it_is(tiny_spec: EnvSpec, encoder: type[Encoder]):
    """Also the generator, from which noise and levels of quantiles are drawn."""
    weights = []
    for period in (0, 1):
        torch.manual_seed(5)
        head = functools.partial(ImplicitQuantileHead, noisy=True)
        agent = DQN(encoder, head, optimizer=SGD, env_spec=tiny_spec)
        train(agent, batches(6), log_every_n_steps=period)
        weights.append(weights_of(agent.online))
        assert (agent.statistics != {}) == (period > 0)
        assert all(module.training for module in agent.online.modules())
    assert equal(*weights)


def test_the_share_of_greedy_actions_is_without_noise(tiny_spec: EnvSpec):
    module = DQN(FlatEncoder, functools.partial(ScalarHead, noisy=True), env_spec=tiny_spec)
    batch = batches(1)[0]
    batch = replace(batch, action=module.online.eval().q_values(batch.observation).argmax(1))
    module.online.train()
    for layer in module.online.modules():
        if isinstance(layer, NoisyLinear):
            torch.nn.init.constant_(layer.weight_sigma, 100.0)
    train(module, [batch], log_every_n_steps=1)
    assert module.statistics["train/greedy_fraction"].item() == 1.0


def test_statistics_are_taken_at_logging_steps_only(tiny_spec: EnvSpec):
    recorder = Recorder()
    agent = linear_dqn(tiny_spec, optimizer=SGD)
    train(agent, batches(6), recorder, log_every_n_steps=3)
    assert [bool(statistics) for statistics in recorder.statistics[:4]] == [False] * 3 + [True]
    assert recorder.statistics[3] == recorder.statistics[4] == recorder.statistics[5]
    assert recorder.statistics[6] != recorder.statistics[3]


@pytest.mark.parametrize(("period", "expected"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_is_logging_step(period: int, expected: list[int]):
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False,
                        log_every_n_steps=period)  # fmt: skip
    assert [step for step in range(1, 5) if is_logging_step(trainer, step)] == expected


def test_accumulated_batches_are_one_learner_step(tiny_spec: EnvSpec):
    parts = batches(6)
    halves = [parts[start : start + 2] for start in (0, 2, 4)]
    columns: list[dict[str, Any]] = [
        {
            name: torch.cat([getattr(b, name) for b in pair])
            for name, part in vars(pair[0]).items()
            if part is not None
        }
        for pair in halves
    ]
    whole = [Batch(**each) for each in columns]
    results = []
    for data, accumulate in ((parts, 2), (whole, 1)):
        torch.manual_seed(0)
        recorder = Recorder()
        agent = linear_dqn(tiny_spec, optimizer=SGD, target_update_period_learner_steps=2)
        train(agent, data, recorder, accumulate_grad_batches=accumulate)
        assert recorder.global_steps[::accumulate] == [0, 1, 2, 3]
        results.append((recorder.online[::accumulate], recorder.target[::accumulate]))
    torch.testing.assert_close(results[0], results[1])
    online, target = results[0]
    assert equal(target[1], online[0])
    assert equal(target[2], online[2])
    assert equal(target[3], online[2])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_scheduler_steps_once_a_learner_step(tiny_spec: EnvSpec, accumulate: int):
    recorder = Recorder()
    halve = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    agent = linear_dqn(tiny_spec, optimizer=SGD, lr_scheduler=halve)
    train(agent, batches(3 * accumulate), recorder, accumulate_grad_batches=accumulate)
    assert recorder.learning_rates[::accumulate] == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_the_default_optimizer_is_adam(tiny_spec: EnvSpec):
    optimizer = DQN(env_spec=tiny_spec).configure_optimizers()
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.param_groups[0]["lr"] == 1e-3
