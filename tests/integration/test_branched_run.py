"""Runs with several branches: joined they are a flat space; they are resumed and served alike."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.exact_runs import assert_same, outcome, saving_run
from helpers.tiny_networks import FlatEncoder
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
    spy_on_rows,
)

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
    SequenceConfig,
)
from lrl.actors.exploration import Boltzmann, EpsilonGreedy, Exploration, Mixture
from lrl.envs import WrapperConfig, restorable
from lrl.envs.toy import Dials
from lrl.learner import DoubleBootstrap, MunchausenBootstrap, NoBootstrap
from lrl.networks import CategoricalHead, GRUCore, ScalarHead
from lrl.replay import PrioritizedSampler, Rollouts
from lrl.schedules import Constant, Linear
from lrl.types import Batch, RowKind, Rows

pytestmark = quiet

MASKS = torch.tensor(np.stack([np.concatenate(Dials.mask(lock)) for lock in range(9)]) > 0)


def dials(masks: bool = True, **settings: Any) -> EnvConfig:
    return EnvConfig("lrl/Dials-v0", {"masks": masks}, action_masks=masks, **settings)


# --- Joined ---------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [False, True])
def test_joined_branches_train_as_a_space_that_was_flattened_by_hand(tmp_path, masks):
    joined = dials(masks, wrappers=[WrapperConfig("lrl.envs.JointActions")])
    factory = "helpers.branched_envs.FlatDials"
    flat = EnvConfig(factory=factory, kwargs={"masks": masks}, action_masks=masks)
    exploration = Mixture(EpsilonGreedy(Constant(0.5)), Boltzmann(Constant(1.0)), Constant(0.5))

    def trained(env: EnvConfig) -> Any:
        L.seed_everything(3, verbose=False)
        module = small_agent(head=functools.partial(ScalarHead, dueling=True))
        data = small_data(env=env, exploration=exploration, seed=3)
        run = saving_run(tmp_path, module, data, max_steps=60, evaluate=30)
        return outcome(run.fit())

    assert_same(trained(joined), trained(flat))


# --- Resumed --------------------------------------------------------------------------------


def exact_run(folder: Path, max_steps: int, seed: int = 0) -> Run:
    L.seed_everything(seed, verbose=False)
    priorities = functools.partial(PrioritizedSampler, beta=Linear(0.4, 1.0, 120))
    head = functools.partial(CategoricalHead, v_min=-20.0, v_max=0.0, dueling=True, noisy=True)
    return saving_run(
        folder,
        small_agent(head=head, bootstrap=MunchausenBootstrap),
        small_data(
            env=dials(),
            replay=ReplayConfig(300, batch_size=16, n_step=2, gamma=0.9, sampler=priorities),
            exploration=EpsilonGreedy(Linear(1.0, 0.1, 300)),
            seed=seed,
        ),
        max_steps=max_steps,
        evaluate=25,
    )


def test_an_interrupted_run_equals_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 60)
    straight = outcome(exact_run(tmp_path, 90).fit())
    first = exact_run(tmp_path, 52).fit()
    assert_same(outcome(exact_run(tmp_path, 90, seed=7).fit(first.checkpoint("last"))), straight)


# --- Other experience ------------------------------------------------------------------------


def learnt(folder: Path, module: DQN, **settings: Any) -> list[Any]:
    """Train for 20 steps on masked dials; return the batches."""
    batches: list[Any] = []
    data = small_data(env=dials(), actors=ActorConfig(0, 8), **settings)
    callbacks = [AfterEachStep(lambda _, batch: batches.append(batch)), ActorLearnerCallback(10, 0)]
    make_run(folder, *callbacks, module=module, data=data, max_steps=20).fit()
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    return batches


def test_sequences_hold_a_choice_in_each_branch(tmp_path):
    module = small_agent(
        core=functools.partial(GRUCore, hidden_size=7), bootstrap=MunchausenBootstrap
    )
    sequences = SequenceConfig(length=6, overlap=3, burn_in=2)
    replay = ReplayConfig(2000, batch_size=4, n_step=1, gamma=0.9, sequences=sequences)
    batches = learnt(tmp_path, module, replay=replay)
    assert batches[0].action.shape == (4, 6, 2)


def test_rollouts_hold_a_choice_in_each_branch(tmp_path):
    rollouts = functools.partial(Rollouts, num_steps=8, num_minibatches=1, epochs=1)
    module = DQN(encoder=FlatEncoder, bootstrap=NoBootstrap)
    batches = learnt(
        tmp_path, module, replay=ReplayConfig(), rate=RateLimiterConfig(), experience=rollouts
    )
    assert batches[0].action.shape == (64, 2)


# --- Masked, in every mode ------------------------------------------------------------------


class Seen:
    """Looks at all rows that are made and batches that are learnt from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: set[tuple[int, int, int]] = set()
        self.batches = 0
        spy_on_rows(monkeypatch, self.rows)

    def rows(self, rows: Rows) -> None:
        acted = rows.kind == RowKind.STEP
        locks, actions = rows.frame[acted].argmax(axis=1), rows.action[acted]
        for branch, offset in enumerate((0, 3)):
            assert MASKS.numpy()[locks, actions[:, branch] + offset].all()
            taken = zip(locks.tolist(), actions[:, branch].tolist(), strict=True)
            self.taken |= {(lock, branch, choice) for lock, choice in taken}

    def batch(self, trainer: L.Trainer, batch: Batch) -> None:
        self.batches += 1
        assert batch.action.shape == (len(batch.reward), 2)
        assert batch.action_mask is not None
        assert batch.next_action_mask is not None
        assert torch.equal(batch.action_mask, MASKS[batch.observation.argmax(dim=1)])
        expected = MASKS[batch.next_observation.argmax(dim=1)] | (batch.discount == 0)[:, None]
        assert torch.equal(batch.next_action_mask, expected)


def masked_run(
    folder: Path, seen: Seen, steps: int, exploration: Exploration, **settings: Any
) -> Run:
    data = small_data(
        env=dials(),
        replay=ReplayConfig(capacity=2000, batch_size=32, n_step=1, gamma=0.99),
        rate=RateLimiterConfig(samples_per_insert=16.0, warm_up_env_steps=200),
        exploration=exploration,
        **settings,
    )
    module = DQN(
        encoder=FlatEncoder,  # a table of values
        bootstrap=DoubleBootstrap,
        optimizer=functools.partial(torch.optim.Adam, lr=0.1),
        target_update_period_learner_steps=10,
    )
    callbacks = [AfterEachStep(seen.batch), ActorLearnerCallback(10, 0, 0)]
    return make_run(folder, *callbacks, module=module, data=data, max_steps=steps).fit()


def test_the_best_allowed_setting_of_every_lock_is_learnt(tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    exploration = EpsilonGreedy(Linear(1.0, 0.3, 1000))
    run = masked_run(tmp_path, seen, 500, exploration, actors=ActorConfig(0, 4))
    # Both settings of both dials were tried at every lock: masks keep the others out.
    assert seen.taken == {
        (lock, branch, (Dials.setting(lock)[branch] + more) % (3, 5)[branch])
        for lock in range(8) for branch in range(2) for more in range(2)
    }  # fmt: skip
    (metrics,) = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    assert metrics["eval/return_mean"] == Dials().optimal_return


@pytest.mark.slow
@pytest.mark.parametrize("inference", [None, InferenceConfig(groups_per_actor=2)])
def test_actors_in_processes_choose_in_every_branch(tmp_path, monkeypatch, inference):
    seen = Seen(monkeypatch)
    exploration = EpsilonGreedy(Constant(0.5))
    run = masked_run(tmp_path, seen, 60, exploration, actors=background(2, 2), inference=inference)
    assert seen.batches == 60
    assert all(torch.isfinite(parameter).all() for parameter in run.module.parameters())
    assert run.data.dataset is not None
    pool: Any = run.data.dataset.pool
    assert pool.manager.restarts == 0
