import sys

import gymnasium
import numpy as np
import pytest

from lrl.envs import EnvConfig, make_envs, make_spec
from lrl.envs.minatar import GAMES, MinAtar
from lrl.types import ConfigError

IDS = {game: f"lrl/MinAtar{game.title().replace('_', '')}-v0" for game in GAMES}


def play(env: gymnasium.Env, seed: int, steps: int = 200) -> list:
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=seed)
    seen: list = [observation]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(int(rng.integers(6)))
        assert not truncated
        seen += [observation, reward]
        if terminated:
            seen.append(env.reset()[0])
    return seen


@pytest.mark.parametrize("game", GAMES)
def test_every_game_plays_from_its_id_and_depends_on_the_seed_alone(game: str):
    spec = make_spec(EnvConfig(id=IDS[game]))
    channels = spec.observation_shape[0]
    assert spec.observation_shape == (channels, 10, 10)
    assert spec.num_actions == 6
    env = gymnasium.make(IDS[game], disable_env_checker=True)
    first = play(env, seed=3)
    again = play(gymnasium.make(IDS[game], disable_env_checker=True), seed=3)
    played_before = play(env, seed=3)
    other = play(env, seed=4)
    for same in (again, played_before):
        assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=False))
    assert first[0].shape == spec.observation_shape
    assert first[0].dtype == np.bool_
    assert first[0].any()


def test_channels_come_first_as_the_game_has_them():
    env = MinAtar("breakout")
    observation, _ = env.reset(seed=0)
    state = env._game.state()  # [10, 10, channels]: the paddle is channel 0, in the lowest row
    assert state.shape == (10, 10, 4)
    assert observation[0].sum() == 1
    assert observation[0, 9, 4]
    assert np.array_equal(observation[3], state[:, :, 3])


def test_options_reach_the_game():
    assert MinAtar("breakout", minimal_actions=True).action_space == gymnasium.spaces.Discrete(3)
    env = MinAtar("breakout", repeat_action_probability=0.0, minimal_actions=True)
    env.reset(seed=0)
    env.step(1)  # left; without sticky actions it always is
    assert env._game.env.pos == 3


def test_an_unknown_game_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"env\.kwargs\.game is 'pong'.*asterix, breakout"):
        MinAtar("pong")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[minatar\]'"):
        make_envs(EnvConfig(id=IDS["breakout"]), 1, training=False)


@pytest.mark.parametrize("game", GAMES)
def test_the_picture_shows_what_is_on_the_board(game: str):
    env = MinAtar(game, render_mode="rgb_array")
    empty = None
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for _ in range(20):
            picture = env.render()
            assert picture is not None
            assert picture.shape == (10, 10, 3)
            occupied = observation.any(axis=0)
            if empty is None:
                (empty,) = {tuple(pixel) for pixel in picture[~occupied].tolist()}
            assert ((picture == empty).all(axis=2) == ~occupied).all()
            # Where the topmost things differ, so do the colours.
            top = len(observation) - 1 - observation[::-1].argmax(axis=0)
            pairs = zip(picture[occupied].tolist(), top[occupied].tolist(), strict=True)
            shown = {(tuple(colour), channel) for colour, channel in pairs}
            assert len(shown) == len({colour for colour, _ in shown})
            assert len(shown) == len({channel for _, channel in shown})
            observation, *_ = env.step(2)


def test_it_draws_only_when_asked_to_and_names_its_actions():
    env = MinAtar("breakout", minimal_actions=True)
    env.reset(seed=0)
    assert env.render() is None
    assert env.get_action_meanings() == ["NOOP", "LEFT", "RIGHT"]
