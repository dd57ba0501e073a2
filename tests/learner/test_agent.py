"""Agents of checkpoints: how they are evaluated, and what a damaged stamp says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.checkpoints import edited, trained
from helpers.training_runs import quiet

from lrl.checkpoints.stamp import STAMP_KEY, make_stamp
from lrl.envs import AtariConfig, EnvConfig
from lrl.evaluation.episodes import EvaluationConfig
from lrl.learner.agent import Agent, load_agent
from lrl.learner.dqn import DQN
from lrl.types import ConfigError

pytestmark = quiet

PONG = EnvConfig("ALE/Pong-v5", atari=AtariConfig(max_frames_per_episode=18_000))


def agent_of(env: EnvConfig, **evaluation: Any) -> Agent:
    """An agent without a module."""
    stamp = make_stamp(env, EvaluationConfig(**evaluation))
    return Agent(Path("some.ckpt"), cast(DQN, None), env, stamp)


@pytest.mark.parametrize(
    ("env", "settings", "arguments", "expected"),
    [
        (PONG, {}, {}, (0.001, 18_000)),  # the game ends there, whatever the evaluation allows
        (PONG, {"epsilon": 0.1, "max_frames_per_episode": 8}, {}, (0.1, 8)),
        (PONG, {"epsilon": 0.1}, {"epsilon": 0.0}, (0.0, 18_000)),
        (PONG, {}, {"max_frames": 18_000}, (0.001, 18_000)),
        (EnvConfig(), {"max_frames_per_episode": 8}, {"max_frames": 200_000}, (0.0, 200_000)),
    ],
)
def test_an_evaluation_is_that_of_training_unless_told(
    env: EnvConfig,
    settings: dict[str, Any],
    arguments: dict[str, Any],
    expected: tuple[float, int],
):
    evaluation = agent_of(env, **settings).evaluation(**arguments)
    assert evaluation == dict(zip(("epsilon", "max_frames_per_episode"), expected, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": -0.1}, "epsilon must be between 0 and 1, got -0.1"),
        ({"max_frames": 0}, "max_frames_per_episode must be at least 1, got 0"),
        (
            {"max_frames": 18_001},
            r"is 18001, but the game of checkpoint some\.ckpt ends .*_frames_per_episode 18000",
        ),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        agent_of(PONG).evaluation(**arguments)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("agents"))


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("evaluation", "epsilon"),
        ("evaluation", "max_frames_per_episode"),
        ("training", "seed"),
        ("training", "learner_steps"),
        ("training", "frames"),
    ],
)
def test_what_is_missing_in_a_stamp_is_named(checkpoint: Path, part: str, key: str):
    damaged = edited(checkpoint, "damaged", lambda content: content[STAMP_KEY][part].pop(key))
    with pytest.raises(ConfigError, match=rf"damaged\.ckpt is not complete: KeyError '{key}'"):
        load_agent(damaged)


def test_a_file_is_read_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    copy = edited(checkpoint, "fleeting", lambda content: None)
    load = torch.load

    def load_and_replace(file: Any, **settings: Any) -> Any:
        content = load(file, **settings)
        copy.unlink()
        return content

    monkeypatch.setattr(torch, "load", load_and_replace)
    agent = load_agent(copy)
    assert not copy.exists()
    monkeypatch.undo()
    expected = DQN.load_from_checkpoint(checkpoint, weights_only=True).state_dict()
    weights = agent.module.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert agent.module.hparams == DQN.load_from_checkpoint(checkpoint, weights_only=True).hparams


def test_a_subclass_may_have_saved_settings_of_its_own(checkpoint: Path):
    subclass = edited(
        checkpoint, "subclass", lambda content: content["hyper_parameters"].update(beta=0.5)
    )
    assert load_agent(subclass).module.env_spec == load_agent(checkpoint).module.env_spec
