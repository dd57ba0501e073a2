"""The parts of ActorLearnerCallback alone, and Lightning's own callbacks beside it."""

from __future__ import annotations

import math
import re
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import AfterEachStep, make_run, quiet, small_agent, small_data
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lrl import DQN, ActorLearnerCallback, ConfigError, ReplayConfig, RLProgressBar
from lrl.callbacks import (
    BestCheckpoint,
    PeriodicEvaluation,
    PriorityUpdate,
    RunSummary,
    Throughput,
    WeightSync,
)
from lrl.learner.agent import load_agent
from lrl.replay import PrioritizedSampler

pytestmark = quiet


def test_parts_work_without_the_callback_that_joins_them(tmp_path):
    best, throughput = BestCheckpoint(), Throughput()
    run = make_run(
        tmp_path,
        WeightSync(),
        PeriodicEvaluation(10),
        best,
        throughput,
        RunSummary(best, throughput),
        limit_train_batches=10,
    ).fit()
    evaluated = [int(row["step"]) for row in run.metrics() if "eval/return_mean" in row]
    logged = [int(row["step"]) for row in run.metrics() if "train/loss" in row]
    assert (evaluated, logged) == ([10, 20], [5, 10, 15, 20])
    assert run.checkpoint("best").exists()
    assert (run.folder / "summary.json").exists()
    metrics = run.trainer.validate(datamodule=run.data, ckpt_path="best", verbose=False)
    assert metrics[0]["eval/return_mean"] == best.best_model_score


def test_an_unsized_epoch_works_too(tmp_path):
    """Without an integer limit_train_batches Lightning takes one batch in advance."""
    run = make_run(tmp_path, WeightSync(), PeriodicEvaluation(10), BestCheckpoint()).fit()
    evaluated = [int(row["step"]) for row in run.metrics() if "eval/return_mean" in row]
    assert evaluated == [10, 20]
    assert run.trainer.global_step == 20


@pytest.mark.parametrize("settings", [{}, {"limit_train_batches": 4}])
def test_early_stopping_watches_evaluations(tmp_path, settings):
    """Also where epochs are shorter than the evaluation period."""
    stopping = EarlyStopping("eval/return_mean", mode="max", stopping_threshold=-1.0)
    run = make_run(
        tmp_path, stopping, ActorLearnerCallback(5, 10, 0), max_steps=100, **settings
    ).fit()
    assert run.trainer.global_step == 10
    assert run.checkpoint("last").exists()


def test_model_checkpoint_keeps_the_best_evaluations(tmp_path):
    kept = ModelCheckpoint(
        tmp_path / "kept", monitor="eval/return_mean", mode="max", save_top_k=2,
        filename="{step}", save_last=True,
    )  # fmt: skip
    make_run(tmp_path, kept, ActorLearnerCallback(5, 10, 0), max_steps=30).fit()
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert "last.ckpt" in names
    steps = {int(re.findall(r"\d+", name)[0]) for name in names if name != "last.ckpt"}
    assert len(steps) == 2
    assert steps <= {10, 20, 30}
    for path in (tmp_path / "kept").glob("step*.ckpt"):
        assert torch.load(path, weights_only=True)["global_step"] in steps


@pytest.mark.parametrize("place", [None, "run/version_0/checkpoints"])
def test_two_that_write_the_last_checkpoint_are_refused(tmp_path, place):
    dirpath = place and tmp_path / place
    other = ModelCheckpoint(dirpath, every_n_train_steps=4, save_last=True)
    run = make_run(tmp_path, other, ActorLearnerCallback(5, 0, 0), max_steps=5)
    with pytest.raises(ConfigError, match=r"ModelCheckpoint\.save_last is True, but lrl writes"):
        run.fit()


# Lightning's: the resumed run has a folder of its own.
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_numbered_snapshots_stay_and_can_be_gone_on_with(tmp_path):
    def snapshots() -> ModelCheckpoint:
        return ModelCheckpoint(every_n_train_steps=10, save_top_k=-1, filename="{step}")

    run = make_run(tmp_path, snapshots(), ActorLearnerCallback(5, 20, 0), max_steps=40).fit()
    numbered = {f"step={step}": step for step in (10, 20, 30, 40)}
    names = {path.stem for path in run.checkpoint("last").parent.glob("*.ckpt")}
    assert names == {"best", "last", *numbered}
    for name, step in numbered.items():
        assert load_agent(run.checkpoint(name)).stamp["training"]["learner_steps"] == step
    resumed = make_run(tmp_path, snapshots(), ActorLearnerCallback(5, 0, 0), max_steps=35)
    resumed.fit(run.checkpoint("step=30"))
    assert resumed.trainer.global_step == 35
    assert [int(row["step"]) for row in resumed.metrics()] == [35]


def test_a_graceful_stop_ends_the_run_as_usual(tmp_path):
    def stop(trainer: L.Trainer, batch: Any) -> None:
        trainer.should_stop = trainer.global_step == 7

    run = make_run(tmp_path, AfterEachStep(stop), ActorLearnerCallback(5, 0, 0)).fit()
    assert run.trainer.global_step == 7
    assert torch.load(run.checkpoint("last"), weights_only=True)["global_step"] == 7


# Lightning returns from `validate` what was logged, and warns that there is no logger.
@pytest.mark.filterwarnings("ignore:You called `self.log:UserWarning")
def test_validate_and_test_play_their_own_episodes(tmp_path):
    module, data = small_agent(), small_data()
    run = make_run(tmp_path, module=module, data=data, logger=False)
    (validated,) = run.trainer.validate(module, datamodule=data, verbose=False)
    (again,) = run.trainer.validate(module, datamodule=data, verbose=False)
    (tested,) = run.trainer.test(module, datamodule=data, verbose=False)
    assert validated == again
    assert validated["eval/episodes"] == 2
    assert tested["eval/episodes"] == 4
    assert data.dataset is None  # nothing to train with was built
    assert not (tmp_path / "run").exists()


def test_callbacks_need_the_datamodule(tmp_path):
    batches = [torch.zeros(1)]
    run = make_run(tmp_path, logger=False, default_root_dir=tmp_path)
    with pytest.raises(ConfigError, match="need a ReplayDataModule"):
        run.trainer.fit(small_agent(env_spec=run.data.env_spec), train_dataloaders=batches)


def progress(tmp_path, *callbacks: L.Callback) -> str:
    bar = RLProgressBar(refresh_seconds=0.001)
    texts = []
    read = AfterEachStep(lambda trainer, batch: texts.append(bar.text(trainer)))
    callbacks = (bar, *callbacks, read)
    make_run(tmp_path, *callbacks, enable_progress_bar=True, limit_train_batches=10).fit()
    return texts[-1]


def test_progress_shows_what_a_run_is_doing(tmp_path, capfd):
    text = progress(tmp_path, ActorLearnerCallback(5, 10, 0))
    assert re.fullmatch(
        r"60 env steps \| [\d,]+/s \| rollout \d\.\d \| eval \d\.\d \| eps 0\.99\d \| "
        r"replay 3%( \| (learner waits|actors wait) \d+%)?",
        text,
    )
    shown = capfd.readouterr().err
    assert "learning 20/20 [100%" in shown
    assert text.partition(" | ")[0] in shown


def test_progress_alone_shows_what_it_knows(tmp_path):
    text = progress(tmp_path, WeightSync(), PeriodicEvaluation(0))
    assert text == "60 env steps | 0/s | replay 3%"


def test_a_disabled_progress_bar_is_silent(tmp_path, capfd):
    bar = RLProgressBar()
    bar.disable()
    make_run(tmp_path, bar, ActorLearnerCallback(5, 0, 0), enable_progress_bar=True).fit()
    assert "learning" not in capfd.readouterr().err


@pytest.mark.parametrize("seconds", [0.0, math.nan])
def test_progress_refuses_a_period_that_is_no_positive_number(seconds):
    with pytest.raises(ConfigError, match="refresh_seconds must be a finite number above 0"):
        RLProgressBar(refresh_seconds=seconds)


PRIORITISED = ReplayConfig(capacity=2000, batch_size=8, sampler=PrioritizedSampler)


class Noting(DQN):
    """Keeps what the last learner step returned."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.last = super().training_step(batch, batch_idx)
        return self.last


def test_the_learners_priorities_reach_the_replay_in_a_run(tmp_path):
    """Which rows were drawn last has the weight that the last learner step gave it."""
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        module=(agent := Noting(target_update_period_learner_steps=10)),
        data=small_data(replay=PRIORITISED),
        max_steps=10,
    ).fit()
    assert run.data.dataset is not None
    sampler: Any = run.data.dataset.replay._sampler
    keys, priorities = agent.last["keys"].numpy(), agent.last["priorities"].numpy()
    weights = sampler._tree.get(sampler._slots(keys))
    assert len(set(priorities.tolist())) > 1
    np.testing.assert_allclose(weights, (priorities + sampler.epsilon) ** sampler.alpha, rtol=1e-5)


def test_a_prioritised_run_without_a_way_for_priorities_is_refused(tmp_path):
    run = make_run(tmp_path, WeightSync(), data=small_data(replay=PRIORITISED))
    with pytest.raises(ConfigError, match="needs priorities but no callback hands them on"):
        run.fit()
    make_run(
        tmp_path / "with", PriorityUpdate(), data=small_data(replay=PRIORITISED), max_steps=3
    ).fit()


class BareLoss(DQN):
    """Lightning's own idiom: `training_step` returns nothing but the loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"]


def test_a_training_step_that_returns_no_priorities(tmp_path):
    module = BareLoss(target_update_period_learner_steps=10)
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=module, max_steps=3).fit()
    assert run.trainer.global_step == 3
    module = BareLoss(target_update_period_learner_steps=10)
    data = small_data(replay=PRIORITISED)
    run = make_run(tmp_path / "with", ActorLearnerCallback(5, 0, 0), module=module, data=data)
    with pytest.raises(ConfigError, match="training_step must return a dict with 'loss', 'keys'"):
        run.fit()


@pytest.mark.parametrize("evaluation", ["inline", "background"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("val_check_interval", 7), ("val_check_interval", 1), ("check_val_every_n_epoch", 2)],
)
def test_a_schedule_of_evaluations_that_would_be_passed_over_is_refused(
    tmp_path, evaluation, name, value
):
    callback = ActorLearnerCallback(evaluation=evaluation)
    run = make_run(tmp_path, callback, **{name: value})
    with pytest.raises(ConfigError, match=rf"trainer\.{name} is {value}, .*eval_period_learner"):
        run.fit()


@pytest.mark.parametrize("period", [0, 10])
def test_a_trainer_has_its_own_schedule_back_after_an_exception(tmp_path, period):
    def fail(trainer: L.Trainer, batch: object) -> None:
        raise RuntimeError("on purpose")

    run = make_run(tmp_path, PeriodicEvaluation(period), AfterEachStep(fail))
    with pytest.raises(RuntimeError, match="on purpose"):
        run.fit()
    trainer = run.trainer
    schedule = (trainer.val_check_interval, trainer.check_val_every_n_epoch)
    assert (*schedule, trainer.limit_val_batches) == (1.0, 1, 1.0)
