"""Actors fail while a Trainer fits: the run goes on, or ends with the reason."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import (
    AfterEachStep,
    Run,
    actor_processes,
    background,
    make_run,
    quiet,
    small_data,
)
from helpers.waiting import wait_for

from lrl import ActorLearnerCallback, EnvConfig, RateLimiterConfig
from lrl.actors.manager import ActorError
from lrl.pools.processes import ProcessPool

pytestmark = [*quiet, pytest.mark.usefixtures("janitor")]


def faulty(**kwargs: Any) -> EnvConfig:
    return EnvConfig(id="helpers.odd_envs:Faulty-v0", kwargs=kwargs)


def pool_of(run: Run) -> ProcessPool:
    assert run.data.dataset is not None
    pool = run.data.dataset.pool
    assert isinstance(pool, ProcessPool)
    return pool


@pytest.mark.parametrize("rate", [RateLimiterConfig(4.0), RateLimiterConfig(None)])
def test_a_failed_actor_ends_the_run_though_others_work(tmp_path, rate):
    """Also if the learner never has to wait."""
    data = small_data(
        env=faulty(actor=1, after=200),
        actors=background(2, on_failure="fail"),
        rate=rate,
    )
    run = make_run(tmp_path, data=data, max_steps=10**9, log_every_n_steps=10**6)
    with pytest.raises(ActorError, match=r"the ball is lost") as caught:
        run.fit()
    assert "actor 1 (pid" in str(caught.value)
    assert actor_processes() == []
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["outcome"] == "ended by ActorError"


def test_an_environment_that_only_actors_cannot_build_ends_the_run(tmp_path):
    data = small_data(env=faulty(where="init"), actors=background(2))
    with pytest.raises(ActorError, match="failed before its first step"):
        make_run(tmp_path, data=data).fit()
    assert actor_processes() == []


def test_a_killed_actor_comes_back_while_the_run_goes_on(tmp_path):
    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        pool = pool_of(run)
        if trainer.global_step == 50:
            victim = pool.manager.processes[0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
        if trainer.global_step >= 150:
            wait_for(lambda: run.take(0.05) or pool.manager.restarts, "the restart")

    run = make_run(
        tmp_path,
        AfterEachStep(after_each_step),
        ActorLearnerCallback(5, 0, 0),
        data=small_data(actors=background(2)),
        max_steps=200,
        log_every_n_steps=50,
    )
    run.fit()
    assert run.trainer.global_step == 200
    assert float(run.metrics()[-1]["count/actor_restarts"]) == 1
    summary = json.loads((run.folder / "summary.json").read_text())
    assert [actor["restarts"] for actor in summary["actors"]] == [1, 0]
