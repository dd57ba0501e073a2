"""The frames of an episode, and that they are those of evaluation."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from helpers.dict_envs import BothLeaves, Signals
from helpers.filmed_envs import DIARY

from lrl.actors.policy import NetworkPolicy
from lrl.envs import AtariConfig, EnvConfig, make_rendered, make_spec
from lrl.evaluation.episodes import run_episodes
from lrl.networks import (
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    MLPEncoder,
    NatureEncoder,
    NetworkRecipe,
    NoisyLinear,
    QNetwork,
    QuantileHead,
    ScalarHead,
)
from lrl.parts.recipe import Recipe
from lrl.video.film import CUT_OFF, FilmedPolicy, FilmFrame, film_episode

HEADS = {
    "scalar": ScalarHead,
    "categorical": CategoricalHead,
    "quantile": QuantileHead,
    "implicit quantile": ImplicitQuantileHead,
}


def network_for(env: EnvConfig, head: type[Head] = ScalarHead, **settings) -> QNetwork:
    torch.manual_seed(0)
    spec = make_spec(env)
    encoder = NatureEncoder if len(spec.observation_shape) == 3 else MLPEncoder
    build = functools.partial(head, **settings)
    return NetworkRecipe(
        spec, Recipe.of(encoder, "encoder", encoder), Recipe.of(build, "head", Head)
    ).build()


def film(env: EnvConfig, network: QNetwork, seed: int, **settings) -> list[FilmFrame]:
    rendered = make_rendered(env)
    try:
        defaults = {"epsilon": 0.0, "max_steps": 1000}
        return list(film_episode(rendered, FilmedPolicy(network), seed, **{**defaults, **settings}))
    finally:
        rendered.close()


def test_pictures_agree_with_times_and_scores():
    env = EnvConfig(DIARY)
    frames = film(env, network_for(env), 3, epsilon=0.5)
    assert [frame.step for frame in frames] == list(range(13))
    for frame in frames:
        assert frame.picture[0, 0].tolist() == [frame.step, 100 + frame.total, 0]
        assert frame.seed == 3
    totals = [frame.total for frame in frames]
    assert [frame.reward for frame in frames] == [0.0, *np.diff(totals)]
    assert len(set(totals)) > 3
    assert [frame.ending for frame in frames] == [*[""] * 12, "terminated"]
    assert frames[-1].taken == frames[-2].taken


ENVS = [
    EnvConfig(DIARY),
    EnvConfig(factory="helpers.branched_envs.BranchedDiary"),
    EnvConfig("CartPole-v1"),
    pytest.param(
        EnvConfig("ALE/Pong-v5", atari=AtariConfig(repeat_action_probability=0.25)),
        marks=[pytest.mark.atari, pytest.mark.slow],
    ),
]


@pytest.mark.parametrize("epsilon", [0.0, 0.4])
@pytest.mark.parametrize("env", ENVS, ids=lambda env: env.id)
def test_an_episode_is_that_of_evaluation(env: EnvConfig, epsilon: float):
    network = network_for(env)
    policy = NetworkPolicy(network, noise=False)
    for seed in (0, 1, 2**20):
        episodes = run_episodes(env, policy, [seed], epsilon=epsilon, max_frames=400)
        end = film(env, network, seed, epsilon=epsilon, max_steps=400 // max(1, skip(env)))[-1]
        assert (end.total, end.step) == (episodes.returns[0], episodes.lengths[0])
        assert (end.ending == CUT_OFF) == episodes.timed_out[0]


def test_an_episode_whose_observations_have_leaves_is_filmed():
    env = EnvConfig(factory=Signals)
    encoder = Recipe.of(BothLeaves, "encoder", BothLeaves)
    head = Recipe.of(ScalarHead, "head", Head)
    network = NetworkRecipe(make_spec(env), encoder, head).build()
    policy = NetworkPolicy(network, noise=False)
    episodes = run_episodes(env, policy, [4], epsilon=0.0, max_frames=400)
    end = film(env, network, 4)[-1]
    assert (end.total, end.step) == (episodes.returns[0], episodes.lengths[0])


def skip(env: EnvConfig) -> int:
    return 1 if env.atari is None else env.atari.frame_skip


@pytest.mark.parametrize(
    ("settings", "max_steps", "ending"),
    [({}, 12, "terminated"), ({}, 5, CUT_OFF), ({"max_episode_steps": 5}, 12, "truncated")],
)
def test_why_an_episode_ends(settings, max_steps: int, ending: str):
    env = EnvConfig(DIARY, **settings)
    frames = film(env, network_for(env), 0, max_steps=max_steps)
    assert frames[-1].ending == ending
    assert frames[-1].step == len(frames) - 1 == (12 if ending == "terminated" else 5)


def test_random_actions_are_marked_unless_they_are_the_best_one():
    env = EnvConfig(DIARY, {"length": 300})
    frames = film(env, network_for(env), 0, epsilon=0.5)[:-1]
    for frame in frames:
        assert frame.at_random == (frame.taken != [frame.values.q.argmax()])
    assert 0.2 < np.mean([frame.at_random for frame in frames]) < 0.47  # 1/3, on average
    assert not any(frame.at_random for frame in film(env, network_for(env), 0))


def test_check_is_called_before_every_step():
    env, calls = EnvConfig(DIARY), []
    film(env, network_for(env), 0, check=lambda: calls.append(1))
    assert len(calls) == 12


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_thoughts_are_those_that_actions_are_chosen_by(head: type[Head]):
    env = EnvConfig(DIARY)
    network = network_for(env, head, noisy=True)
    network.sample_noise()
    observation = np.array([[3.0, -2.0]], np.float32)
    values = FilmedPolicy(network)(observation)
    assert network.training  # a copy thinks
    assert np.array_equal(values.q, NetworkPolicy(network, noise=False)(observation)[0][0])
    if head is ScalarHead:
        assert values.returns is values.probabilities is None
        return
    assert values.returns is not None
    assert values.probabilities is not None
    means = (values.returns * values.probabilities).sum(axis=-1)
    np.testing.assert_allclose(means, values.q, rtol=1e-4, atol=1e-5)


def test_a_thinker_neither_draws_noise_nor_follows_the_network(monkeypatch):
    env = EnvConfig(DIARY)
    network = network_for(env, noisy=True)
    policy, observation = FilmedPolicy(network), np.ones((1, 2), np.float32)
    before, state = policy(observation).q, torch.get_rng_state()
    monkeypatch.setattr(NoisyLinear, "sample_noise", lambda *args: pytest.fail("noise"))
    for parameter in network.parameters():
        parameter.data.fill_(1.0)
    assert np.array_equal(policy(observation).q, before)
    assert torch.equal(torch.get_rng_state(), state)
