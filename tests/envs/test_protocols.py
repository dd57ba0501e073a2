"""Named protocols: what they are, and that a name says what is evaluated."""

from __future__ import annotations

import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.envs_rollout import make_atari, rollout

from lrl.envs import PROTOCOLS, AtariConfig, EnvConfig, kind_of

DOCUMENT = (Path(__file__).parents[2] / "docs/environments.md").read_text()

# What the protocols share, and what each has of its own.
SHARED = {
    "max_pool": True,
    "image_height": 84,
    "image_width": 84,
    "grayscale": True,
    "frame_stack": 4,
    "fire_reset": False,
}
OWN_NAMES = (
    "frame_skip",
    "repeat_action_probability",
    "noop_max",
    "terminal_on_life_loss",
    "full_action_space",
    "max_frames_per_episode",
)
OWN = {
    "dqn_2015": (4, 0.0, 30, True, False, 18_000),
    "machado_2018": (5, 0.25, 0, False, True, 18_000),
    "ale_v5": (4, 0.25, 0, False, False, 108_000),
    "atari_100k": (4, 0.0, 30, True, False, 108_000),
}
EPSILONS = {"dqn_2015": 0.05, "machado_2018": 0.01, "ale_v5": 0.001, "atari_100k": 0.001}

every_protocol = pytest.mark.parametrize("name", PROTOCOLS)


def of(name: str, **changes) -> EnvConfig:
    protocol = PROTOCOLS[name]
    atari = replace(protocol.atari, **changes)
    return EnvConfig("ALE/Pong-v5", reward_clip=protocol.reward_clip, atari=atari)


def evaluated(env: EnvConfig, name: str, **changes) -> str:
    """Return the name of an environment's protocol, evaluated as that of a name says."""
    limit = PROTOCOLS[name].atari.max_frames_per_episode
    return kind_of(env).protocol(**{"epsilon": EPSILONS[name], "max_frames": limit, **changes})


def test_the_protocols_are_those_of_their_sources():
    assert set(PROTOCOLS) == set(OWN)
    for name, protocol in PROTOCOLS.items():
        own = dict(zip(OWN_NAMES, OWN[name], strict=True))
        assert vars(protocol.atari) == {**SHARED, **own}, name
        assert protocol.reward_clip == 1.0
        assert protocol.evaluation_epsilon == EPSILONS[name]


@pytest.mark.atari
def test_ale_v5_is_what_ale_py_registers():
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    registered = dict(gymnasium.spec("ALE/Pong-v5").kwargs)
    atari = PROTOCOLS["ale_v5"].atari
    assert registered == {
        "game": "pong",
        "repeat_action_probability": atari.repeat_action_probability,
        "full_action_space": atari.full_action_space,
        "frameskip": atari.frame_skip,
        "max_num_frames_per_episode": atari.max_frames_per_episode,
    }


@every_protocol
def test_a_protocol_is_recognised_whatever_the_game(name):
    assert evaluated(of(name), name) == name
    assert evaluated(replace(of(name), id="ale_py:ALE/MsPacman-v5"), name) == name


@every_protocol
def test_what_acts_in_training_belongs_to_it(name):
    assert evaluated(replace(of(name), reward_clip=0.5), name) == "custom"
    life_loss = PROTOCOLS[name].atari.terminal_on_life_loss
    assert evaluated(of(name, terminal_on_life_loss=not life_loss), name) == "custom"


@every_protocol
def test_how_it_is_evaluated_belongs_to_it(name):
    limit = PROTOCOLS[name].atari.max_frames_per_episode
    assert evaluated(of(name), name, epsilon=0.02) == "custom"
    assert evaluated(of(name), name, max_frames=limit - 1) == "custom"
    assert evaluated(of(name), name, max_frames=limit + 1) == name  # the game's own comes first


@every_protocol
@pytest.mark.parametrize(
    "change",
    [
        {"frame_skip": 3},
        {"max_pool": False},
        {"image_height": 42},
        {"image_width": 42},
        {"grayscale": False},
        {"frame_stack": 1},
        {"repeat_action_probability": 0.1},
        {"noop_max": 10},
        {"fire_reset": True},
        {"max_frames_per_episode": 27_000},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_option_makes_it_custom(name, change):
    assert evaluated(of(name, **change), name) == "custom"


@every_protocol
def test_another_set_of_actions_is_another_protocol(name):
    assert evaluated(of(name, full_action_space=not OWN[name][4]), name) == "custom"


def test_the_defaults_are_no_named_protocol():
    assert kind_of(EnvConfig("ALE/Pong-v5")).protocol(0.001, 108_000) == "custom"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "lrl/Catch-v0", "lrl/MinAtarBreakout-v0"])
def test_other_environments_have_no_protocol_of_atari(env_id):
    assert kind_of(EnvConfig(env_id)).protocol(0.0, 108_000) == "gymnasium"


@pytest.mark.atari
@pytest.mark.parametrize(("name", "num_actions"), [("machado_2018", 18), ("ale_v5", 6)])
def test_a_protocol_reaches_the_games(name, num_actions):
    envs = make_atari("Pong", **vars(PROTOCOLS[name].atari))
    assert envs.spec.num_actions == num_actions
    assert envs.spec.frame_skip == PROTOCOLS[name].atari.frame_skip
    assert len(rollout(envs, [0], 20)) == 21


def table(title: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the document, without its first two rows."""
    section = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def written(value: object) -> str:
    return f"`{str(value).lower() if value is None or isinstance(value, bool) else value}`"


def test_the_document_lists_every_option_with_its_default():
    defaults = {row[0]: row[1] for row in table("Options")[2:]}
    expected = {f"`atari.{f.name}`": written(f.default) for f in fields(AtariConfig)}
    settings = asdict(EnvConfig())
    del settings["id"], settings["atari"]
    expected |= {f"`{name}`": written(value) for name, value in settings.items()}
    assert defaults == {name: value.replace("none", "null") for name, value in expected.items()}


def test_the_script_of_the_document_scores_under_the_protocols_name():
    scripts = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (script,) = (script for script in scripts if "PROTOCOLS" in script)
    names: dict[str, Any] = {}
    exec(script, names)
    env, evaluation = names["env"], names["evaluation"]
    frames = evaluation.max_frames_for(env)
    assert kind_of(env).protocol(evaluation.epsilon_for(env), frames) == "ale_v5"


def test_the_document_shows_the_protocols_as_they_are():
    header, _, *rows = table("Protocols")
    names = [re.sub("`", "", cell) for cell in header[1:]]
    assert names == list(PROTOCOLS)
    shown = {row[0].strip("`"): row[1:] for row in rows}
    for option in OWN_NAMES:
        values = [getattr(PROTOCOLS[name].atari, option) for name in names]
        assert shown[f"atari.{option}"] == [written(value) for value in values], option
    epsilons = [written(PROTOCOLS[name].evaluation_epsilon) for name in names]
    assert shown["evaluation.epsilon"] == epsilons
    assert set(shown) == {f"atari.{option}" for option in OWN_NAMES} | {"evaluation.epsilon"}
