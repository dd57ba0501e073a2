"""Kinds of environments: what each answers for, and kinds from outside the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lrl.actors.actor import FunctionPolicy
from lrl.checkpoints.stamp import differences, env_of, make_stamp
from lrl.envs import AtariConfig, EnvConfig, EnvKind, kind_of, make_envs, make_rendered, make_spec
from lrl.envs.config import SECTIONS
from lrl.envs.gym import SingleEnvs
from lrl.envs.make import KINDS
from lrl.envs.toy import Chain
from lrl.evaluation.episodes import Episodes, EvaluationConfig, run_episodes
from lrl.report.scores import Score
from lrl.types import ConfigError

PONG = EnvConfig("ALE/Pong-v5")


class Chains(EnvKind):
    """Chains of `env.kwargs["length"]` places."""

    default_epsilon = 0.25
    frames_limit_setting = "kwargs.max_moves"
    training_only = ("reward_clip", "kwargs.shaped")

    def make(self, num_envs: int, *, training: bool, num_threads: int) -> SingleEnvs:
        return SingleEnvs([Chain(**self.env.kwargs) for _ in range(num_envs)])

    def human_normalised(self, score: float, cut_off_at: int | None) -> float | None:
        return score / self.env.kwargs["length"]


OWN = EnvConfig(factory=Chains, kwargs={"length": 4})
EVALUATION = EvaluationConfig(episodes=2, test_episodes=2)


def test_every_section_is_of_a_kind():
    assert KINDS.keys() == {"gymnasium", *SECTIONS}


@pytest.mark.parametrize(("env", "kind"), [(EnvConfig(), "gymnasium"), (PONG, "atari")])
def test_the_id_says_the_kind(env: EnvConfig, kind: str):
    assert env.kind == kind
    assert type(kind_of(env)).__name__ == kind.title()
    assert kind_of(env).env is env


def test_games_alone_have_settings_of_games():
    assert EnvConfig().atari is None
    assert EnvConfig(atari=AtariConfig()).atari is None  # as configurations of before say
    assert PONG.atari == AtariConfig()
    assert EnvConfig("ale_py:ALE/Pong-v5", atari=AtariConfig(noop_max=0)).kind == "atari"


def test_the_kind_knows_how_scores_are_usually_made():
    evaluation = EvaluationConfig(max_frames_per_episode=50_000)
    for env, epsilon, frames, protocol in (
        (EnvConfig(), 0.0, 50_000, "gymnasium"),
        (PONG, 0.001, 50_000, "custom"),
        (EnvConfig(PONG.id, atari=AtariConfig(max_frames_per_episode=400)), 0.001, 400, "custom"),
        (OWN, 0.25, 50_000, "custom"),
    ):
        found = evaluation.epsilon_for(env), evaluation.max_frames_for(env)
        assert found == (epsilon, frames)
        assert evaluation.protocol_for(env) == protocol


def test_a_kind_of_ones_own_says_what_is_of_training_alone_and_what_a_score_is_worth():
    shaped = replace(OWN, kwargs={"length": 4, "shaped": True}, reward_clip=1.0)
    one, other = (make_stamp(env, EVALUATION, seed=3) for env in (OWN, shaped))
    before = repr(other)
    assert differences(one, other) == {}
    longer = make_stamp(replace(OWN, kwargs={"length": 5}), EVALUATION, seed=3)
    assert differences(one, longer).keys() == {"env.kwargs"}
    assert repr(other) == before
    episodes = Episodes(np.array([2.0, 4.0]), np.array([1, 1]), np.array([False, False]))
    assert Score("x", one, episodes, 1.0).human_normalised == 0.75


def test_a_kind_of_ones_own_may_limit_its_frames():
    short = EnvConfig(factory=Chains, kwargs={"max_moves": 3})
    assert (kind_of(short).frames_limit, kind_of(OWN).frames_limit) == (3, None)

    def left(observation: Any) -> np.ndarray:
        return np.tile(np.array([1.0, 0.0], np.float32), (len(observation), 1))

    played = run_episodes(short, FunctionPolicy(left), [0], epsilon=0.0, max_frames=100)
    assert (played.lengths.tolist(), played.timed_out.tolist()) == ([3], [True])


def test_only_games_have_a_human_to_compare_with():
    assert kind_of(PONG).human_normalised(14.6, None) == 1.0
    assert kind_of(PONG).human_normalised(14.6, 18_000) == 1.0
    assert kind_of(PONG).human_normalised(14.6, 17_999) is None
    assert kind_of(EnvConfig()).human_normalised(14.6, None) is None
    assert kind_of(OWN).human_normalised(14.0, None) == 3.5


def test_a_kind_of_ones_own_is_made_and_evaluated():
    assert make_spec(OWN) == make_spec(EnvConfig("lrl/Chain-v0", {"length": 4}))
    assert make_envs(OWN, 3, training=True).num_envs == 3

    def right(observation: Any) -> np.ndarray:
        return np.tile(np.array([0.0, 1.0], np.float32), (len(observation), 1))

    played = run_episodes(OWN, FunctionPolicy(right), [0, 1], epsilon=0.0, max_frames=100)
    assert np.allclose(played.returns, 0.8)


def test_a_checkpoint_may_name_a_kind_that_is_imported():
    assert env_of(make_stamp(OWN, EVALUATION, seed=0)) == OWN


def test_what_a_kind_of_ones_own_would_ignore_is_refused():
    with pytest.raises(ConfigError, match=r"env\.frame_stack is 4, .* kind does not read it"):
        make_spec(EnvConfig(factory=Chains, frame_stack=4))


def test_a_kind_of_ones_own_that_fails_is_named():
    with pytest.raises(ConfigError, match=r"Chains' with env\.kwargs \{'size': 4\} cannot be made"):
        make_spec(EnvConfig(factory=Chains, kwargs={"size": 4}))


def test_a_kind_that_draws_nothing_cannot_be_filmed():
    with pytest.raises(ConfigError, match="cannot be filmed: Chains cannot draw"):
        make_rendered(OWN)
