"""The replay's settings: schedules, samplers, and how YAML gives them."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from lrl.replay import PrioritizedSampler, RankSampler, ReplayConfig, UniformSampler
from lrl.schedules import Constant, Exponential, Linear
from lrl.types import ConfigError


def parse(*arguments: str) -> ReplayConfig:
    parser = ArgumentParser()
    parser.add_argument("--replay", type=ReplayConfig)
    return parser.instantiate(parser.parse_args(list(arguments))).replay


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, "replay.n_step must be at least 1, got 0"),
        ({"n_step": Linear(3.0, 0.4, 10)}, "replay.n_step must be at least 1, got 0"),
        ({"n_step": Constant(0.2)}, "replay.n_step must be at least 1, got 0"),
        ({"gamma": 1.1}, "replay.gamma must be between 0 and 1, got 1.1"),
        ({"gamma": Linear(0.9, 1.01, 10)}, "replay.gamma must be between 0 and 1, got 1.01"),
        ({"gamma": Linear(-0.1, 0.9, 10)}, "replay.gamma must be between 0 and 1, got -0.1"),
        (
            {"sampler": PrioritizedSampler()},
            "replay.sampler must be a class or a functools.partial",
        ),
    ],
)
def test_settings_are_checked_at_both_ends(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**settings)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replay.sampler=lrl.replay.PrioritizedSampler", "--replay.sampler.init_args.alpha=0.6"],
        ['--replay={"sampler": {"class_path": "PrioritizedSampler", "init_args": {"alpha": 0.6}}}'],
    ],
)
def test_a_sampler_from_the_command_line_is_built_anew_each_time(arguments: list[str]) -> None:
    config = replace(pickle.loads(pickle.dumps(parse(*arguments))), capacity=777)
    one, two = config.sampler(), config.sampler()
    assert isinstance(one, PrioritizedSampler)
    assert one is not two
    assert (one.alpha, one.beta) == (0.6, Linear(0.4, 1.0, 500_000))


def test_parts_of_parts_from_the_command_line() -> None:
    config = parse(
        "--replay.sampler=RankSampler",
        "--replay.sampler.beta=lrl.schedules.Exponential",
        "--replay.sampler.beta.start=0.1",
        "--replay.sampler.beta.end=0.9",
        "--replay.sampler.beta.duration=10",
        "--replay.n_step=lrl.schedules.Linear",
        "--replay.n_step.start=10",
        "--replay.n_step.end=3",
        "--replay.n_step.duration=77",
    )
    sampler = config.sampler()
    assert isinstance(sampler, RankSampler)
    assert sampler.beta == Exponential(0.1, 0.9, 10)
    assert config.n_step == Linear(10.0, 3.0, 77)


def test_samplers_from_python() -> None:
    assert isinstance(ReplayConfig().sampler(), UniformSampler)
    partial = functools.partial(PrioritizedSampler, alpha=0.7)
    sampler = pickle.loads(pickle.dumps(ReplayConfig(sampler=partial))).sampler()
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler.alpha == 0.7
