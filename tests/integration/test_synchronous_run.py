"""The synchronous mode is the reference: the same seed gives the same weights, bit for bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import (
    Run,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
    spy_on_rows,
)

from lrl import DQN, ActorConfig, ActorLearnerCallback, EnvConfig, RateLimiterConfig, ReplayConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.learner import DoubleBootstrap
from lrl.networks import MLPEncoder, ScalarHead
from lrl.schedules import Linear
from lrl.types import RowKind

pytestmark = quiet


def cartpole(folder: Path, *, steps: int, seed: int = 0, evaluate: int = 100) -> Run:
    """10 environment steps for each learner step, after 100 to warm up."""
    L.seed_everything(seed, verbose=False)
    return make_run(
        folder,
        ActorLearnerCallback(10, evaluate, 0),
        module=small_agent(),
        data=small_data(
            env=EnvConfig(id="CartPole-v1"),
            actors=ActorConfig(num_actors=0, envs_per_actor=10),
            replay=ReplayConfig(capacity=2000, batch_size=20, n_step=3),
            rate=RateLimiterConfig(samples_per_insert=2.0, warm_up_env_steps=100),
            exploration=EpsilonGreedy(Linear(1.0, 0.1, 5000)),
            seed=seed,
        ),
        max_steps=steps,
        seed=None,
        log_every_n_steps=50,
    ).fit()


def assert_same_training(one: Run, other: Run) -> None:
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(tensor, other.module.state_dict()[name]), name
    for run in (one, other):
        assert run.data.dataset is not None
    assert one.data.dataset is not None
    assert other.data.dataset is not None
    assert one.data.dataset.env_steps == other.data.dataset.env_steps
    timed = ("speed/", "epoch")

    def learned(run: Run) -> list[dict[str, str]]:
        rows = [row for row in run.metrics() if "train/loss" in row]
        return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows]

    assert learned(one) == learned(other)


def test_equal_seeds_give_equal_weights_and_evaluation_changes_nothing(tmp_path):
    one = cartpole(tmp_path / "one", steps=250)
    without = cartpole(tmp_path / "without", steps=250, evaluate=0)
    assert one.data.dataset is not None
    assert one.data.dataset.env_steps >= 100 + 250 * 10
    assert_same_training(one, without)
    different = cartpole(tmp_path / "different", steps=50, seed=1)
    start = cartpole(tmp_path / "start", steps=50)
    pairs = zip(different.module.parameters(), start.module.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_twenty_thousand_steps_are_reproduced(tmp_path):
    one, other = (cartpole(tmp_path / name, steps=2000, evaluate=500) for name in ("a", "b"))
    assert_same_training(one, other)
    evaluated = [
        [row for row in run.metrics() if "eval/return_mean" in row] for run in (one, other)
    ]
    assert evaluated[0] == evaluated[1]


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return cartpole(tmp_path_factory.mktemp("first"), steps=200, evaluate=0)


@pytest.mark.parametrize("num_actors", [0, 2])
def test_a_resumed_run_goes_on_where_the_first_one_ended(tmp_path, first, num_actors):
    seen: dict[str, Any] = {}

    class Look(L.Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            seen["weights"] = {k: v.clone() for k, v in pl_module.state_dict().items()}
            state = next(iter(trainer.optimizers[0].state.values()))
            seen["moment"] = state["exp_avg"].clone()
            seen["updates"] = int(state["step"])

    actors = background(num_actors, 5) if num_actors else first.data.actors
    data = small_data(
        env=first.data.env,
        actors=actors,
        replay=first.data.replay,
        rate=first.data.rate,
        exploration=first.data.exploration,
    )
    saved = load(first.checkpoint("last"))
    run = make_run(
        tmp_path,
        Look(),
        ActorLearnerCallback(10, 0, 0),
        data=data,
        module=small_agent(),
        seed=1,
        max_steps=260,
        log_every_n_steps=20,
    ).fit(first.checkpoint("last"))
    assert first.data.dataset is not None
    assert run.data.dataset is not None
    before, after = first.data.dataset, run.data.dataset
    assert run.trainer.global_step == 260
    assert after.batches == 60
    assert seen["updates"] == 200
    assert torch.equal(seen["moment"], saved["optimizer_states"][0]["state"][0]["exp_avg"])
    for name, tensor in saved["state_dict"].items():
        assert torch.equal(seen["weights"][name], tensor), name
    assert after.env_steps_offset == before.env_steps >= 100 + 200 * 10
    # 100 steps fill the empty replay again, then 10 for each learner step.
    assert after.env_steps - before.env_steps >= 100 + 60 * 10
    assert num_actors or after.env_steps - before.env_steps < 100 + 61 * 10
    assert after.episodes > before.episodes
    rows = run.metrics()
    assert [int(row["step"]) for row in rows] == [220, 240, 260]
    env_steps = float(rows[0]["count/env_steps"])
    assert env_steps >= before.env_steps + 100 + 20 * 10
    assert float(rows[0]["train/epsilon"]) == pytest.approx(1 - 0.9 * env_steps / 5000, abs=1e-3)


def test_resumed_actors_act_with_the_resumed_weights_and_epsilon(tmp_path, first, monkeypatch):
    """Their first version is the resumed learner step, their exploration goes on."""
    versions: list[int] = []
    spy_on_rows(
        monkeypatch,
        lambda rows: versions.extend(rows.policy_version[rows.kind == RowKind.STEP].tolist()),
    )
    data = small_data(env=first.data.env, actors=background(2, 2), replay=first.data.replay)
    run = make_run(tmp_path, ActorLearnerCallback(10, 0, 0), data=data, max_steps=240)
    run.fit(first.checkpoint("last"))
    assert versions[0] == min(versions) == 200
    assert max(versions) > 200
    assert run.data.dataset is not None
    pool: Any = run.data.dataset.pool
    assert pool.manager.env_steps_offset == first.data.dataset.env_steps


def test_script_checkpoints_load_without_pickle_and_without_arguments(tmp_path):
    module = DQN(
        encoder=functools.partial(MLPEncoder, hidden_sizes=(8, 6)),
        head=functools.partial(ScalarHead, loss="mse"),
        bootstrap=DoubleBootstrap,
        optimizer=functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9),
        lr_scheduler=functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9),
        target_update_tau=0.5,
    )
    run = make_run(tmp_path, module=module, max_steps=10).fit()
    assert float(run.metrics()[-2]["train/lr"]) == pytest.approx(0.5 * 0.9**10)
    for name in ("best", "last"):
        assert load(run.checkpoint(name))["global_step"] == 10
        loaded = DQN.load_from_checkpoint(run.checkpoint(name))
        assert loaded.hparams == module.hparams
        observation = torch.eye(4)
        assert torch.equal(loaded(observation), module(observation))
        assert isinstance(loaded.bootstrap, DoubleBootstrap)
    fresh = make_run(tmp_path, data=small_data(), max_steps=10)
    (metrics,) = fresh.trainer.validate(
        fresh.module.__class__.load_from_checkpoint(run.checkpoint("best")),
        datamodule=fresh.data,
        verbose=False,
    )
    assert metrics["eval/return_mean"] == run.callback.best_model_score
