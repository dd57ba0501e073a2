"""Runs whose observations are nested, of leaves of all kinds: none is lost, torn or exchanged.

Each leaf is a function of another one, `LedgerEnv`'s frame, which says what has to follow.
"""

from __future__ import annotations

import functools
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.dict_envs import NestedLedger, assert_nested
from helpers.exact_runs import assert_same, outcome, saving_run
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    quiet,
    small_data,
    spy_on_rows,
)
from helpers.waiting import wait_for

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    InferenceConfig,
    ReplayConfig,
    ReplayDataModule,
)
from lrl.networks import MLPEncoder, MultiEncoder
from lrl.pools.processes import ProcessPool
from lrl.testing import Ledger
from lrl.types import Batch, Rows

pytestmark = [*quiet, pytest.mark.usefixtures("janitor")]

N_STEP, GAMMA, STACK = 3, 0.5, 2


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Looks at all rows that a learner receives; the leaves of each must belong together."""
    found = Ledger(NestedLedger(), frame_stack=STACK)

    def note(rows: Rows) -> None:
        found.take(replace(rows, frame=assert_nested(rows.frame)))

    spy_on_rows(monkeypatch, note)
    return found


def nested_data(actors: ActorConfig, **settings: Any) -> ReplayDataModule:
    replay = ReplayConfig(capacity=2000, batch_size=16, n_step=N_STEP, gamma=GAMMA)
    env = EnvConfig(factory=NestedLedger, frame_stack=STACK)
    return small_data(env=env, actors=actors, replay=replay, **settings)


def nested_agent() -> DQN:
    encoders = {"frame": functools.partial(MLPEncoder, hidden_sizes=(8,))}
    encoder = functools.partial(
        MultiEncoder, encoders=encoders, ignored=["moods.1.digits"], hidden_size=16
    )
    return DQN(encoder, target_update_period_learner_steps=10)


def checked_run(folder: Path, ledger: Ledger, data: ReplayDataModule, *more: Any, **trainer: Any):
    def look(trainer: L.Trainer, batch: Batch) -> None:
        now, then = (assert_nested(o) for o in (batch.observation, batch.next_observation))
        frames = replace(
            batch, observation=torch.from_numpy(now), next_observation=torch.from_numpy(then)
        )
        ledger.take_batch(frames, N_STEP, GAMMA)

    callbacks = (AfterEachStep(look), ActorLearnerCallback(5, 0, 0), *more)
    return make_run(folder, *callbacks, module=nested_agent(), data=data, **trainer)


def test_rows_and_transitions_are_those_of_the_environment(tmp_path, ledger):
    checked_run(tmp_path, ledger, nested_data(ActorConfig(0, 3)), max_steps=60).fit()
    ledger.raise_faults()
    assert ledger.counts["transitions"] == 60 * 16
    assert ledger.counts["instances"] == 3


@pytest.mark.slow
def test_leaves_stay_together_when_an_actor_is_killed(tmp_path, ledger):
    data = nested_data(background(2, 2))

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        assert data.dataset is not None
        pool = data.dataset.pool
        assert isinstance(pool, ProcessPool)
        if trainer.global_step == 30:
            pid = pool.manager.processes[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        if trainer.global_step >= 60:
            wait_for(lambda: run.take(0.05) or pool.manager.restarts, "the restart")
            wait_for(lambda: run.take(0.05) or ledger.counts["instances"] >= 6, "its rows")

    run = checked_run(tmp_path, ledger, data, AfterEachStep(after_each_step), max_steps=61)
    run.fit()
    ledger.raise_faults()
    assert ledger.counts["instances"] == 6  # two environments begin anew
    assert run.trainer.global_step == 61


@pytest.mark.slow
def test_leaves_reach_inference_servers_and_checkpoints(tmp_path, ledger):
    data = nested_data(background(1, 3), inference=InferenceConfig())
    run = checked_run(tmp_path, ledger, data, max_steps=40).fit()
    ledger.raise_faults()
    loaded = DQN.load_from_checkpoint(run.checkpoint("last"))
    assert isinstance(loaded.online.encoder, MultiEncoder)
    assert loaded.env_spec == run.data.env_spec
    assert_same(dict(loaded.state_dict()), dict(run.module.state_dict()))


def test_a_run_goes_on_bit_for_bit(tmp_path):
    def run(seed: int, steps: int) -> Run:
        L.seed_everything(seed, verbose=False)
        data = nested_data(ActorConfig(0, 2), seed=seed)
        return saving_run(tmp_path, nested_agent(), data, max_steps=steps, evaluate=10)

    straight = run(seed=0, steps=40).fit()
    first = run(seed=0, steps=23).fit()
    second = run(seed=7, steps=40).fit(first.checkpoint("last"))
    assert_same(outcome(second), outcome(straight))


def test_nothing_has_to_be_set(tmp_path, caplog):
    run = make_run(tmp_path, module=DQN(), data=nested_data(ActorConfig(0, 2)), max_steps=2)
    with caplog.at_level("INFO"):
        run.fit()
    (said,) = [text for text in caplog.messages if "encoders where nothing is set" in text]
    assert "moods.0 (3 categories (2,)) MLPEncoder(hidden_sizes=(64,))" in said
