"""A setting that would do nothing, in the mode or with the others of a run, is refused at setup."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.training_runs import background, make_run, quiet, small_agent, small_data

from lrl import (
    ActorConfig,
    ActorLearnerCallback,
    ConfigError,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
    SequenceConfig,
)
from lrl.callbacks import WeightSync
from lrl.callbacks.feedback import DEFAULT_SYNC_PERIOD
from lrl.networks import GRUCore
from lrl.preflight.settings import check_inference, check_warm_up
from lrl.replay import PrioritizedSampler

pytestmark = quiet

SUPERVISION = {"on_failure": "fail", "max_restarts": 4, "timeout_seconds": 30.0}
OF_ACTORS = {"chunk_rows": 32, "chunks_per_actor": 3, "start_method": "spawn"} | SUPERVISION


def synchronous(tmp_path, *callbacks: Any, **settings: Any) -> Any:
    """Return a run without actors, whose periods of weights are left as they are."""
    run = make_run(tmp_path, data=small_data(actors=ActorConfig(0, 2, **settings)), max_steps=8)
    run.trainer.callbacks[:1] = callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return run


@pytest.mark.parametrize(("name", "value"), OF_ACTORS.items())
def test_settings_of_actors_are_refused_where_there_are_none(tmp_path, name, value):
    run = synchronous(tmp_path, ActorLearnerCallback(), **{name: value})
    words = f"actors.{name} is {value}, but actors.num_actors is 0 (synchronous mode)"
    with pytest.raises(ConfigError, match=re.escape(words)):
        run.fit()


def test_those_that_the_evaluator_follows_are_kept(tmp_path):
    callback = ActorLearnerCallback(eval_period_learner_steps=8, evaluation="background")
    assert synchronous(tmp_path, callback, **SUPERVISION).fit().trainer.global_step == 8
    callback = ActorLearnerCallback(eval_period_learner_steps=8, evaluation="background")
    with pytest.raises(ConfigError, match=r"actors\.start_method is spawn"):
        synchronous(tmp_path, callback, start_method="spawn").fit()


@pytest.mark.parametrize("callback", [ActorLearnerCallback(20, 0, 0), WeightSync(20)])
def test_a_period_of_weights_is_refused_where_nobody_takes_them(tmp_path, callback):
    with pytest.raises(ConfigError, match=r"sync_period_learner_steps is 20, but nobody takes"):
        synchronous(tmp_path, callback).fit()


def test_the_default_period_is_not_due_where_nobody_takes_weights(tmp_path):
    """Else several updates in a training step, of which it is no multiple, would be refused."""
    assert DEFAULT_SYNC_PERIOD % 8
    run = make_run(
        tmp_path,
        ActorLearnerCallback(eval_period_learner_steps=0, save_period_learner_steps=0),
        module=small_agent(updates_per_step=8),
        max_steps=16,
        log_every_n_steps=8,
    )
    assert run.fit().trainer.global_step == 16


@pytest.mark.parametrize(
    ("actors", "ratio", "words"),
    [
        (ActorConfig(0, 2), 4.0, "but actors.num_actors is 0"),
        (background(1), None, r"but rate.samples_per_insert is null \(free running\)"),
    ],
    ids=["synchronous", "free running"],
)
def test_max_samples_ahead_is_refused_where_nobody_waits(tmp_path, actors, ratio, words):
    data = small_data(actors=actors, rate=RateLimiterConfig(ratio, max_samples_ahead=500.0))
    with pytest.raises(ConfigError, match=f"rate.max_samples_ahead is 500.0, {words}"):
        make_run(tmp_path, data=data).fit()


def test_threads_of_servers_are_refused_where_none_is_on_a_cpu():
    inference = InferenceConfig(num_servers=1, devices=("cuda",), num_threads=2)
    with pytest.raises(ConfigError, match=r"inference.num_threads is 2.*has no cpu"):
        check_inference(inference, background(1))


@pytest.mark.parametrize("steps", [1, -1])
def test_sanity_steps_are_refused(tmp_path, steps):
    run = make_run(tmp_path, num_sanity_val_steps=steps)
    with pytest.raises(ConfigError, match=r"trainer.num_sanity_val_steps is .*plays no episodes"):
        run.fit()


def test_the_trainer_gets_its_sanity_steps_back(tmp_path):
    run = make_run(tmp_path).fit()
    assert run.trainer.num_sanity_val_steps == 2
    assert [int(row["step"]) for row in run.metrics() if "eval/return_mean" in row] == [10, 20]


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_limits_of_validation_are_refused_where_a_process_evaluates(tmp_path, limit):
    callback = ActorLearnerCallback(5, 10, evaluation="background")
    with pytest.raises(ConfigError, match=f"trainer.limit_val_batches is {limit}, but Lightning"):
        make_run(tmp_path, callback, limit_val_batches=limit).fit()


def test_a_monitor_is_refused_where_nothing_is_evaluated():
    with pytest.raises(ConfigError, match="monitor is 'eval/return_min', but eval_period"):
        ActorLearnerCallback(eval_period_learner_steps=0, monitor="eval/return_min")


def test_a_warm_up_must_fit_into_the_replay():
    rate = RateLimiterConfig(warm_up_env_steps=1000)
    check_warm_up(rate, ReplayConfig(1000))
    with pytest.raises(ConfigError, match=r"rate.warm_up_env_steps is 1000, .* only 999"):
        check_warm_up(rate, ReplayConfig(999))


CORE = {"core": GRUCore}


@pytest.mark.parametrize(
    ("sequences", "agent", "message"),
    [
        ({}, {}, r"sequences\.burn_in is 40, but without model\.core nothing is remembered"),
        ({"burn_in": 0, "memory": "zero"}, {}, r"sequences\.memory is zero, but without model"),
        ({"eta": 0.5}, CORE, r"sequences\.eta is 0\.5, but replay\.sampler draws without"),
        ({}, {**CORE, "updater": "compiled"}, r"updater is compiled, but .* replay\.sequences"),
    ],
)
def test_settings_of_sequences_that_do_nothing_are_refused(tmp_path, sequences, agent, message):
    replay = ReplayConfig(2000, batch_size=8, sequences=SequenceConfig(**sequences))
    run = make_run(tmp_path, module=small_agent(**agent), data=small_data(replay=replay))
    with pytest.raises(ConfigError, match=message):
        run.fit()


@pytest.mark.parametrize("agent", [{}, CORE])
def test_sequences_and_a_core_go_with_and_without_each_other(tmp_path, agent):
    sequences = SequenceConfig(4, 2, 3 if agent else 0, eta=0.5)
    replay = ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler, sequences=sequences)
    data = small_data(replay=replay)
    run = make_run(tmp_path, module=small_agent(**agent), data=data, max_steps=10).fit()
    assert run.trainer.global_step == 10
    assert data.dataset is not None
    assert data.dataset.limiter.state_dict()["sampled"] == 10 * 8 * 4
