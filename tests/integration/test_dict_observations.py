"""Runs whose observations are a Dict: from the environment to the loss, the score and the file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.dict_envs import LENGTH, BothLeaves, Signals
from helpers.training_runs import AfterEachStep, Run, background, make_run, quiet, small_data

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
)
from lrl.actors.exploration import EpsilonGreedy
from lrl.learner import DoubleBootstrap, MunchausenBootstrap
from lrl.networks import ScalarHead
from lrl.report.evaluate import evaluate
from lrl.schedules import Constant
from lrl.types import Batch, Observation

pytestmark = [*quiet, pytest.mark.usefixtures("janitor")]


def agent(**settings: Any) -> DQN:
    optimizer = functools.partial(torch.optim.Adam, lr=3e-3)
    defaults: dict[str, Any] = {"encoder": BothLeaves, "optimizer": optimizer}
    return DQN(**{**defaults, "target_update_period_learner_steps": 20, **settings})


def steps_of(observation: Observation) -> torch.Tensor:
    """Return the steps that the newest frames were seen at, which both leaves must agree on."""
    image, speed = observation["image"], observation["speed"]
    assert (image.dtype, speed.dtype) == (torch.uint8, torch.float32)
    steps = image[..., 0, 0]
    torch.testing.assert_close(speed[..., 1], steps[..., 0] / LENGTH)
    return steps[..., 0].reshape(len(steps), -1)[:, -1].long()


def check(batch: Batch) -> None:
    now, then = steps_of(batch.observation), steps_of(batch.next_observation)
    goes_on = batch.discount > 0
    assert torch.equal(then[goes_on], now[goes_on] + 1)
    assert now.max() < LENGTH


def look(trainer: object, batch: Any) -> None:
    for part in [batch] if isinstance(batch, Batch) else batch:
        check(part)


def signals_data(actors: ActorConfig, frame_stack: int = 1, **settings: Any) -> ReplayDataModule:
    return small_data(
        env=EnvConfig(factory=Signals, frame_stack=frame_stack),
        actors=actors,
        replay=ReplayConfig(capacity=4000, batch_size=64, n_step=1, gamma=0.5),
        rate=RateLimiterConfig(samples_per_insert=16.0, warm_up_env_steps=200),
        exploration=EpsilonGreedy(Constant(0.5)),
        evaluation=EvaluationConfig(episodes=5, test_episodes=10),
        **settings,
    )


def signals_run(folder: Path, data: ReplayDataModule, module: DQN, steps: int) -> Run:
    callbacks = [ActorLearnerCallback(10, steps // 2, steps // 2), AfterEachStep(look)]
    return make_run(folder, *callbacks, module=module, data=data, max_steps=steps)


@pytest.mark.parametrize(
    ("actors", "frame_stack", "settings"),
    [
        (ActorConfig(0, 4), 1, {}),
        (ActorConfig(0, 4), 2, {"updates_per_step": 5, "bootstrap": MunchausenBootstrap}),
        (background(2, 2), 1, {"bootstrap": DoubleBootstrap}),
    ],
    ids=["synchronous", "stacked", "processes"],
)
def test_an_agent_learns_from_both_leaves(tmp_path, actors, frame_stack, settings):
    data = signals_data(actors, frame_stack)
    run = signals_run(tmp_path, data, agent(**settings), 400).fit()
    (metrics,) = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    assert metrics["eval/return_mean"] >= 0.9 * LENGTH  # half of it at most with one leaf alone
    path = run.checkpoint("last")
    (score,) = evaluate([str(path)], episodes=10, device="cpu")
    assert score.episodes.returns.mean() >= 0.9 * LENGTH
    loaded = DQN.load_from_checkpoint(path)
    assert loaded.env_spec == run.data.env_spec
    if frame_stack == 1:
        assert right_answers(loaded) >= 0.9


def right_answers(module: DQN) -> float:
    """Return how often an agent alone, in the environment as it is, is right."""
    env, right = Signals(), 0.0
    observation, _ = env.reset(seed=3)
    for _ in range(20 * LENGTH):
        tensors = {name: torch.as_tensor(leaf)[None] for name, leaf in observation.items()}
        observation, reward, ended, _, _ = env.step(int(module.act(tensors)))
        right += reward
        if ended:
            observation, _ = env.reset()
    return right / (20 * LENGTH)


def test_noisy_networks_act_through_servers(tmp_path):
    """A server draws noise for each row of a request, whose number is not that of the leaves."""
    head = functools.partial(ScalarHead, hidden_size=16, noisy=True)
    data = signals_data(background(1, 3), inference=InferenceConfig())
    run = signals_run(tmp_path, data, agent(head=head), 60).fit()
    assert run.trainer.global_step == 60
    assert all(torch.isfinite(parameter).all() for parameter in run.module.parameters())
