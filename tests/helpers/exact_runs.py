"""Runs in synchronous mode that save their replay, ways to end them, and all that must be equal."""

from __future__ import annotations

import copy
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from helpers.training_runs import Run, make_run
from lrl import ActorLearnerCallback, ReplayDataModule
from lrl.checkpoints.generators import generator_states
from lrl.learner.dqn import DQN
from lrl.pools.local import LocalPool

_OF_THIS_SESSION = ("speed/", "epoch", "count/rows_received", "sync/policy_version")


class PowerCut(Exception):
    """Nobody expects it, so nothing is saved."""


class EndAt(L.Callback):
    """Ends the run after a learner step, or in the evaluation that follows it."""

    def __init__(self, how: str, learner_step: int) -> None:
        self.how, self.learner_step = how, learner_step

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.learner_step:
            if self.how == "power cut":
                raise PowerCut
            if self.how == "Ctrl-C":
                signal.raise_signal(signal.SIGINT)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == self.learner_step and self.how == "Ctrl-C in evaluation":
            signal.raise_signal(signal.SIGINT)


def saving_run(
    folder: Path,
    module: DQN,
    data: ReplayDataModule,
    *callbacks: L.Callback,
    max_steps: int,
    evaluate: int,
    save: int = 0,
    saves_replay: bool = True,
    **trainer: Any,
) -> Run:
    """Make a run that saves its replay; the caller has seeded the weights."""
    callback = ActorLearnerCallback(5, evaluate, save, checkpoint_replay=saves_replay)
    return make_run(
        folder, *callbacks, callback, module=module, data=data, max_steps=max_steps, seed=None,
        **trainer,
    )  # fmt: skip


def fit_until_it_ends(run: Run, how: str) -> None:
    if how == "max_steps":
        run.fit()
        return
    with pytest.raises(PowerCut if how == "power cut" else SystemExit):
        run.fit()


def outcome(run: Run) -> dict[str, Any]:
    """Return all that training goes on from, and what comes of it: copies."""
    dataset = run.data.dataset
    assert dataset is not None
    pool = dataset.pool
    assert isinstance(pool, LocalPool)
    replay, streams = dataset.replay, dataset.replay.streams
    stored = [
        {name: column[span].clone() for name, column in streams.columns.items()}
        for span in streams.spans(streams.oldest, streams.counts)
    ]
    schedulers = [config.scheduler.state_dict() for config in run.trainer.lr_scheduler_configs]
    state = {
        "generators": generator_states(),
        "learner_steps": run.trainer.global_step,
        "weights": run.module.state_dict(),
        "optimizer": run.trainer.optimizers[0].state_dict(),
        "schedulers": schedulers,
        "env_steps": dataset.env_steps,
        "episodes": dataset.episodes,
        "limiter": dataset.limiter.state_dict(),
        "rows": stored,
        "replay": replay.state(with_rows=True),
        "rollout": dataset.rollout.state_dict(),
        "pool": pool.state_dict(),
        "epsilon": run.data.epsilon_mean(pool.actor.run_env_steps),
        "best": run.callback.best_model_score,
    }
    state = copy.deepcopy(state)
    return {**state, "next batches": [vars(replay.sample(32)) for _ in range(3)]}


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Compare nested state, bit for bit."""
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), path
        for key, value in one.items():
            assert_same(value, other[key], f"{path}/{key}")
    elif isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        assert len(one) == len(other), path
        for index, value in enumerate(one):
            assert_same(value, other[index], f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other), path
    else:
        assert one == other, path


def rows_until(run: Run, learner_step: int) -> list[dict[str, str]]:
    """Return the logged rows up to a step, without what depends on time or on the session."""
    return [
        {name: value for name, value in row.items() if not name.startswith(_OF_THIS_SESSION)}
        for row in run.metrics()
        if int(row["step"]) <= learner_step
    ]
