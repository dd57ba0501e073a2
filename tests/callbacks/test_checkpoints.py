"""Which weights are kept as best and as last, and what their files hold."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import AfterEachStep, make_run, quiet, small_agent, small_data

from lrl import DQN, ActorLearnerCallback, ConfigError
from lrl.callbacks import BestCheckpoint, LastCheckpoint, PeriodicEvaluation
from lrl.evaluation import loader
from lrl.evaluation.episodes import Episodes, EvaluationConfig

pytestmark = quiet


@pytest.fixture
def scores(monkeypatch):
    """Let evaluations score what a list says instead of playing; the last score is repeated."""

    def use(*values: float) -> None:
        remaining = list(values)

        def run_episodes(env: Any, q_function: Any, seeds: Any, **settings: Any) -> Episodes:
            score = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            count = len(seeds)
            return Episodes(
                np.full(count, score), np.ones(count, np.int64), np.zeros(count, np.bool_)
            )

        monkeypatch.setattr(loader, "run_episodes", run_episodes)

    return use


@pytest.fixture
def saves(monkeypatch):
    """Learner steps at which each checkpoint was written, by name."""
    made: dict[str, list[int]] = {"best": [], "last": []}
    original = L.Trainer.save_checkpoint

    def save_checkpoint(self: L.Trainer, filepath: Any, *args: Any, **kwargs: Any) -> None:
        made[Path(filepath).stem].append(self.global_step)
        original(self, filepath, *args, **kwargs)

    monkeypatch.setattr(L.Trainer, "save_checkpoint", save_checkpoint)
    return made


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def best_score(checkpoint: dict[str, Any]) -> float:
    (state,) = (s for name, s in checkpoint["callbacks"].items() if "ActorLearner" in name)
    return state["best_model_score"]


def test_best_needs_a_strictly_better_score_that_is_a_number(tmp_path, scores, saves):
    scores(1.0, 3.0, 3.0, math.nan, 2.0, 5.0, math.nan)
    run = make_run(tmp_path, ActorLearnerCallback(5, 2, 0), max_steps=14).fit()
    assert saves["best"] == [2, 4, 12]
    best = load(run.checkpoint("best"))
    assert best["global_step"] == 12
    assert best_score(best) == 5.0
    assert run.callback.best_model_score == 5.0
    assert run.callback.best_model_path == str(run.checkpoint("best"))
    assert best_score(load(run.checkpoint("last"))) == 5.0


def test_nan_alone_is_never_the_best(tmp_path, scores, saves):
    scores(math.nan)
    run = make_run(tmp_path, ActorLearnerCallback(5, 2, 0), max_steps=4).fit()
    assert saves == {"best": [], "last": [4]}
    assert run.callback.best_model_path == ""
    assert run.callback.best_model_score == -math.inf


def test_a_resumed_run_keeps_the_best_score(tmp_path, scores, saves):
    scores(5.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    saves["best"].clear()
    scores(4.0, 5.0, 6.0)
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 2, 0), max_steps=8)
    second.fit(first.checkpoint("last"))
    assert saves["best"] == [8]
    assert second.callback.best_model_score == 6.0
    assert load(first.checkpoint("best"))["global_step"] == 2
    assert load(second.checkpoint("best"))["global_step"] == 8


def test_best_of_an_earlier_session_stays_the_best(tmp_path, scores):
    scores(5.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    scores(1.0)
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 2, 0), max_steps=4)
    second.fit(first.checkpoint("last"))
    assert second.callback.best_model_path == str(first.checkpoint("best"))
    assert not second.checkpoint("best").exists()


def test_a_best_from_after_the_checkpoint_that_is_resumed_stays_the_best(
    tmp_path, monkeypatch, scores, saves
):
    """As of a run that was killed between an evaluation and the next save."""
    scores(5.0, 9.0)
    first = make_run(tmp_path, ActorLearnerCallback(5, 2, 2), max_steps=4).fit()
    saves["best"].clear()
    scores(7.0, 10.0)
    second = make_run(tmp_path, ActorLearnerCallback(5, 2, 0), max_steps=6)
    monkeypatch.chdir(first.folder)
    second.fit(Path("checkpoints/previous.ckpt"))  # of step 2
    assert saves["best"] == [6]
    assert best_score(load(second.checkpoint("best"))) == 10.0


def test_the_best_of_a_run_that_was_moved_is_found_though_another_is_there_now(tmp_path, scores):
    scores(5.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    (tmp_path / "first").rename(tmp_path / "moved")
    last, best = (
        tmp_path / "moved" / first.checkpoint(name).relative_to(tmp_path / "first")
        for name in ("last", "best")
    )
    scores(9.0)
    make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    scores(1.0)
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 2, 0), max_steps=4)
    second.fit(last)
    assert second.callback.best_model_path == str(best)
    assert second.callback.best_model_score == 5.0


def test_a_callback_that_is_used_again_begins_anew(tmp_path, scores):
    callback = ActorLearnerCallback(5, 2, 0)
    scores(5.0)
    make_run(tmp_path / "first", callback, max_steps=2).fit()
    scores(3.0)
    second = make_run(tmp_path / "second", callback, max_steps=2).fit()
    assert (callback.best_model_score, callback.last.last_model_path) == (
        3.0,
        str(second.checkpoint("last")),
    )
    assert callback.best_model_path == str(second.checkpoint("best"))
    assert second.checkpoint("last").is_file()
    make_run(tmp_path / "second", callback, max_steps=-1, fast_dev_run=1).fit()
    assert load(second.checkpoint("last"))["global_step"] == 2


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"half")])
def test_a_best_that_cannot_be_read_is_none_to_beat(tmp_path, scores, caplog, harm):
    scores(5.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    harm(first.checkpoint("best"))
    scores(1.0)
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 2, 0), max_steps=4)
    second.fit(first.checkpoint("last"))
    assert second.callback.best_model_path == str(second.checkpoint("best"))
    assert second.callback.best_model_score == 1.0
    assert "of score 5, are gone or damaged" in caplog.text
    assert caplog.text.count("gone or damaged") == 1


def test_a_best_score_that_does_not_compare_is_none_to_beat(tmp_path, scores, saves, caplog):
    scores(5.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 2, 0), max_steps=2).fit()
    saves["best"].clear()
    scores(4.0)
    data = small_data(evaluation=EvaluationConfig(episodes=2, epsilon=0.25))
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 2, 0), data=data, max_steps=4)
    second.fit(first.checkpoint("last"))
    assert saves["best"] == [4]
    assert second.callback.best_model_score == 4.0
    assert "evaluation.epsilon 0.25 instead of 0.0" in caplog.text


@pytest.mark.parametrize(
    ("period", "steps", "expected"), [(3, 7, [3, 6, 7]), (3, 6, [3, 6]), (0, 5, [5])]
)
def test_last_is_saved_periodically_and_at_the_end(tmp_path, saves, period, steps, expected):
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, period), max_steps=steps).fit()
    assert saves == {"best": [], "last": expected}
    assert load(run.checkpoint("last"))["global_step"] == steps
    assert run.callback.last.last_model_path == str(run.checkpoint("last"))


def test_last_waits_for_the_evaluation_of_its_step(tmp_path, scores, saves):
    """Saved before, the evaluation would be skipped on resume, and its score unknown."""
    scores(1.0, 2.0)
    first = make_run(tmp_path / "first", ActorLearnerCallback(5, 4, 4), max_steps=4).fit()
    checkpoint = load(first.checkpoint("last"))
    assert best_score(checkpoint) == 1.0
    assert saves["last"] == [4]
    second = make_run(tmp_path / "second", ActorLearnerCallback(5, 4, 4), max_steps=9)
    second.fit(first.checkpoint("last"))
    evaluated = [int(row["step"]) for row in second.metrics() if "eval/return_mean" in row]
    assert evaluated == [8]
    assert saves["last"] == [4, 8, 9]


@pytest.mark.parametrize(("evaluate", "best"), [(4, [4, 8]), (0, [])])
def test_accumulated_batches_count_as_one_learner_step(tmp_path, scores, saves, evaluate, best):
    scores(1.0, 2.0)
    run = make_run(
        tmp_path, ActorLearnerCallback(2, evaluate, 3), max_steps=8, accumulate_grad_batches=3
    ).fit()
    assert saves == {"best": best, "last": [3, 6, 8]}
    assert run.data.dataset is not None
    assert run.data.dataset.batches == 24
    logged = [int(row["step"]) for row in run.metrics() if "train/loss" in row]
    assert logged == [5]
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["learner_steps_per_second"] == pytest.approx(8 / summary["seconds"])


def test_no_evaluation_and_no_saving_by_period_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "run_episodes", None)  # calling it would fail
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0)).fit()
    assert not run.checkpoint("best").exists()
    assert run.checkpoint("last").exists()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ActorLearnerCallback(0), "sync_period_learner_steps"),
        (lambda: ActorLearnerCallback(1, -1), "eval_period_learner_steps"),
        (lambda: ActorLearnerCallback(1, 0, -5), "save_period_learner_steps"),
        (lambda: PeriodicEvaluation(-1), "eval_period_learner_steps"),
        (lambda: LastCheckpoint(-1), "save_period_learner_steps"),
    ],
)
def test_negative_periods_are_refused(make, name):
    with pytest.raises(ConfigError, match=rf"{name} must be at least \d.*got -?\d"):
        make()


def test_an_unknown_monitor_is_named(tmp_path):
    run = make_run(tmp_path, ActorLearnerCallback(5, 2, 0, monitor="eval/score"), max_steps=2)
    with pytest.raises(ConfigError, match=r"monitor 'eval/score' is not logged.*eval/return_mean"):
        run.fit()


class Interrupted(DQN):
    """Ctrl-C arrives in the middle of a step."""

    exception: type[BaseException] = KeyboardInterrupt

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 5:
            raise self.exception
        return super().training_step(batch, batch_idx)


def interrupted(exception: type[BaseException]) -> Interrupted:
    module = Interrupted(**{name: small_agent().hparams[name] for name in ("encoder",)})
    module.exception = exception
    return module


def test_ctrl_c_saves_last(tmp_path, saves):
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=interrupted(KeyboardInterrupt))
    with pytest.raises(SystemExit):  # Lightning's answer
        run.fit()
    assert saves["last"] == [5]
    assert load(run.checkpoint("last"))["global_step"] == 5


def test_an_error_does_not_save_what_may_be_wrong(tmp_path, saves):
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=interrupted(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run.fit()
    assert saves == {"best": [], "last": []}


def test_an_error_in_an_evaluation_leaves_sound_weights(tmp_path, saves, monkeypatch):
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 0))
    monkeypatch.setattr(
        run.module, "on_validation_epoch_start", lambda: (_ for _ in ()).throw(SystemExit(0))
    )
    with pytest.raises(SystemExit):
        run.fit()
    assert saves["last"] == [10]


def test_two_runs_do_not_keep_their_checkpoints_in_one_folder(tmp_path):
    def run(*callbacks: L.Callback, **settings: Any) -> None:
        settings |= {"logger": False, "default_root_dir": tmp_path}
        make_run(tmp_path, *callbacks, ActorLearnerCallback(5, 0, 0), **settings).fit()

    def meanwhile(trainer: L.Trainer, batch: Any) -> None:
        if trainer.global_step == 5:
            with pytest.raises(ConfigError, match="another run trains in"):
                run()
            run(fast_dev_run=1)  # it keeps nothing there

    run(AfterEachStep(meanwhile))
    (tmp_path / "checkpoints" / "last.ckpt").unlink()
    run()  # the folder is free again


def test_a_run_does_not_replace_what_an_earlier_one_has_left(tmp_path, caplog):
    def run(ckpt_path: Path | None = None, **settings: Any) -> None:
        made = make_run(
            tmp_path,
            ActorLearnerCallback(5, 0, 5),
            **{"logger": False, "default_root_dir": tmp_path, "limit_train_batches": 5, **settings},
        )
        made.fit(ckpt_path=ckpt_path)

    run(max_steps=5)
    last = tmp_path / "checkpoints" / "last.ckpt"
    before = last.read_bytes()
    assert " parameters\n" in caplog.text
    caplog.clear()
    with pytest.raises(
        ConfigError, match=r"has last\.ckpt of an earlier run, which this one would"
    ):
        run(max_steps=5)
    assert " parameters\n" not in caplog.text
    assert last.read_bytes() == before
    run(max_steps=5, fast_dev_run=1)
    run(last, max_steps=10)
    elsewhere = tmp_path / "runs" / "checkpoints"
    shutil.copytree(last.parent, elsewhere)
    with pytest.raises(ConfigError, match=r"has last\.ckpt of an earlier run"):
        run(elsewhere / "last.ckpt", max_steps=15)


def test_a_checkpoint_that_cannot_be_written_does_not_hide_the_interrupt(
    tmp_path, monkeypatch, caplog
):
    def no_space(self: Any, filepath: Any, **_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(L.Trainer, "save_checkpoint", no_space)
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=interrupted(KeyboardInterrupt))
    with pytest.raises(SystemExit):
        run.fit()
    assert "no space left on device" in caplog.text
    assert (run.folder / "summary.json").exists()


def test_best_and_last_of_a_callback_are_found_by_the_trainer(tmp_path, scores):
    scores(1.0)
    run = make_run(tmp_path, ActorLearnerCallback(5, 5, 0), max_steps=5).fit()
    assert run.trainer.checkpoint_callback is run.callback
    (metrics,) = run.trainer.validate(
        small_agent(), datamodule=run.data, ckpt_path="best", verbose=False
    )
    assert metrics["eval/return_mean"] == 1.0


def test_best_checkpoint_alone_keeps_its_own_state():
    best = BestCheckpoint("eval/return_min")
    state = {"best_model_score": 2.5, "best_model_path": "there"}  # as 0.1.0 wrote it
    best.load_state_dict(state)
    assert best.state_dict() == {**state, "best_model_monitor": "eval/return_min"}


def test_a_best_by_another_metric_is_not_one_to_beat(tmp_path, scores, caplog):
    scores(5.0)
    callback = ActorLearnerCallback(5, 5, 0, monitor="eval/length_mean")
    first = make_run(tmp_path, callback, max_steps=5).fit()
    summary = json.loads((first.checkpoint("best").parent.parent / "summary.json").read_text())
    assert summary["best_return_mean"] is None
    second = make_run(tmp_path, ActorLearnerCallback(5, 5, 0), max_steps=10)
    scores(-3.0)
    second.fit(first.checkpoint("last"))
    assert "is one of eval/length_mean, and this run's monitor is eval/return_mean" in caplog.text
    assert second.callback.best_model_score == -3.0
    assert second.checkpoint("best").exists()
