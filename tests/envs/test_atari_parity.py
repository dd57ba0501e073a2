"""ale-py's vector environment against Gymnasium's wrappers, which nothing else here uses.

Both get the same seeds and actions, and everything they answer is equal, observations bit for bit.
Three things differ by design and are made equal first: Gymnasium derives the emulator's seed from
the one it is given, draws 1 to noop_max frames at an episode's start (ale-py 0 to noop_max - 1,
from another generator), and fills an episode's first stack with its first frame (ale-py with
zeros).
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ale_py import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from helpers.envs_rollout import make_atari, record_info

from lrl.envs import PROTOCOLS, AtariConfig
from lrl.envs.atari import game_of

pytestmark = pytest.mark.atari

SEED = 7
GAMES = ("Breakout", "MsPacman", "Pong", "Seaquest", "SpaceInvaders")
RANDOM = AtariConfig(repeat_action_probability=0.25)  # no-op starts and repeated actions
NATIVE = replace(RANDOM, image_height=210, image_width=160)


class Twin:
    """One environment of Gymnasium's wrappers, with the emulator's seed and no-op frames given."""

    def __init__(self, game: str, config: AtariConfig, padding: str = "zero") -> None:
        self.emulator: Any = AtariEnv(
            game_of(f"ALE/{game}-v5"),
            frameskip=1,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            max_num_frames_per_episode=config.max_frames_per_episode,
        )
        self.preprocessing = AtariPreprocessing(
            self.emulator,
            noop_max=0,
            frame_skip=config.frame_skip,
            screen_size=(config.image_width, config.image_height),
            grayscale_obs=config.grayscale,
        )
        stack = config.frame_stack
        self.env = FrameStackObservation(self.preprocessing, stack, padding_type=padding)

    def seed(self, seed: int) -> None:
        self.emulator.ale.setInt("random_seed", seed)
        self.emulator.load_game()

    def reset(self, noop_frames: int) -> np.ndarray:
        self.preprocessing.noop_max = noop_frames
        self.emulator.np_random = SimpleNamespace(integers=lambda low, high: high - 1)  # the most
        return self.env.reset()[0]


def assert_equal_play(game: str, config: AtariConfig, steps: int) -> SimpleNamespace:
    """Step both with random actions, compare all answers, and return what happened."""
    envs = make_atari(game, training=False, **vars(config))
    infos = record_info(envs)
    twin = Twin(game, config)
    twin.seed(SEED)
    seen = SimpleNamespace(terminated=0, truncated=0, rewards=0, lives=set(), noop_frames=set())

    def begin(observation: np.ndarray) -> None:
        noop_frames = int(infos[-1]["episode_frame_number"][0])
        seen.noop_frames.add(noop_frames)
        np.testing.assert_array_equal(observation[0], twin.reset(noop_frames))

    begin(envs.reset([SEED]))
    rng = np.random.default_rng(0)
    ended = False
    for _ in range(steps):
        action = int(rng.integers(envs.spec.num_actions))
        step = envs.step([action])
        if ended:  # the vector environment has begun the next episode
            begin(step.observation)
            ended = False
            continue
        observation, reward, terminated, truncated, _ = twin.env.step(action)
        np.testing.assert_array_equal(step.observation[0], observation)
        assert step.reward[0] == reward
        assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
        lives = twin.emulator.ale.lives()
        assert infos[-1]["lives"][0] == lives
        ended = terminated or truncated
        seen.terminated += terminated
        seen.truncated += truncated
        seen.rewards += reward != 0
        seen.lives.add(lives)
    envs.close()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_five_thousand_steps_are_equal(game):
    seen = assert_equal_play(game, RANDOM, 5000)
    assert seen.terminated >= 4
    assert seen.rewards >= 20
    assert len(seen.noop_frames) >= 4  # another number at nearly every start
    assert len(seen.lives) > 1 or game == "Pong"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_plays_equally(name):
    seen = assert_equal_play("Breakout", PROTOCOLS[name].atari, 400)
    assert seen.terminated >= 1
    assert seen.rewards >= 1
    assert (seen.noop_frames == {0}) == (PROTOCOLS[name].atari.noop_max == 0)


@pytest.mark.parametrize(
    "config",
    [NATIVE, replace(NATIVE, grayscale=False), replace(RANDOM, grayscale=False, frame_stack=2)],
    ids=["grey, not resized", "colour, not resized", "colour, resized"],
)
def test_other_images_are_equal(config):
    assert assert_equal_play("SpaceInvaders", config, 200).rewards >= 1


@pytest.mark.parametrize("frame_skip", [4, 3])
def test_time_limits_end_both_in_the_same_frame(frame_skip):
    # No no-op frames: Gymnasium's emulator counts them against the limit, ale-py's vector does not.
    config = replace(RANDOM, frame_skip=frame_skip, noop_max=0, max_frames_per_episode=200)
    assert assert_equal_play("MsPacman", config, 300).truncated >= 4


def test_gymnasium_repeats_the_first_frame_where_ale_py_has_zeros():
    config = replace(RANDOM, noop_max=0)
    twin = Twin("Pong", config, padding="reset")
    twin.seed(SEED)
    theirs = twin.reset(0)
    ours = make_atari("Pong", training=False, **vars(config)).reset([SEED])[0]
    np.testing.assert_array_equal(ours[3], theirs[3])
    np.testing.assert_array_equal(theirs[:3], theirs[[3, 3, 3]])
    assert not ours[:3].any()


def test_the_frame_that_ends_an_episode_is_never_seen():
    """A limit of 10 frames cuts the third step after 2 of its 4: nothing of it is shown."""
    limits = {"noop_max": 0, "max_frames_per_episode": 10}
    envs = make_atari("Freeway", training=False, image_height=210, image_width=160, **limits)
    images = [envs.reset([SEED])[0, -1]]
    images += [envs.step([0]).observation[0, -1] for _ in range(2)]
    last = envs.step([0])
    assert last.truncated[0]
    np.testing.assert_array_equal(last.observation[0, -1], images[-1])
    assert (images[0] != images[1]).any()  # the cars move in every step
    assert (images[1] != images[2]).any()
