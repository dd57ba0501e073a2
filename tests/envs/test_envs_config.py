"""Settings: ranges, pickling, YAML, help, and what they may not contain."""

import pickle
import subprocess
import sys
from dataclasses import fields

import jsonargparse
import numpy as np
import pytest

from lrl.envs import AtariConfig, EnvConfig, WrapperConfig
from lrl.types import ConfigError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("frame_stack", 0),
        ("max_episode_steps", 0),
        ("reward_clip", 0.0),
        ("reward_clip", -1.0),
        ("reward_clip", float("nan")),
        ("reward_clip", float("inf")),
    ],
)
def test_a_value_out_of_range_is_named_with_the_allowed_range(setting, value):
    with pytest.raises(ConfigError, match=rf"env\.{setting} is {value}, but must be .*") as error:
        EnvConfig(**{setting: value})
    assert "0" in str(error.value) or "1" in str(error.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("frame_skip", 0),
        ("frame_stack", 0),
        ("image_height", 0),
        ("image_width", -1),
        ("noop_max", -1),
        ("noop_max", 1),
        ("max_frames_per_episode", 0),
        ("max_frames_per_episode", 3),
        ("repeat_action_probability", 1.0),
        ("repeat_action_probability", -0.1),
    ],
)
def test_an_atari_value_out_of_range_is_named(setting, value):
    with pytest.raises(ConfigError, match=rf"env\.atari\.{setting} is {value}, but must be"):
        AtariConfig(**{setting: value})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"frame_skip": 1}, "max_pool is True, but must be false with frame_skip 1"),
        (
            {"noop_max": 1},
            r"noop_max is 1, but must be 0 \(none\) or at least 2: 0 to noop_max - 1",
        ),
        (
            {"noop_max": 2, "fire_reset": True},
            "noop_max is 2, but must be .* at least 3: .* and fire_reset takes one of them",
        ),
        (
            {"max_frames_per_episode": 4, "frame_skip": 5},
            "max_frames_per_episode is 4, but must be at least frame_skip, 5: no step",
        ),
    ],
)
def test_options_of_atari_that_exclude_each_other_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=rf"env\.atari\.{sentence}"):
        AtariConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"frame_skip": 1, "max_pool": False},
        {"noop_max": 0, "fire_reset": True},
        {"noop_max": 2},
        {"noop_max": 3, "fire_reset": True},
        {"max_frames_per_episode": 4},
    ],
)
def test_options_of_atari_that_go_together(options):
    assert {name: getattr(AtariConfig(**options), name) for name in options} == options


@pytest.mark.parametrize("env_id", ["CartPole-v1", "lrl/Catch-v0"])
@pytest.mark.parametrize(("option", "value"), [("frame_skip", 2), ("full_action_space", True)])
def test_options_of_atari_are_refused_elsewhere(env_id, option, value):
    sentence = rf"env\.atari\.{option} is {value}, but must be .* for {env_id}: .* ALE/\."
    with pytest.raises(ConfigError, match=sentence):
        EnvConfig(env_id, atari=AtariConfig(**{option: value}))


@pytest.mark.parametrize(
    "ignored",
    [
        {"kwargs": {"frameskip": 2}},
        {"wrappers": [WrapperConfig("gymnasium.wrappers.TimeAwareObservation")]},
        {"frame_stack": 4},
        {"max_episode_steps": 100},
    ],
)
def test_what_atari_would_ignore_is_refused(ignored):
    (name,) = ignored
    with pytest.raises(ConfigError, match=rf"env\.{name} .* ALE/Pong-v5, .*env\.atari"):
        EnvConfig(id="ALE/Pong-v5", **ignored)


def test_atari_has_no_masks():
    with pytest.raises(ConfigError, match=r"env\.action_masks is True, .* ALE/Pong-v5, whose"):
        EnvConfig(id="ALE/Pong-v5", action_masks=True)


MAPPINGS = {
    "wrappers": [{"path": "gymnasium.wrappers.ClipReward", "kwargs": {"max_reward": 1.0}}],
    "atari": {"frame_skip": 4},
}


def test_scripts_may_give_the_forms_of_yaml():
    wrapper = WrapperConfig("gymnasium.wrappers.ClipReward", {"max_reward": 1.0})
    assert EnvConfig(**MAPPINGS) == EnvConfig(wrappers=[wrapper])
    game = EnvConfig("ALE/Pong-v5", atari={"noop_max": 0})  # type: ignore[arg-type]
    assert game.atari == AtariConfig(noop_max=0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"wrappers": [{"pathh": "a.B"}]}, r"env\.wrappers\[0\]\.pathh is no setting: .* 'path'\?"),
        ({"wrappers": [{"kwargs": {}}]}, r"env\.wrappers\[0\] is .*, but must have a path"),
        ({"wrappers": ["a.B"]}, r"env\.wrappers\[0\] is 'a\.B', but must be a mapping"),
        ({"wrappers": {"path": "a.B"}}, r"env\.wrappers is .*, but must be a list"),
        ({"wrappers": [{"path": "a.B", "kwargs": 3}]}, r"env\.wrappers\.kwargs is 3, .* a mapping"),
        ({"atari": {"frameskip": 2}}, r"env\.atari\.frameskip is no setting: .* 'frame_skip'\?"),
        ({"atari": {"hue": 2}}, r"env\.atari\.hue is no setting: there are frame_skip, max_pool"),
        ({"atari": 5}, r"env\.atari is 5, but must be a mapping of its settings"),
        ({"atari": {"noop_max": "0"}}, r"env\.atari\.noop_max is '0', but must be a whole number"),
        ({"max_episode_steps": "500"}, r"max_episode_steps is '500', .* a whole number or null"),
        ({"max_episode_steps": 0.5}, r"max_episode_steps is 0\.5, .* a whole number or null"),
        ({"reward_clip": "1"}, r"env\.reward_clip is '1', but must be a number or null"),
        ({"frame_stack": True}, r"env\.frame_stack is True, but must be a whole number"),
        ({"action_masks": 1}, r"env\.action_masks is 1, but must be true or false"),
        ({"id": None}, r"env\.id is None, but must be text"),
    ],
)
def test_an_unknown_or_ill_typed_setting_is_named(settings, text):
    with pytest.raises(ConfigError, match=text):
        EnvConfig(**settings)


def test_numbers_of_numpy_are_numbers():
    config = EnvConfig(frame_stack=np.int64(2), reward_clip=np.float32(1))  # type: ignore[arg-type]
    assert (config.frame_stack, config.reward_clip) == (2, 1.0)


def test_a_wrapper_needs_a_module():
    with pytest.raises(ConfigError, match=r"env\.wrappers\.path is 'ClipReward'"):
        WrapperConfig("ClipReward")


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward"])
def test_wrappers_whose_statistics_no_checkpoint_holds_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name}, whose statistics are of one environment"):
        WrapperConfig(f"gymnasium.wrappers.{name}")


@pytest.mark.parametrize("module", ["wrappers", "wrappers.rendering", "wrappers.vector"])
def test_a_wrapper_that_writes_files_is_refused(module):
    """Every process would write the same, and a checkpoint from elsewhere would say where."""
    with pytest.raises(ConfigError, match=r"RecordVideo, whose files .* `lrl play`"):
        WrapperConfig(f"gymnasium.{module}.RecordVideo", {"video_folder": "films"})


def test_settings_survive_pickling():
    config = EnvConfig("lrl/Catch-v0", {"rows": 6}, [WrapperConfig("a.B", {"c": 1})], frame_stack=2)
    assert pickle.loads(pickle.dumps(config)) == config


YAML = """
env:
  id: lrl/Catch-v0
  kwargs: {cell_pixels: 2}
  wrappers:
    - path: gymnasium.wrappers.ClipReward
      kwargs: {min_reward: 0.0, max_reward: 1.0}
    - path: gymnasium.wrappers.FlattenObservation
  reward_clip: 1.0
"""


def from_yaml(text: str) -> EnvConfig:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--env", type=EnvConfig)
    return parser.instantiate(parser.parse_string(text)).env


def test_settings_are_built_from_yaml():
    assert from_yaml(YAML) == EnvConfig(
        id="lrl/Catch-v0",
        kwargs={"cell_pixels": 2},
        wrappers=[
            WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": 0.0, "max_reward": 1.0}),
            WrapperConfig("gymnasium.wrappers.FlattenObservation"),
        ],
        reward_clip=1.0,
    )
    games = "env: {id: ALE/Pong-v5, atari: {frame_skip: 3, fire_reset: true}}"
    assert from_yaml(games) == EnvConfig(
        "ALE/Pong-v5", atari=AtariConfig(frame_skip=3, fire_reset=True)
    )


@pytest.mark.parametrize("config_class", [EnvConfig, AtariConfig, WrapperConfig])
def test_every_setting_has_a_help_text(config_class):
    import inspect

    source = inspect.getsource(config_class)
    for field in fields(config_class):
        _, _, after = source.partition(f"\n    {field.name}: ")
        assert after.partition("\n")[2].lstrip().startswith('"""'), field.name


def test_importing_the_package_is_light_and_registers_the_toys():
    code = (
        "import sys, lrl.envs, gymnasium\n"
        "heavy = {'torch', 'lightning', 'ale_py', 'cv2', 'pygame'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "toys = {'lrl/Identity-v0', 'lrl/Chain-v0', 'lrl/Catch-v0', 'lrl/Ledger-v0', "
        "'lrl/Masked-v0'}\n"
        "assert toys <= set(gymnasium.registry), toys\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
