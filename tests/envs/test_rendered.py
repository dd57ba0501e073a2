"""Environments that can be looked at, and those that cannot."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from helpers.filmed_envs import DIARY

from lrl.envs import AtariConfig, EnvConfig, make_envs, make_rendered
from lrl.envs.atari import RenderedAtari
from lrl.types import ConfigError

PONG = EnvConfig("ALE/Pong-v5", atari=AtariConfig(repeat_action_probability=0.25))


def test_a_gymnasium_environment():
    rendered = make_rendered(EnvConfig(DIARY))
    assert (rendered.action_names, rendered.fps) == (["0", "1", "2"], 25.0)
    rendered.reset(7)
    step = rendered.step(np.zeros(1, np.int32))
    picture = rendered.picture()
    assert picture.shape == (6, 10, 3)
    assert picture[0, 0].tolist() == [1, 100 + step.reward[0], 0]
    rendered.close()
    with pytest.raises(RuntimeError, match="closed"):
        rendered.reset(0)


def test_it_is_the_environment_of_evaluation():
    config = EnvConfig(DIARY, kwargs={"length": 5}, frame_stack=2, max_episode_steps=4)
    rendered, envs = make_rendered(config), make_envs(config, 1, training=False)
    assert rendered.envs.spec == envs.spec
    assert np.array_equal(rendered.reset(3), envs.reset([3]))
    for action in ([1], [2], [0], [2]):
        ours, theirs = rendered.step(np.array(action, np.int32)), envs.step(action)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours.truncated[0]


def test_names_of_actions_come_from_the_environment():
    pytest.importorskip("minatar")
    rendered = make_rendered(EnvConfig("lrl/MinAtarBreakout-v0"))
    assert rendered.action_names == ["NOOP", "LEFT", "UP", "RIGHT", "DOWN", "FIRE"]
    assert rendered.fps == 10.0
    rendered.reset(0)
    assert rendered.picture().any()


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (EnvConfig("lrl/Chain-v0"), "it does not take render_mode='rgb_array'"),
        (EnvConfig(DIARY, {"draws": "nothing"}), "render returned NoneType instead of"),
        (EnvConfig(DIARY, {"draws": "text"}), "render returned str instead of"),
        (EnvConfig(DIARY, {"draws": "an error"}), "render raised RuntimeError: gladLoadGL error"),
        (EnvConfig(DIARY, {"draws": "shares"}), "render returned float32 instead of bytes (uint8)"),
        (EnvConfig(DIARY, {"draws": "no method"}), "it has no method render"),
        (EnvConfig(DIARY, {"draws": "no package"}), "paint is not installed: ask its maker"),
        (
            EnvConfig(DIARY, {"draws": "no pygame"}),
            "pygame is not installed: pip install 'lrl[video]'",
        ),
    ],
)
def test_what_draws_no_pictures_is_refused(env: EnvConfig, reason: str):
    with pytest.raises(ConfigError, match=f"'{env.id}' cannot be filmed: {re.escape(reason)}"):
        make_rendered(env)


def test_a_mistake_that_has_nothing_to_do_with_pictures_is_named_as_itself():
    with pytest.raises(ConfigError, match=r"no_such_setting"):
        make_rendered(EnvConfig(DIARY, {"no_such_setting": 1}))


@pytest.mark.atari
def test_a_game_has_its_full_screen_and_the_names_of_its_actions():
    rendered = make_rendered(PONG)
    assert rendered.action_names == ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
    assert rendered.fps == 15.0
    assert rendered.reset(0).shape == (1, 4, 84, 84)
    picture = rendered.picture()
    assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)
    # The score of the left player is orange, that of the right one green.
    assert {(213, 130, 74), (92, 186, 92)} <= {tuple(p) for p in picture.reshape(-1, 3).tolist()}
    rendered.close()


@pytest.mark.atari
def test_a_taller_screen_is_shown_whole():
    rendered = make_rendered(EnvConfig("ALE/AirRaid-v5"))
    rendered.reset(0)
    assert rendered.picture().shape == (250, 160, 3)
    rendered.close()


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("Pong", {"repeat_action_probability": 0.25}),
        ("Breakout", {"repeat_action_probability": 0.25, "full_action_space": True}),
        ("Seaquest", {"fire_reset": True}),
        ("MontezumaRevenge", {"frame_skip": 1, "max_pool": False}),
    ],
)
def test_the_picture_is_of_the_game_that_is_played(game: str, settings: dict[str, Any]):
    """`step` raises where rewards or ends differ; where they agree, the screens do as well."""
    rendered = make_rendered(EnvConfig(f"ALE/{game}-v5", atari=AtariConfig(**settings)))
    rng, steps, ends = np.random.default_rng(0), 0, 0
    for seed in (0, 1, 2, 2**20):
        observation = rendered.reset(seed)
        for _ in range(700):
            steps += 1
            assert abs(observation[0, -1].mean() - luminance(rendered.picture()).mean()) < 1.0
            step = rendered.step(
                rng.integers(rendered.envs.spec.num_actions, size=1, dtype=np.int32)
            )
            observation = step.observation
            if step.terminated[0] or step.truncated[0]:
                ends += 1
                break
    rendered.close()
    assert steps > 500
    assert ends or game in ("Pong", "MontezumaRevenge")


def luminance(picture: Any) -> Any:
    return picture @ np.array([0.299, 0.587, 0.114])


@pytest.mark.atari
def test_another_game_than_the_one_that_is_played_is_an_error():
    rendered = make_rendered(PONG)
    assert isinstance(rendered, RenderedAtari)
    rendered.reset(0)
    rendered._twin.reset([1])  # other random numbers

    def play() -> None:
        for step in range(1500):
            rendered.step(np.array([2 + step % 2], np.int32))

    with pytest.raises(RuntimeError, match=r"pictures are of another game: reward is .* but .*"):
        play()


@pytest.mark.parametrize("screen", ["DISPLAY", "WAYLAND_DISPLAY", None])
def test_sdl_is_not_asked_for_a_screen_that_is_not_there(monkeypatch, screen):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    if screen is not None:
        monkeypatch.setenv(screen, ":0")
    make_rendered(EnvConfig(DIARY)).close()
    assert os.environ.get("SDL_VIDEODRIVER") == (None if screen else "dummy")
