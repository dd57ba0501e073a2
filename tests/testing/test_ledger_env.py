"""The environment whose observations say where they are from."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import lrl.envs  # noqa: F401  registers it
from lrl.testing import LedgerEnv
from lrl.types import ConfigError

U32 = st.integers(0, 2**32 - 1)


def test_a_frame_holds_the_numbers_in_base_256():
    env = LedgerEnv(end_probability=0.0)
    frame, _ = env.reset(seed=2**32 + 258)
    np.testing.assert_array_equal(frame[:4], [[0, 0, 1, 2], [0] * 4, [0] * 4, [0] * 4])
    for action in [0] * 297 + [2, 0, 1]:
        frame, *_ = env.step(action)
    np.testing.assert_array_equal(
        frame[:4], [[0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 1, 44], [0, 0, 2, 1]]
    )
    frame, _ = env.reset()
    assert LedgerEnv.decode(frame).tolist() == [258, 1, 0]
    assert LedgerEnv.decode(np.stack([frame, frame])[None]).tolist() == [[[258, 1, 0]] * 2]
    assert not LedgerEnv.decode_actions(frame).any()


def test_the_last_eight_actions_are_remembered():
    env = LedgerEnv(end_probability=0.0, num_actions=16)
    env.reset(seed=1)
    actions = [15, 3, 0, 7, 1, 2, 3, 4, 5, 15]
    frames = [env.step(action)[0] for action in actions]
    assert LedgerEnv.decode_actions(frames[-1]).tolist() == actions[:1:-1]


def test_episodes_end_both_ways_as_often_as_asked_for():
    env = LedgerEnv()
    ends = []
    for seed in range(200):
        env.reset(seed=seed)
        length, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            *_, terminated, truncated, _ = env.step(0)
            length += 1
        ends.append((length, terminated, truncated))
    lengths, terminated, truncated = np.transpose(ends)
    assert 8 < lengths.mean() < 12
    assert 70 < terminated.sum() < 130
    np.testing.assert_array_equal(terminated, 1 - truncated)


def test_rewards_are_labels():
    assert LedgerEnv.reward(0, 0, 0) == -8.0
    assert LedgerEnv.reward(1, 2, 1) == (31 + 14 + 3) % 17 - 8 == 6


def test_arrays_say_the_same_as_the_environment():
    env = LedgerEnv(end_probability=0.3, copies=3)
    frame, _ = env.reset(seed=9)
    frames, answers, actions = [], [], []
    for step in range(300):
        frames.append(frame)
        actions.append(step % 3)
        frame, *answer, _ = env.step(actions[-1])
        answers.append(answer)
        if answer[1] or answer[2]:
            frame, _ = env.reset()
    place = LedgerEnv.decode(np.stack(frames))
    reward, terminated, truncated = np.transpose(answers)
    np.testing.assert_array_equal(
        LedgerEnv.reward(place[:, 1], place[:, 2], np.array(actions)), reward
    )
    np.testing.assert_array_equal(env.ends(place, np.array(actions)), [terminated, truncated])
    assert LedgerEnv.intact(np.stack(frames)).all()


@given(U32, st.integers(0, 2**31), st.integers(0, 9), st.integers(0, 39), st.integers(1, 255))
def test_no_changed_byte_is_overlooked(seed, episode, steps, byte, change):
    env = LedgerEnv(end_probability=0.0, copies=2)
    env.reset(seed=seed)
    env._episode = episode
    frame = np.stack([env.step(1)[0] for _ in range(steps + 1)])[-1]
    assert LedgerEnv.intact(frame)
    frame.reshape(-1)[byte] ^= change
    assert not LedgerEnv.intact(frame)


@given(U32, U32)
def test_a_mixture_of_two_frames_is_not_intact(first, second):
    frames = []
    for seed in (first, second):
        env = LedgerEnv()
        frames.append(env.reset(seed=seed)[0])
    mixture = frames[0].copy()
    mixture[:2] = frames[1][:2]
    assert LedgerEnv.intact(mixture) == (first == second)


def test_it_is_an_environment_like_others():
    env = gymnasium.make("lrl/Ledger-v0", end_probability=0.2, num_actions=5, copies=4)
    assert isinstance(env.unwrapped, LedgerEnv)
    assert env.observation_space.shape == (20, 4)
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"num_actions": 17}, "num_actions is 17"), ({"copies": 0}, "copies is 0")],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LedgerEnv(**arguments)
