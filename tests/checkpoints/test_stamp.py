"""The protocol stamp: what it holds, what it says of two scores, what a checkpoint gives back."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import edited, trained, with_nan
from helpers.training_runs import make_run, quiet, small_data

import lrl
from lrl import DQN
from lrl.checkpoints.stamp import (
    STAMP_KEY,
    differences,
    env_of,
    make_stamp,
    other_protocol,
    trained_in,
)
from lrl.envs import AtariConfig, EnvConfig, WrapperConfig
from lrl.evaluation.episodes import EvaluationConfig
from lrl.learner.agent import find_device, load_agent
from lrl.networks import MLPEncoder
from lrl.types import ConfigError

pytestmark = quiet
PONG = EnvConfig("ALE/Pong-v5", reward_clip=1.0)
ENVIRONMENTS = {
    "CartPole": EnvConfig(max_episode_steps=200),
    "arguments": EnvConfig("lrl/Identity-v0", kwargs={"length": 5}, action_masks=True),
    "wrappers": EnvConfig(
        "lrl/Catch-v0",
        wrappers=[
            WrapperConfig("lrl.envs.ChannelsFirst"),
            WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": -2.5}),
        ],
        frame_stack=2,
    ),
    "Atari": EnvConfig("ALE/MsPacman-v5", atari=AtariConfig(frame_skip=5, noop_max=0)),
}


def stamp_of(env: EnvConfig, steps: int = 7, **evaluation: Any) -> dict[str, Any]:
    return make_stamp(env, EvaluationConfig(**evaluation), seed=3, learner_steps=steps)


def test_a_stamp_says_all_that_belongs_to_a_score():
    stamp = stamp_of(PONG, max_frames_per_episode=18_000)
    assert stamp["environment"]["id"] == "ALE/Pong-v5"
    assert stamp["environment"]["atari"]["frame_skip"] == 4
    assert stamp["evaluation"] == {
        "epsilon": 0.001, "max_frames_per_episode": 18_000, "episodes": 20, "first_seed": 0,
    }  # fmt: skip
    assert stamp["training"] == {"seed": 3, "learner_steps": 7}
    assert stamp["versions"]["lrl"] == lrl.__version__
    assert {"python", "torch", "ale-py", "gymnasium"} <= stamp["versions"].keys()
    assert stamp["hardware"]["cores"] == os.cpu_count()
    assert isinstance(stamp["hardware"]["processor"], str)
    assert stamp["protocol"] == "custom"  # no named protocol goes on after a lost life


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_comes_back_from_json_and_from_a_checkpoint(name: str, tmp_path: Path):
    stamp = stamp_of(ENVIRONMENTS[name])
    assert env_of(json.loads(json.dumps(stamp))) == ENVIRONMENTS[name]
    torch.save(stamp, tmp_path / "stamp")
    assert env_of(torch.load(tmp_path / "stamp", weights_only=True)) == ENVIRONMENTS[name]


def test_numbers_of_numpy_become_plain_ones():
    stamp = stamp_of(EnvConfig("lrl/Identity-v0", kwargs={"length": np.int64(5)}))
    assert type(stamp["environment"]["kwargs"]["length"]) is int


def test_objects_in_the_settings_are_named_when_the_environment_is_wanted():
    wrapper = WrapperConfig("gymnasium.wrappers.TransformReward", {"func": [1, abs]})
    kwargs = {"length": object(), "names": {0: "left"}}
    stamp = stamp_of(EnvConfig("lrl/Identity-v0", kwargs, [wrapper]))
    json.dumps(stamp)
    held = r"env\.kwargs\.length, env\.kwargs\.names, env\.wrappers\[0\]\.kwargs\.func\[1\] held"
    with pytest.raises(ConfigError, match=held):
        env_of(stamp)


class Maker:
    """Something that is called for an environment's parts."""


def test_objects_in_the_settings_are_the_same_in_another_process():
    """Their addresses are not, and a run that goes on would leave its replay out for them."""
    kwargs = [{"length": [Maker(), draw, functools.partial(repr, Maker())]} for draw in (abs, abs)]
    stamps = [stamp_of(EnvConfig("lrl/Identity-v0", each)) for each in kwargs]
    assert stamps[0]["environment"] == stamps[1]["environment"]
    assert "builtins.abs" in json.dumps(stamps[0])


@pytest.mark.parametrize(
    ("env", "module"),
    [
        (EnvConfig("nowhere:Maze-v0"), "nowhere"),
        (EnvConfig("lrl/Catch-v0", wrappers=[WrapperConfig("nowhere.Mirror")]), "nowhere.Mirror"),
    ],
    ids=["environment", "wrapper"],
)
def test_a_checkpoint_imports_no_module_that_is_not(env: EnvConfig, module: str, monkeypatch):
    with pytest.raises(ConfigError, match=rf"needs {module}: import it .*--modules nowhere\)"):
        env_of(stamp_of(env))
    monkeypatch.setitem(sys.modules, "nowhere", sys)
    assert env_of(stamp_of(env)) == env


def test_a_games_own_limit_is_that_of_its_evaluation():
    game = EnvConfig("ALE/Pong-v5", atari=AtariConfig(max_frames_per_episode=400))
    assert stamp_of(game)["evaluation"]["max_frames_per_episode"] == 400
    assert stamp_of(game, max_frames_per_episode=80)["evaluation"]["max_frames_per_episode"] == 80


LOADED: dict[str, tuple[EnvConfig, dict[str, Any], str]] = {
    "the same": (PONG, {}, ""),
    "another game": (
        EnvConfig("ALE/Breakout-v5", reward_clip=1.0),
        {},
        "env.id ALE/Breakout-v5 instead of ALE/Pong-v5",
    ),
    "another epsilon": (PONG, {"epsilon": 0.05}, "evaluation.epsilon 0.05 instead of 0.001"),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_run_notices_that_it_loads_what_was_measured_otherwise(name: str):
    env, evaluation, expected = LOADED[name]
    run = SimpleNamespace(stamp=lambda: stamp_of(env, **evaluation))
    assert other_protocol({STAMP_KEY: stamp_of(PONG)}, run) == expected
    assert other_protocol({}, run) == ""
    assert other_protocol({STAMP_KEY: stamp_of(PONG)}, None) == ""
    assert other_protocol({STAMP_KEY: "Pong"}, run) == "a stamp of another version of lrl"


def test_an_equal_limit_of_frames_makes_no_difference_wherever_it_is_set():
    short = EnvConfig("ALE/Pong-v5", atari=AtariConfig(max_frames_per_episode=18_000))
    cut = stamp_of(EnvConfig("ALE/Pong-v5"), max_frames_per_episode=18_000)
    assert differences(stamp_of(short), cut) == {}
    assert differences(stamp_of(short), stamp_of(PONG)) == {
        "evaluation.max_frames_per_episode": (18_000, 108_000)
    }


def test_what_an_environment_does_not_read_makes_no_difference():
    cartpole = stamp_of(EnvConfig())
    other = stamp_of(EnvConfig())
    other["environment"]["atari"] = {**vars(AtariConfig()), "frame_skip": 2}
    assert differences(cartpole, other) == {}
    assert differences(cartpole, stamp_of(PONG)) == {"environment": ("gymnasium", "atari")}


def test_a_stamp_of_before_holds_the_settings_of_games_for_any_environment():
    cartpole, before = stamp_of(EnvConfig()), stamp_of(EnvConfig())
    assert "atari" not in cartpole["environment"]
    before["environment"]["atari"] = {**vars(AtariConfig())}
    assert env_of(before) == env_of(cartpole) == EnvConfig()
    assert trained_in(before) == trained_in(cartpole)


SAME = {
    "the same": PONG,
    "another game": EnvConfig("ALE/Breakout-v5", reward_clip=1.0),
    "clipped for training": EnvConfig("ALE/Pong-v5", reward_clip=None),
    "lives in training": EnvConfig("ALE/Pong-v5", atari=AtariConfig(terminal_on_life_loss=True)),
}


@pytest.mark.parametrize("name", SAME)
def test_what_acts_in_training_only_makes_no_difference(name: str):
    other = stamp_of(SAME[name], steps=10_000)
    other["versions"] = other["hardware"] = {}
    assert differences(stamp_of(PONG), other) == {}


DIFFERENT: dict[str, tuple[EnvConfig, dict[str, Any], dict[str, tuple[Any, Any]]]] = {
    "preprocessing": (
        EnvConfig("ALE/Pong-v5", atari=AtariConfig(frame_skip=2, grayscale=False)),
        {},
        {"env.atari.frame_skip": (4, 2), "env.atari.grayscale": (True, False)},
    ),
    "epsilon": (PONG, {"epsilon": 0.05}, {"evaluation.epsilon": (0.001, 0.05)}),
    "cap": (
        PONG,
        {"max_frames_per_episode": 18_000},
        {"evaluation.max_frames_per_episode": (108_000, 18_000)},
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_named_with_both_values(name: str):
    env, evaluation, expected = DIFFERENT[name]
    one, two = stamp_of(PONG), stamp_of(env, **evaluation)
    assert differences(one, two) == expected
    assert differences(two, one) == {key: (b, a) for key, (a, b) in expected.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda stamp: stamp.update(format=2, environment={}),
            "its format is 2, and this one reads format 1",
        ),
        (lambda stamp: stamp["environment"].update(new=1), r"settings \['new'\] are not known"),
        (lambda stamp: stamp["environment"]["atari"].update(hue=1), r"settings \['atari.hue'\]"),
    ],
)
def test_a_stamp_of_another_version_names_that_version(change, message: str):
    stamp = stamp_of(PONG)
    stamp["versions"]["lrl"] = "9.9"
    change(stamp)
    with pytest.raises(ConfigError, match=f"lrl 9.9: use that version.*{message}"):
        env_of(stamp)


# --- Checkpoints ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("stamped"))


def test_an_agent_is_what_was_trained(tmp_path: Path):
    encoder = functools.partial(MLPEncoder, hidden_sizes=(16,), noisy=True)
    data = small_data(env=EnvConfig("lrl/Identity-v0", kwargs={"length": 5}), seed=4)
    run = make_run(tmp_path, module=DQN(encoder=encoder), data=data, max_steps=20).fit()
    observation = np.eye(4, dtype=np.float32)
    agent = load_agent(run.checkpoint("last"))
    assert not agent.module.training
    values = [agent.policy()(observation)[0] for _ in range(2)]
    assert np.array_equal(values[0], values[1])  # no noise
    assert torch.equal(
        torch.from_numpy(values[0]), run.module.eval()(torch.from_numpy(observation))
    )
    assert agent.env == data.env
    assert agent.stamp["training"]["seed"] == 4
    for name in ("best", "last"):
        stamp = load_agent(run.checkpoint(name)).stamp
        content = torch.load(run.checkpoint(name), weights_only=True)
        assert stamp["training"]["learner_steps"] == content["global_step"] > 0
        assert stamp["training"]["frames"] == stamp["training"]["env_steps"] > 0


def forget(*keys: str):
    """Return a change of a checkpoint that leaves something out."""

    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def elsewhere(content: dict[str, Any]) -> None:
    content["hyper_parameters"]["encoder"] = {"class_path": "nowhere.Encoder", "init_args": {}}


BROKEN = {
    "no stamp": (forget(STAMP_KEY), "has no protocol stamp: it was not written by lrl"),
    "no network": (
        forget("state_dict", "online.head.layers.actions.bias"),
        "is not complete: RuntimeError",
    ),
    "no settings": (forget(STAMP_KEY, "environment"), "is not complete: KeyError 'environment'"),
    "not a stamp": (lambda content: content.update({STAMP_KEY: "Pong"}), "is not complete: "),
    "diverged": (with_nan, "of the checkpoint are NaN or infinite: its training diverged"),
    "another's part": (elsewhere, "import nowhere before loading the checkpoint"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checkpoint_that_cannot_be_used_is_named_with_the_reason(checkpoint: Path, name: str):
    change, message = BROKEN[name]
    path = edited(checkpoint, "broken", change)
    with pytest.raises(ConfigError) as caught:
        load_agent(path)
    assert str(caught.value).startswith(f"checkpoint {path}")
    assert message in str(caught.value)


def test_a_file_that_is_no_checkpoint_is_named(checkpoint: Path, tmp_path: Path):
    path = tmp_path / "some.ckpt"
    with pytest.raises(ConfigError, match=r"some\.ckpt: there is no such file"):
        load_agent(path)
    for content in (b"", b"not a checkpoint", checkpoint.read_bytes()[:1000]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"some\.ckpt is damaged, or no checkpoint: ."):
            load_agent(path)
    torch.save([1, 2], path)
    with pytest.raises(ConfigError, match=r"some\.ckpt has no protocol stamp"):
        load_agent(path)


def test_no_code_in_a_checkpoint_runs(tmp_path: Path):
    victim = tmp_path / "written"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (victim,))

    path = tmp_path / "evil.ckpt"
    torch.save({STAMP_KEY: Evil()}, path)
    with pytest.raises(ConfigError, match=r"evil\.ckpt is damaged, or no checkpoint"):
        load_agent(path)
    assert not victim.exists()


def test_a_device_is_found_or_refused_with_its_name():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(ConfigError, match=f"device '{name}' cannot be used here, 'cpu' can: ."):
            find_device(name)
