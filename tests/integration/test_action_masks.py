"""Runs with action masks, from the environment to the loss, with actors here and in processes.

`lrl/Masked-v0` raises where a forbidden action is taken, and its masks follow from its
observations. Its values are below 0, so untrained actions look better than what is allowed.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
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

from lrl import DQN, ActorConfig, ActorLearnerCallback, EnvConfig, RateLimiterConfig, ReplayConfig
from lrl.actors.exploration import Boltzmann, EpsilonGreedy, Exploration, Mixture
from lrl.envs.toy import Masked
from lrl.learner import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.schedules import Constant, Linear
from lrl.types import Batch, RowKind, Rows

pytestmark = quiet
PLACES, ACTIONS = 6, 4
MASKED = EnvConfig("lrl/Masked-v0", action_masks=True)
MASKS = torch.tensor(np.stack([Masked.mask(place) for place in range(PLACES)]) > 0)
MASKS[-1] = True  # nothing is chosen in the last place


class Seen:
    """All rows that were made and batches that were learnt from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.batches: list[Batch] = []

        def spied(rows: Rows) -> None:
            acted = rows.kind == RowKind.STEP
            self.frames.append(rows.frame[acted].copy())
            self.actions.append(rows.action[acted].copy())

        spy_on_rows(monkeypatch, spied)

    def note(self, trainer: L.Trainer, batch: Any) -> None:
        self.batches.append(batch)

    def check(self) -> None:
        places = np.concatenate(self.frames).argmax(axis=1)
        actions = np.concatenate(self.actions)
        assert MASKS.numpy()[places, actions].all()
        # Both actions of every place were tried: it is the mask that keeps the others out.
        assert len(set(zip(places.tolist(), actions.tolist(), strict=True))) == 2 * (PLACES - 1)
        for batch in self.batches:
            assert batch.action_mask is not None
            assert batch.next_action_mask is not None
            assert torch.equal(batch.action_mask, MASKS[batch.observation.argmax(dim=1)])
            expected = MASKS[batch.next_observation.argmax(dim=1)] | (batch.discount == 0)[:, None]
            assert torch.equal(batch.next_action_mask, expected)


def masked_run(
    folder: Path, seen: Seen, actors: ActorConfig, exploration: Exploration, module: DQN, steps: int
) -> Run:
    data = small_data(
        env=MASKED,
        actors=actors,
        replay=ReplayConfig(capacity=2000, batch_size=32, n_step=1, gamma=1.0),
        rate=RateLimiterConfig(samples_per_insert=8.0, warm_up_env_steps=200),
        exploration=exploration,
    )
    callbacks = [AfterEachStep(seen.note), ActorLearnerCallback(10, 0, 0)]
    return make_run(folder, *callbacks, module=module, data=data, max_steps=steps).fit()


@pytest.mark.parametrize("rule", [MaxBootstrap, DoubleBootstrap, MunchausenBootstrap])
def test_the_best_allowed_way_is_learnt(tmp_path, monkeypatch, rule):
    seen = Seen(monkeypatch)
    exploration = EpsilonGreedy(Linear(1.0, 0.3, 1000))
    module = DQN(
        encoder=FlatEncoder,  # a table of values: what is never taken keeps its first one
        bootstrap=rule,
        optimizer=functools.partial(torch.optim.SGD, lr=1.0),
        target_update_period_learner_steps=10,
    )
    run = masked_run(tmp_path, seen, ActorConfig(0, 4), exploration, module, steps=400)
    seen.check()
    with torch.no_grad():
        q = run.module(torch.eye(PLACES))[:-1]
    values = torch.tensor([Masked().optimal_return + place for place in range(PLACES - 1)])
    best = q.masked_fill(~MASKS[:-1], -torch.inf).max(dim=1)
    assert best.indices.tolist() == [place % ACTIONS for place in range(PLACES - 1)]
    if rule is not MunchausenBootstrap:  # its values hold a bonus
        torch.testing.assert_close(best.values, values, atol=0.5, rtol=0.0)
    # Without the mask, some place would be left by an action that was never tried.
    assert (q.max(dim=1).values > best.values).any()
    (metrics,) = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    assert metrics["eval/return_mean"] == Masked().optimal_return


@pytest.mark.parametrize(
    "exploration",
    [
        EpsilonGreedy(Constant(0.5)),
        Mixture(EpsilonGreedy(Constant(1.0)), Boltzmann(Constant(0.5)), Linear(0.0, 1.0, 500)),
    ],
    ids=["epsilon", "mixture"],
)
def test_actors_in_processes_take_allowed_actions_only(tmp_path, monkeypatch, exploration):
    seen = Seen(monkeypatch)
    module = small_agent(bootstrap=MunchausenBootstrap)
    run = masked_run(tmp_path, seen, background(2, 2), exploration, module, steps=60)
    seen.check()
    assert len(seen.batches) == 60
    assert all(torch.isfinite(parameter).all() for parameter in run.module.parameters())
    assert run.data.dataset is not None
    pool: Any = run.data.dataset.pool
    assert pool.manager.restarts == 0
