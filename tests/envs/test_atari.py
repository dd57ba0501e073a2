"""The Atari protocol, against ale-py's own single emulator where that is possible."""

from itertools import pairwise

import ale_py
import numpy as np
import pytest
from ale_py import roms
from helpers.envs_rollout import assert_same, record_info, rollout
from helpers.envs_rollout import make_atari as make

from lrl.envs import AtariConfig, EnvConfig, make_spec
from lrl.types import EnvSpec

pytestmark = pytest.mark.atari


def test_an_observation_is_a_uint8_stack_of_4_frames():
    envs = make()
    assert envs.spec == EnvSpec.box((4, 84, 84), "uint8", 6, frame_stack=4, frame_skip=4)
    assert envs.spec == make_spec(EnvConfig("ALE/Pong-v5"))
    observation = rollout(envs, [0], 10)[-1][0]
    assert observation.dtype == np.uint8
    assert observation.max() > 100  # not scaled to [0, 1]


@pytest.mark.parametrize(
    ("game", "full_action_space", "num_actions"),
    [("Breakout", False, 4), ("Freeway", False, 3), ("Freeway", True, 18)],
)
def test_the_number_of_actions_is_the_games_own(game, full_action_space, num_actions):
    atari = AtariConfig(full_action_space=full_action_space)
    assert make_spec(EnvConfig(f"ALE/{game}-v5", atari=atari)).num_actions == num_actions


def test_options_set_the_shape():
    atari = AtariConfig(image_height=20, image_width=30, grayscale=False, frame_stack=2)
    assert make_spec(EnvConfig("ALE/Pong-v5", atari=atari)).observation_shape == (2, 20, 30, 3)


@pytest.mark.parametrize("training", [True, False])
def test_rewards_are_raw_in_training_and_evaluation(training):
    envs = make("MsPacman", training=training)
    rewards = np.array([row[1] for row in rollout(envs, [0], 200)])
    assert rewards.dtype == np.float64
    assert rewards.max() >= 10


@pytest.mark.parametrize(("frame_skip", "max_pool"), [(4, True), (4, False), (2, True)])
def test_a_step_sums_rewards_over_its_frames_and_takes_the_maximum_of_the_last_two(
    frame_skip, max_pool
):
    envs = make(  # at the emulator's own size, where nothing is interpolated
        "SpaceInvaders",
        frame_skip=frame_skip,
        max_pool=max_pool,
        image_height=210,
        image_width=160,
        noop_max=0,
    )
    infos = record_info(envs)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(str(roms.get_rom_path("space_invaders")))
    actions = ale.getMinimalActionSet()
    rng = np.random.default_rng(0)
    envs.reset([0])
    total = 0.0
    for time in range(1, 600 // frame_skip + 1):
        action = int(rng.integers(len(actions)))
        step = envs.step([action])
        reward, screens = 0.0, []
        for _ in range(frame_skip):
            reward += ale.act(actions[action])
            screens.append(ale.getScreenGrayscale())
        expected = np.maximum(*screens[-2:]) if max_pool else screens[-1]
        np.testing.assert_array_equal(step.observation[0, -1], expected)
        assert step.reward[0] == reward
        assert infos[-1]["episode_frame_number"][0] == time * frame_skip
        total += reward
    assert total > 0


def test_grey_is_luminance_in_the_right_channel_order():
    native = {"image_height": 210, "image_width": 160, "max_pool": False}
    grey, colour = (
        rollout(make("Breakout", grayscale=grayscale, **native), [3], 100)[-1][0]
        for grayscale in (True, False)
    )
    weighted = colour @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey, weighted, atol=0.51)
    assert abs(weighted - colour @ np.array([0.114, 0.587, 0.299])).max() > 10


def test_frames_are_resized_by_area():
    full = make("Breakout", image_height=210, image_width=160).reset([1])[0, -1]
    half = make("Breakout", image_height=105, image_width=80).reset([1])[0, -1]
    np.testing.assert_allclose(half, full.reshape(105, 2, 80, 2).mean(axis=(1, 3)), atol=0.51)


def test_the_newest_frame_is_last_and_the_first_stack_is_filled_with_zeros():
    envs = make("Breakout", num_envs=2, max_frames_per_episode=80)
    trace = rollout(envs, [0, 1], 60)
    firsts = list(trace[0][0])
    for (before, _, terminated, truncated), (after, *_) in pairwise(trace):
        ended = terminated | truncated
        firsts += list(after[ended])
        np.testing.assert_array_equal(after[~ended, :3], before[~ended, 1:])
    assert len(firsts) == 2 * 3
    for stack in firsts:
        assert not stack[:3].any()
        assert stack[3].any()


def test_no_op_starts_follow_the_seed():
    envs = make("Freeway")
    traces = [rollout(envs, [seed], 200) for seed in (1, 1, 2)]
    assert_same(traces[0], traces[1])
    assert (traces[0][0][0] != traces[2][0][0]).any()  # cars always move


def test_no_op_starts_last_from_0_to_noop_max_minus_1_frames():
    envs = make(num_envs=1, noop_max=3, max_frames_per_episode=4)
    infos = record_info(envs)
    envs.reset([0])
    starts = [
        infos[-1]["episode_frame_number"][0] for _ in range(60) if not envs.step([0]).truncated
    ]
    assert len(starts) == 30
    assert set(starts) == {0, 1, 2}


def test_seeds_of_any_size_are_taken():
    envs = make(num_envs=2)
    observation = envs.reset([3, 2**31 + 3])
    np.testing.assert_array_equal(observation[0], observation[1])
    envs.reset([2**63, 2**32 - 1])


@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_sticky_actions_are_seeded_too(probability):
    envs = make(repeat_action_probability=probability, noop_max=0)
    first, same, other = (rollout(envs, [seed], 100) for seed in (1, 1, 2))
    assert_same(first, same)
    equal = all((row[0] == other_row[0]).all() for row, other_row in zip(first, other, strict=True))
    assert equal == (probability == 0)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_each_game_of_a_vector_follows_its_own_seed(num_threads):
    seeds = [11, 5, 8]
    settings = {"repeat_action_probability": 0.25, "noop_max": 30}
    together = make(num_envs=3, num_threads=num_threads, **settings)
    alone = [make(num_envs=1, **settings) for _ in seeds]
    rng = np.random.default_rng(0)
    observation = together.reset(seeds)
    apart = [envs.reset([seed])[0] for envs, seed in zip(alone, seeds, strict=True)]
    for _ in range(60):
        np.testing.assert_array_equal(observation, np.stack(apart))
        actions = rng.integers(6, size=3).tolist()
        observation = together.step(actions).observation
        apart = [
            envs.step([action]).observation[0] for envs, action in zip(alone, actions, strict=True)
        ]
    assert len({frame.tobytes() for frame in observation}) == 3


@pytest.mark.parametrize("fire_reset", [False, True])
def test_fire_reset_launches_the_ball(fire_reset):
    envs = make("Breakout", fire_reset=fire_reset, terminal_on_life_loss=True)
    envs.reset([0])
    assert any(envs.step([0]).life_lost[0] for _ in range(60)) == fire_reset


@pytest.mark.parametrize(
    ("training", "option", "expected"), [(True, True, 4), (True, False, 0), (False, True, 0)]
)
def test_a_lost_life_ends_the_target_in_training_only_and_never_restarts(
    training, option, expected
):
    envs = make("Breakout", training=training, terminal_on_life_loss=option)
    infos = record_info(envs)
    envs.reset([0])
    step = envs.step([1])
    lost = frame = 0
    while not step.terminated[0]:  # keep firing: five lives are gone within 130 steps
        step = envs.step([1])
        lost += int(step.life_lost[0])
        assert infos[-1]["episode_frame_number"][0] > frame
        frame = infos[-1]["episode_frame_number"][0]
    assert lost == expected  # the fifth life is the game's end
    assert infos[-1]["lives"][0] == 0
    assert not step.life_lost[0]
    step = envs.step([1])  # resets; five lives after none are no loss
    assert not (step.terminated[0] | step.life_lost[0])
    assert infos[-1]["lives"][0] == 5


def test_the_time_limit_truncates_and_the_next_step_ignores_its_action():
    envs = make(num_envs=2, training=False, max_frames_per_episode=40, noop_max=0)
    infos = record_info(envs)
    first = envs.reset([1, 2])
    for time in range(1, 11):
        step = envs.step([0, 0])
        assert not step.terminated.any()
        assert step.truncated.tolist() == [time == 10] * 2
    step = envs.step([2, 3])
    np.testing.assert_array_equal(step.observation, first)
    assert infos[-1]["episode_frame_number"].tolist() == [0, 0]
    assert not (step.terminated | step.truncated).any()
    assert step.reward.tolist() == [0.0, 0.0]


def test_a_reset_after_an_end_starts_once():
    envs = make(num_envs=1, max_frames_per_episode=4, noop_max=0)
    infos = record_info(envs)
    envs.reset([0])
    assert envs.step([0]).truncated[0]
    envs.reset([0])
    assert envs.step([0]).truncated[0]
    assert infos[-1]["episode_frame_number"][0] == 4


def test_a_policy_that_does_nothing_comes_to_an_end():
    envs = make("Freeway", training=False, max_frames_per_episode=400)
    envs.reset([0])
    assert any(envs.step([0]).truncated[0] for _ in range(101))
