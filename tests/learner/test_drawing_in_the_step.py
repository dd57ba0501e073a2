"""Runs in which the learner step draws its batch itself (`replay.index: device`)."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import AfterEachStep, Run, make_run, quiet, small_data
from torch import Tensor

from lrl import DQN, ActorLearnerCallback, ReplayConfig
from lrl.callbacks import NonFiniteGuard, NonFiniteLossError
from lrl.learner.updater import Losses
from lrl.networks import MLPEncoder
from lrl.replay import PrioritizedSampler
from lrl.types import Batch

pytestmark = quiet

SMALL = functools.partial(MLPEncoder, hidden_sizes=(16,))


def run(folder: Path, kind: type[DQN], *callbacks: L.Callback, **trainer: Any) -> Run:
    replay = ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler, index="device")
    return make_run(
        folder,
        *callbacks or (ActorLearnerCallback(eval_period_learner_steps=0),),
        module=kind(SMALL),
        data=small_data(replay=replay),
        **trainer,
    )


class Logging(DQN):
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        outputs = super().training_step(batch, batch_idx)
        self.log("own/step", float(batch_idx), on_epoch=True)
        return outputs


@pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`")  # as with any batch
def test_what_a_user_logs_has_a_mean(tmp_path: Path):
    found = run(tmp_path, Logging, max_steps=5).fit().trainer.callback_metrics
    assert float(found["own/step_epoch"]) == 2


def test_as_many_keys_as_priorities_come_out_of_a_step(tmp_path: Path):
    """Those of no row, so that nobody can take them for the rows that were drawn."""
    shapes: list[Any] = []

    class Noting(L.Callback):
        def on_train_batch_end(
            self,
            trainer: L.Trainer,
            pl_module: L.LightningModule,
            outputs: Any,
            batch: Any,
            batch_idx: int,
        ) -> None:
            shapes.append((outputs["keys"].shape, outputs["priorities"].shape))
            assert bool((outputs["keys"] == -1).all())

    callback = ActorLearnerCallback(eval_period_learner_steps=0)
    run(tmp_path, DQN, callback, Noting(), max_steps=5).fit()
    assert shapes == [((8, 2), (8,))] * 5


def test_who_looks_at_the_batch_is_told_where_it_is(tmp_path: Path):
    said = "the batch has no reward yet: .* look at it in compute_loss, or set replay.index to host"
    looking = AfterEachStep(lambda trainer, batch: batch.reward)
    with pytest.raises(AttributeError, match=said):
        run(tmp_path, DQN, ActorLearnerCallback(), looking).fit()


def test_no_callback_has_to_hand_priorities_on(tmp_path: Path):
    found = run(tmp_path, DQN, NonFiniteGuard()).fit()
    assert found.data.dataset is not None
    assert found.data.dataset.replay.metrics()["replay/priority_max"] > 1


class Diverging(DQN):
    """In the first step that is logged, priorities are what they should not be, or all is."""

    priority, loss = -1.0, 1.0

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        if self.trainer.global_step + 1 < 5:
            return losses
        td = losses.td._replace(
            loss=losses.td.loss * self.loss,
            priority=torch.full_like(losses.td.priority, self.priority),
        )
        return Losses(losses.loss * self.loss, td)


class AllNaN(Diverging):
    priority = loss = math.nan


def test_a_loss_that_is_not_finite_is_told_of_before_its_priorities(tmp_path: Path):
    """As on a GPU, where losses are looked at two steps later: the dump is of the batch drawn."""
    diverging = run(tmp_path, AllNaN)
    diverging.callback.guard.lag_learner_steps = 2
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 5") as caught:
        diverging.fit()
    (path,) = re.findall(r"its batch is in (\S+\.pt)", str(caught.value))
    dumped = torch.load(path, weights_only=True)
    assert dumped["learner_step"] == 5
    assert dumped["batch"]["reward"].shape == dumped["row_loss"].shape == (8,)


def test_a_priority_that_cannot_be_is_told_of_when_it_is_logged(tmp_path: Path):
    with pytest.raises(ValueError, match="absolute TD errors and losses are not negative"):
        run(tmp_path, Diverging).fit()
