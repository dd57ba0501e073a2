"""Runs without a replay and without a target network (PQN), in both modes."""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.command_line import Project
from helpers.exact_runs import EndAt, assert_same, fit_until_it_ends, rows_until, saving_run
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    quiet,
    small_data,
)

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    RateLimiterConfig,
    ReplayConfig,
)
from lrl.actors.exploration import EpsilonGreedy
from lrl.checkpoints.generators import generator_states
from lrl.envs import restorable
from lrl.learner import MaxBootstrap, NoBootstrap
from lrl.networks import MLPEncoder
from lrl.preflight import machine
from lrl.replay import Rollouts
from lrl.schedules import Linear
from lrl.types import Batch, ConfigError

pytestmark = quiet

LAYER_NORM = functools.partial(MLPEncoder, hidden_sizes=(16,), layer_norm=True)


def agent(**settings: Any) -> DQN:
    optimizer = functools.partial(torch.optim.RAdam, lr=1e-2)
    return DQN(LAYER_NORM, bootstrap=NoBootstrap, **{"optimizer": optimizer, **settings})


def experience(**settings: Any) -> dict[str, Any]:
    defaults = {"num_steps": 8, "num_minibatches": 2, "epochs": 2}
    return {
        "replay": ReplayConfig(),
        "rate": RateLimiterConfig(),
        "experience": functools.partial(Rollouts, **{**defaults, **settings}),
    }


@pytest.mark.parametrize("actors", [ActorConfig(0, 8), background(1, 8)])
@pytest.mark.parametrize("updates_per_step", [1, 4])
def test_a_run_learns(tmp_path: Path, actors: ActorConfig, updates_per_step: int):
    steps, seen = 400, 0

    def note(trainer: L.Trainer, batch: Any) -> None:
        nonlocal seen
        seen += sum(len(b.action) for b in (batch if isinstance(batch, tuple) else (batch,)))

    data = small_data(env=EnvConfig("lrl/Identity-v0"), actors=actors, **experience(gamma=0.0))
    module = agent(updates_per_step=updates_per_step)
    callback = ActorLearnerCallback(20, steps, 0)
    run = make_run(
        tmp_path, AfterEachStep(note), callback, module=module, data=data, max_steps=steps,
        log_every_n_steps=20,
    ).fit()  # fmt: skip
    assert run.data.dataset is not None
    rollouts = run.data.dataset.experience
    assert isinstance(rollouts, Rollouts)
    assert seen == steps * 32
    assert rollouts.rows_left_out == 0
    assert run.callback.best_model_score >= 8  # of 10; chance gives 2.5
    # Each environment step is learnt from twice, but for those beyond a rollout, up to a chunk.
    extra = 16 if actors.num_actors else 8
    assert seen / 2 <= run.data.dataset.env_steps <= seen / 2 * (1 + extra / 64) + 3 * 64


def test_acting_and_learning_take_strict_turns(tmp_path: Path):
    """All batches of a rollout come between two steps of the environments."""
    env_steps: list[int] = []

    def note(trainer: L.Trainer, batch: Batch) -> None:
        datamodule: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        env_steps.append(datamodule.dataset.env_steps)

    data = small_data(env=EnvConfig("CartPole-v1"), actors=ActorConfig(0, 4), **experience())
    callback = ActorLearnerCallback(eval_period_learner_steps=0)
    make_run(tmp_path, AfterEachStep(note), callback, module=agent(), data=data, max_steps=40).fit()
    rollouts = [env_steps[start : start + 4] for start in range(0, 40, 4)]
    assert all(len(set(rollout)) == 1 for rollout in rollouts)
    made = [rollout[0] for rollout in rollouts]
    assert made[0] == 8 * 4 + 4
    assert all(28 <= later - before <= 40 for before, later in pairwise(made))


def cartpole(folder: Path, *callbacks: L.Callback, seed: int = 0, **run: Any) -> Run:
    L.seed_everything(seed, verbose=False)
    data = small_data(
        env=EnvConfig("CartPole-v1"),
        actors=ActorConfig(0, 3),
        exploration=EpsilonGreedy(Linear(1.0, 0.1, 300)),
        seed=seed,
        **experience(num_steps=6, num_minibatches=3),
    )
    return saving_run(folder, agent(), data, *callbacks, evaluate=0, limit_train_batches=50, **run)


def outcome(run: Run) -> dict[str, Any]:
    dataset = run.data.dataset
    assert dataset is not None
    assert dataset.pool is not None
    streams = dataset.stored.streams
    spans = list(streams.spans(streams.oldest, streams.counts))
    return {
        "weights": run.module.state_dict(),
        "optimizer": run.trainer.optimizers[0].state_dict(),
        "generators": generator_states(),
        "rollouts": dataset.experience.state(with_rows=True),
        "rows": [column[span] for column in streams.columns.values() for span in spans],
        "pool": dataset.pool.state_dict(),
        "next": [vars(batch) for batch in dataset.experience.draw(2)],
    }


@pytest.mark.parametrize("end", [50, 52, 53])
def test_an_interrupted_run_equals_one_that_was_not(tmp_path, monkeypatch, end):
    """At the end of a rollout of six batches (and not of an epoch) or within one."""
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 60)
    straight = cartpole(tmp_path, max_steps=110).fit()
    first = cartpole(tmp_path, EndAt("max_steps", end), max_steps=end)
    fit_until_it_ends(first, "max_steps")
    second = cartpole(tmp_path, seed=7, max_steps=110).fit(first.checkpoint("last"))
    assert rows_until(first, end) + rows_until(second, 110) == rows_until(straight, 110)
    assert_same(outcome(second), outcome(straight))


def test_the_same_seed_gives_the_same_weights(tmp_path):
    one, other = (cartpole(tmp_path, max_steps=40, saves_replay=False).fit() for _ in range(2))
    assert_same(one.module.state_dict(), other.module.state_dict())


def test_without_saved_rows_a_run_goes_on_with_new_ones(tmp_path):
    first = cartpole(tmp_path, max_steps=40, saves_replay=False).fit()
    second = cartpole(tmp_path, max_steps=50, saves_replay=False).fit(first.checkpoint("last"))
    assert first.data.dataset is not None
    assert second.data.dataset is not None
    assert second.data.dataset.env_steps > first.data.dataset.env_steps


@pytest.mark.parametrize(
    ("module", "data", "words"),
    [
        (
            {"bootstrap": MaxBootstrap},
            {},
            "data.experience Rollouts gives whole returns, but model.bootstrap MaxBootstrap",
        ),
        (
            {},
            {"experience": None},
            "model.bootstrap NoBootstrap takes rewards for whole returns, but those of Replay",
        ),
        (
            {},
            {"rate": RateLimiterConfig(samples_per_insert=4.0)},
            "data.experience Rollouts says by itself when to act and when to learn",
        ),
        (
            {"updates_per_step": 3},
            {},
            "model.updates_per_step is 3, which does not divide the 4 batches of a rollout",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, module, data, words):
    settings = {**experience(), **data}
    run = make_run(
        tmp_path,
        module=DQN(**{"bootstrap": NoBootstrap, **module}),
        data=small_data(**settings),
        max_steps=30,
        log_every_n_steps=30,
        callbacks=[ActorLearnerCallback(30, 30, 30)],
    )
    run.callback.weight_sync.asked_period = 10
    with pytest.raises(ConfigError, match=re.escape(words)):
        run.fit()


def test_actors_must_fit_the_machine_without_a_replay_too(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 100)
    data = small_data(**{**experience(), "actors": background(2)})
    with pytest.raises(ConfigError, match=r"the rings of actors\.num_actors 2 need"):
        make_run(tmp_path, module=agent(), data=data).fit()


@pytest.mark.parametrize(
    ("setting", "value"), [("target_update_period_learner_steps", 9), ("target_update_tau", 0.5)]
)
def test_a_target_network_that_nobody_asks_has_no_settings(setting, value):
    with pytest.raises(ConfigError, match=rf"model\.{setting} is {value}, .* no target network"):
        agent(**{setting: value})


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
def test_settings_name_it_by_its_class_path(tmp_path, monkeypatch, capsys):
    (tmp_path / "run.yaml").write_text(SETTINGS)
    project = Project(tmp_path)
    code, _, err = project.call(monkeypatch, capsys, "fit", "--config", "run.yaml")
    assert code == 0, err
    last = "runs/online/version_0/checkpoints/last.ckpt"
    more = ["--config", "run.yaml", "--trainer.max_steps", "40", "--ckpt_path", last]
    code, _, err = project.call(monkeypatch, capsys, "fit", *more)
    assert code == 0, err


SETTINGS = """
name: online
trainer: {max_steps: 30, accelerator: cpu}
model: {bootstrap: lrl.learner.NoBootstrap}
data:
  env: {id: lrl/Identity-v0}
  actors: {num_actors: 0}
  learner_threads: 1
  experience: {class_path: lrl.replay.Rollouts, init_args: {num_steps: 4, lambda_: 0.9}}
actor_learner: {eval_period_learner_steps: 0}
"""
