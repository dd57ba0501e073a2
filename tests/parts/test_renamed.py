"""Old names of settings and arguments are answered with the new ones, or translated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml

import lrl
from lrl.callbacks.checkpoints import LastCheckpoint
from lrl.callbacks.evaluation import PeriodicEvaluation
from lrl.parts.renamed import RENAMED, new_name, translated
from lrl.video.tensorboard import EpisodeVideo


@pytest.mark.parametrize(
    ("build", "old", "new"),
    [
        (lrl.ActorLearnerCallback, "eval_interval_learner_steps", "eval_period_learner_steps"),
        (lrl.RateLimiterConfig, "min_size_env_steps", "warm_up_env_steps"),
        (lrl.InferenceConfig, "delay_seconds", "max_batch_delay_seconds"),
        (lrl.ActorConfig, "groups", "data.inference.groups_per_actor"),
        (PeriodicEvaluation, "interval_learner_steps", "period_learner_steps"),
        (LastCheckpoint, "interval_learner_steps", "period_learner_steps"),
        (EpisodeVideo, "interval_learner_steps", "period_learner_steps"),
    ],
)
def test_an_old_argument_is_answered_with_the_new(build, old: str, new: str):
    with pytest.raises(lrl.ConfigError, match=f"{build.__name__}: {old} is called {new} now"):
        build(**{old: 1})


def test_other_arguments_are_answered_as_ever():
    with pytest.raises(TypeError, match="nothing"):
        lrl.RateLimiterConfig(nothing=1)  # pyright: ignore[reportCallIssue]
    assert dataclasses.replace(lrl.ActorConfig(), num_actors=3).num_actors == 3


def test_only_settings_of_lrl_are_known_as_old():
    assert new_name("data.env.kwargs.groups") is None


def test_what_was_saved_is_translated_and_what_is_a_users_stays():
    saved = {
        "data": {
            "env": {"kwargs": {"groups": 4, "delay_seconds": 1}},
            "actors": {"num_actors": 2, "groups": 2},
            "inference": {"num_servers": 1, "delay_seconds": 0.5},
            "rate": {"error_buffer": None},
        }
    }
    before = yaml.safe_dump(saved)
    assert translated(saved)["data"] == {
        "env": {"kwargs": {"groups": 4, "delay_seconds": 1}},
        "actors": {"num_actors": 2},
        "inference": {"num_servers": 1, "max_batch_delay_seconds": 0.5, "groups_per_actor": 2},
        "rate": {"max_samples_ahead": None},
    }
    assert yaml.safe_dump(saved) == before


def test_arguments_of_callbacks_are_translated_where_they_are_lrls():
    def saved(name: str) -> list[dict[str, Any]]:
        own = {"class_path": "my_module.Mine", "init_args": {"interval_learner_steps": 5}}
        lrls = {"class_path": "lrl.callbacks.LastCheckpoint", "init_args": {name: 5}}
        return [lrls, own, {"class_path": "lrl.callbacks.PriorityUpdate"}]

    config = translated({"trainer": {"callbacks": saved("interval_learner_steps")}})
    expected = saved("period_learner_steps")
    expected[2]["init_args"] = {}
    assert config["trainer"]["callbacks"] == expected
    (alone,) = expected[:1]
    config = {"trainer": {"callbacks": saved("interval_learner_steps")[0]}}
    assert translated(config)["trainer"]["callbacks"] == alone


def test_without_servers_nothing_of_inference_is_left():
    saved = {"data": {"actors": {"groups": 1}, "inference": {"num_servers": 0, "batch_size": None}}}
    assert translated(saved) == {"data": {"actors": {}, "inference": None}}


@pytest.mark.parametrize("config", [{}, {"data": None}, {"data": {"rate": 3}}, {"name": "x"}])
def test_any_file_may_be_read(config):
    assert translated(config) == config


def test_a_new_name_is_no_old_one():
    assert not RENAMED.keys() & set(RENAMED.values())
