"""Evaluation beside training: scores, steps and checkpoints that belong together."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import AfterEachStep, Run, make_run, quiet, small_agent, small_data
from lightning.pytorch.callbacks import EarlyStopping

from lrl import ActorConfig, ActorLearnerCallback, ConfigError, EnvConfig, EvaluationConfig
from lrl.actors.policy import NetworkPolicy
from lrl.evaluation.episodes import run_episodes
from lrl.evaluation.evaluator import EvaluatorError
from lrl.learner.agent import load_agent

pytestmark = quiet


def slow_enough_to_follow(trainer: L.Trainer, batch: object) -> None:
    """Let each evaluation end before the next one is due."""
    callback = next(c for c in trainer.callbacks if isinstance(c, ActorLearnerCallback))  # pyright: ignore[reportAttributeAccessIssue]
    evaluator = callback.evaluation._evaluator  # pyright: ignore[reportAttributeAccessIssue]
    while evaluator is not None and evaluator.is_busy:
        time.sleep(0.01)


def run_of(folder: Path, mode: str, *callbacks: L.Callback, **settings) -> Run:
    callback = ActorLearnerCallback(5, 10, 10, evaluation=mode)  # pyright: ignore[reportArgumentType]
    data = small_data(evaluation=EvaluationConfig(episodes=4), **settings)
    return make_run(folder, callback, *callbacks, data=data, max_steps=40)


def faulty(fault: str) -> EnvConfig:
    return EnvConfig("helpers.odd_envs:Faulty-v0", {"fault": fault, "after": 0, "evaluator": True})


def evaluations(run: Run) -> dict[int, dict[str, float]]:
    return {
        int(row["step"]): {k: float(v) for k, v in row.items() if k.startswith("eval/")}
        for row in run.metrics()
        if "eval/return_mean" in row
    }


@pytest.mark.usefixtures("janitor")
def test_scores_equal_those_of_inline_evaluation(tmp_path: Path):
    background = run_of(tmp_path / "b", "background", AfterEachStep(slow_enough_to_follow)).fit()
    inline = run_of(tmp_path / "i", "inline").fit()
    assert list(evaluations(background)) == [10, 20, 30, 40]
    assert evaluations(background) == evaluations(inline)
    assert background.callback.best_model_score == inline.callback.best_model_score
    best, other = (
        torch.load(r.checkpoint("best"), weights_only=True) for r in (background, inline)
    )
    assert best["global_step"] == other["global_step"]
    assert best["callbacks"].keys() == other["callbacks"].keys()
    for name, tensor in best["state_dict"].items():
        assert torch.equal(tensor, other["state_dict"][name])


def test_the_best_checkpoint_holds_the_weights_that_were_evaluated_and_their_score(tmp_path: Path):
    run = run_of(tmp_path, "background").fit()
    agent = load_agent(run.checkpoint("best"))
    step = agent.stamp["training"]["learner_steps"]
    policy = NetworkPolicy(agent.module.online, noise=False)
    episodes = run_episodes(agent.env, policy, range(4), epsilon=0.0, max_frames=108_000)
    assert float(episodes.returns.mean()) == evaluations(run)[step]["eval/return_mean"]
    assert not list((run.folder / "checkpoints").glob("candidate*"))
    content = torch.load(run.checkpoint("best"), weights_only=True)
    (state,) = [s for s in content["callbacks"].values() if "best_model_score" in s]
    assert state["best_model_score"] == run.callback.best_model_score  # a resumed run keeps it
    assert state["best_model_path"] == str(run.checkpoint("best"))


def test_the_last_checkpoint_knows_the_last_score(tmp_path: Path):
    run = run_of(tmp_path, "background").fit()  # it is saved at the step of the last evaluation
    content = torch.load(run.checkpoint("last"), weights_only=True)
    (state,) = [s for s in content["callbacks"].values() if "best_model_score" in s]
    assert content["global_step"] == 40
    assert state["best_model_score"] == run.callback.best_model_score


def test_a_resumed_run_plays_the_evaluation_that_was_lost(tmp_path: Path, caplog):
    """Its candidate lies beside the checkpoint that is resumed, and is not cleared away."""
    resumed = run_of(tmp_path / "b", "background", AfterEachStep(slow_enough_to_follow))
    path = resumed.checkpoint("at_20")

    def stop(trainer: L.Trainer, batch: object) -> None:
        if trainer.global_step == 20:
            trainer.save_checkpoint(path)
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        run_of(tmp_path / "a", "background", AfterEachStep(stop)).fit()
    shutil.rmtree(tmp_path / "a")  # with the best so far: the next one is the best
    resumed.fit(path)
    assert list(evaluations(resumed)) == [20, 30, 40]
    assert resumed.checkpoint("best").is_file()
    assert "not kept" not in caplog.text


def test_a_trial_run_plays_and_keeps_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback, data = ActorLearnerCallback(evaluation="background"), small_data()
    callback.evaluation.period_learner_steps = 2
    trainer = L.Trainer(
        fast_dev_run=4, accelerator="cpu", callbacks=[callback], enable_progress_bar=False
    )
    trainer.fit(small_agent(), datamodule=data)
    assert "eval/return_mean" in trainer.callback_metrics
    assert callback.summary.verdict
    assert list(tmp_path.iterdir()) == []


def test_a_callback_can_be_used_again_after_an_exception(tmp_path: Path):
    broken = True

    def interrupt_once(trainer: L.Trainer, batch: object) -> None:
        if broken and trainer.global_step == 31:
            raise KeyboardInterrupt
        slow_enough_to_follow(trainer, batch)

    first = run_of(tmp_path / "a", "background", AfterEachStep(interrupt_once))
    with pytest.raises(SystemExit):
        first.fit()
    assert first.trainer.limit_val_batches == 1.0
    broken = False
    data = small_data(evaluation=EvaluationConfig(episodes=4))
    callbacks = (first.callback, AfterEachStep(interrupt_once))
    second = make_run(tmp_path / "b", *callbacks, data=data, max_steps=20).fit()
    assert list(evaluations(second)) == [10, 20]


def test_the_last_weights_are_evaluated_though_the_evaluator_is_busy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    env = faulty("slow")
    with caplog.at_level(logging.WARNING, logger="lrl"):
        run = run_of(tmp_path, "background", env=env).fit()
    left_out = [r for r in caplog.messages if "is left out" in r]
    assert evaluations(run).keys() >= {10, 40}
    assert len(left_out) == 4 - len(evaluations(run)) > 0
    assert "that of step 10 still runs" in left_out[0]
    assert "raise eval_period_learner_steps" in left_out[0]


def test_a_killed_evaluator_begins_again(tmp_path: Path):
    killed = []

    def kill_once(trainer: L.Trainer, batch: object) -> None:
        if trainer.global_step == 10 and not killed:
            evaluator: Any = run.callback.evaluation._evaluator  # pyright: ignore[reportAttributeAccessIssue]
            os.kill(evaluator.processes[0].pid, signal.SIGKILL)
            killed.append(evaluator)
        slow_enough_to_follow(trainer, batch)

    run = run_of(tmp_path, "background", AfterEachStep(kill_once))
    run.fit()
    assert killed[0].restarts == 1
    assert list(evaluations(run)) == [10, 20, 30, 40]


def test_one_that_never_gets_through_its_episodes_ends_the_run(tmp_path: Path):
    actors = ActorConfig(num_actors=0, envs_per_actor=2, max_restarts=2)
    run = run_of(tmp_path, "background", env=faulty("vanish"), actors=actors)
    with pytest.raises(EvaluatorError, match="failed 3 times at the episodes of learner step 10"):
        run.fit()


def test_an_error_in_an_episode_ends_the_run_with_its_traceback(tmp_path: Path):
    run = run_of(tmp_path, "background", env=faulty("error"))
    with pytest.raises(EvaluatorError, match=r"evaluator .* failed:(?s:.*)the ball is lost"):
        run.fit()
    assert torch.load(run.checkpoint("last"), weights_only=True)["global_step"] >= 10


def test_a_callback_that_waits_for_lightnings_validation_is_refused(tmp_path: Path):
    callback = ActorLearnerCallback(5, 10, evaluation="background")
    stopping = EarlyStopping("eval/return_mean", mode="max")
    with pytest.raises(ConfigError, match="EarlyStopping monitors eval/return_mean"):
        make_run(tmp_path, callback, stopping).fit()


def test_only_the_two_modes_exist():
    with pytest.raises(ConfigError, match="must be 'inline' or 'background', got 'aside'"):
        ActorLearnerCallback(evaluation="aside")  # pyright: ignore[reportArgumentType]


def test_a_period_of_0_would_do_nothing_and_is_refused():
    with pytest.raises(ConfigError, match="'background', but eval_period_learner_steps is 0"):
        ActorLearnerCallback(5, 0, evaluation="background")


def test_the_evaluator_counts_as_busy_when_threads_are_shared(tmp_path: Path, monkeypatch):
    seen = []
    from lrl.learner import datamodule

    monkeypatch.setattr(
        datamodule, "share_cores", lambda threads, ranks, busy: seen.append(busy) or 1
    )
    for mode in ("inline", "background"):
        data = small_data(learner_threads=None, actors=ActorConfig(num_actors=0))
        callback = ActorLearnerCallback(5, 10, evaluation=mode)  # pyright: ignore[reportArgumentType]
        make_run(tmp_path, callback, data=data, max_steps=1).fit()
    assert seen == [0, 1]
