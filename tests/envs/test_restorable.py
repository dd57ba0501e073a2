"""A saved environment goes on as the one that was never interrupted, or says that it cannot."""

import importlib.util
import logging
from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lrl.envs import (
    AtariConfig,
    EnvConfig,
    RestorableEnvs,
    StreamEnvs,
    WrapperConfig,
    make_envs,
    restorable,
)
from lrl.envs.gym import SingleEnvs

FIRST_SEED = 2**24
SEEDS = [FIRST_SEED + 5, FIRST_SEED + 6, FIRST_SEED + 7]
STICKY = AtariConfig(repeat_action_probability=0.25, max_frames_per_episode=160)
LIVES = AtariConfig(terminal_on_life_loss=True, frame_stack=2)

PLAIN = [
    EnvConfig("CartPole-v1"),
    EnvConfig("CartPole-v1", frame_stack=3, max_episode_steps=11),
    EnvConfig("CartPole-v1", wrappers=[WrapperConfig("gymnasium.wrappers.FlattenObservation")]),
    EnvConfig("lrl/Identity-v0", kwargs={"truncate": True}),
    EnvConfig("lrl/Chain-v0"),
    EnvConfig("lrl/Catch-v0", frame_stack=2),
    EnvConfig("lrl/Masked-v0", action_masks=True),
    EnvConfig("lrl/Ledger-v0"),
]
MINATAR = [EnvConfig(f"lrl/MinAtar{game}-v0") for game in ("Breakout", "SpaceInvaders")]
ATARI = [EnvConfig("ALE/Pong-v5", atari=STICKY), EnvConfig("ALE/Breakout-v5", atari=LIVES)]
CONFIGS = [
    *PLAIN,
    *(
        pytest.param(
            config,
            marks=pytest.mark.skipif(
                importlib.util.find_spec("minatar") is None, reason="needs the extra minatar"
            ),
        )
        for config in MINATAR
    ),
    *(pytest.param(config, marks=[pytest.mark.atari, pytest.mark.slow]) for config in ATARI),
]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """So that tests see new seeds, and segments of several episodes."""
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 25)


def build(config: EnvConfig) -> RestorableEnvs:
    return RestorableEnvs([make_envs(config, 1, training=True) for _ in SEEDS], FIRST_SEED)


def allowed_actions(envs: StreamEnvs, rng: np.random.Generator):
    if envs.action_mask is None:
        return rng.integers(envs.spec.num_actions, size=envs.num_envs)
    return (rng.random(envs.action_mask.shape) * envs.action_mask).argmax(axis=1)


def play(envs: StreamEnvs, rng: np.random.Generator, steps: int) -> list[Any]:
    """Return all answers and masks of so many steps."""
    answers = []
    for _ in range(steps):
        answers += [*envs.step(allowed_actions(envs, rng)), envs.action_mask]
    return answers


def assert_equal(one: list[Any], other: list[Any]) -> None:
    for answer, other_answer in zip(one, other, strict=True):
        np.testing.assert_array_equal(answer, other_answer)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.id}-{config.frame_stack}")
def test_restored_environments_go_on_as_if_nothing_had_happened(config):
    rng, envs = np.random.default_rng(1), build(config)
    observation, ended, states = envs.reset(SEEDS), np.zeros(3, bool), []
    while len(states) < 3:  # after the reset, at some end, and just after the reset that follows
        if not states or ended.any() or states[-1][2].any():
            states.append((envs.state_dict(), observation, ended, envs.action_mask))
        step = envs.step(allowed_actions(envs, rng))
        observation, ended = step.observation, step.terminated | step.truncated
    play(envs, rng, 100)
    state = envs.state_dict()
    after_state = rng.bit_generator.state
    after = play(envs, rng, 100)

    twin = build(config)
    for saved, observation, ended, mask in states:
        seen, restarted = twin.load_state_dict(saved)
        assert not restarted.any()
        assert_equal([seen, twin.ended, twin.action_mask], [observation, ended, mask])
    _, restarted = twin.load_state_dict(state)
    assert not restarted.any()
    rng.bit_generator.state = after_state
    assert_equal(play(twin, rng, 100), after)
    assert_same_state(twin.state_dict(), envs.state_dict())


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["generator"] == other["generator"]
    for mine, others in zip(one["environments"], other["environments"], strict=True):
        assert mine.keys() == others.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value, others[name], name)


def test_answers_are_those_of_the_environments_alone_until_a_new_seed(monkeypatch):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 1000)
    config = EnvConfig("lrl/Masked-v0", action_masks=True)
    envs, alone = build(config), make_envs(config, 3, training=True)
    assert envs.spec == alone.spec
    np.testing.assert_array_equal(envs.reset(SEEDS), alone.reset(SEEDS))
    assert_equal(*(play(each, np.random.default_rng(2), 300) for each in (envs, alone)))


def test_an_episode_that_begins_after_so_many_steps_has_a_new_seed_of_training():
    envs = build(EnvConfig("CartPole-v1", max_episode_steps=10))
    envs.reset(SEEDS)
    rng, seen = np.random.default_rng(3), {tuple(SEEDS)}
    for _ in range(400):
        play(envs, rng, 1)
        saved = envs.state_dict()["environments"]
        seen.add(tuple(env["seed"] for env in saved))
        assert all(len(env["actions"]) <= 25 + 10 + 1 for env in saved)
    seeds = {seed for each in seen for seed in each}
    assert len(seeds) > 3 * 5
    assert all(FIRST_SEED <= seed < 2**31 for seed in seeds)


class Walk(gymnasium.Env):
    """Counts up, from 0 or from where `starts` says, and fails where `fails` says."""

    starts = count(0, 0)
    fails = False

    def __init__(self, length: int = 30) -> None:
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._place = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._place = next(self.starts)
        return np.array([self._place], np.float32), {}

    def step(self, action: int):
        if self.fails:
            raise RuntimeError("the path is gone")
        self._place += 1
        end = self._place % self._length == 0
        return np.array([self._place], np.float32), 1.0, end, False, {}


def walks() -> RestorableEnvs:
    return RestorableEnvs([SingleEnvs([Walk()]) for _ in SEEDS], FIRST_SEED)


@pytest.mark.parametrize("differs", ["start", "error", "reward", "on the way", "end", "action"])
def test_an_environment_that_does_not_follow_its_seed_begins_an_episode(
    differs, monkeypatch, caplog
):
    envs = walks()
    envs.reset(SEEDS)
    play(envs, np.random.default_rng(4), 5)
    state = envs.state_dict()
    if differs == "start":
        monkeypatch.setattr(Walk, "starts", iter([0, 9, 0, 0]))
    elif differs == "reward":
        state["environments"][1]["reward"] = 4.0
    elif differs == "on the way":
        state["environments"][1]["checksum"] ^= 1
    elif differs == "end":
        state["environments"][1]["ended"] = True
    elif differs == "action":
        state["environments"][1]["actions"][0] = 2
    twin = walks()
    if differs == "error":
        backend: Any = twin._recorded[1].envs
        monkeypatch.setattr(backend._envs[0], "fails", True)
    with caplog.at_level(logging.WARNING, "lrl"):
        observation, restarted = twin.load_state_dict(state)
    assert restarted.tolist() == [False, True, False]
    assert observation.tolist() == [[5.0], [0.0], [5.0]]
    assert "environments [1] did not answer as before" in caplog.text
    assert ("the path is gone" in caplog.text) == (differs == "error")
    assert ("not in the action space" in caplog.text) == (differs == "action")
    saved = twin.state_dict()["environments"]
    assert [len(env["actions"]) for env in saved] == [5, 0, 5]
    assert saved[0]["seed"] == SEEDS[0]
    assert saved[1]["seed"] not in SEEDS
    if differs != "error":
        assert twin.step([0, 0, 0]).observation.tolist() == [[6.0], [1.0], [6.0]]


def test_closing_closes_all():
    envs = walks()
    envs.reset(SEEDS)
    envs.close()
    with pytest.raises(RuntimeError, match="closed"):
        envs.load_state_dict(envs.state_dict())
    assert all(recorded.envs._closed for recorded in envs._recorded)


def test_closing_closes_all_also_if_one_fails(monkeypatch):
    envs = walks()
    monkeypatch.setattr(envs._recorded[0].envs, "_close_envs", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        envs.close()
    assert all(recorded.envs._closed for recorded in envs._recorded)
