"""Observations of a Dict space: their leaves, what is checked of each, and restoring them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers.dict_envs import SIGNALS, Signals

from lrl.envs import EnvConfig, RestorableEnvs, StreamEnvs, make_envs, make_spec, restorable
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs, spec_from_spaces
from lrl.types import ActionSpec, Column, EnvSpec

SEEDS = [5, 6, 7]


class Answering(Signals):
    """Changes what it answers with."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def step(self, action: int):
        observation, reward, ended, cut, info = super().step(action)
        leaves = {**observation, **self.changes}
        leaves = {name: leaf for name, leaf in leaves.items() if leaf is not None}
        return leaves, reward, ended, cut, info


def answers(envs: StreamEnvs, steps: int) -> list[Any]:
    """Return all answers to the same actions, leaf by leaf."""
    found: list[Any] = []
    for index in range(steps):
        step = envs.step(np.full(envs.num_envs, index % SIGNALS))
        found += [step.observation["image"], step.observation["speed"], *step[1:]]
    return found


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_column_for_each_leaf(frame_stack: int):
    spec = make_spec(EnvConfig(factory=Signals, frame_stack=frame_stack))
    assert spec == EnvSpec(
        observation={
            "image": Column("uint8", (SIGNALS, 5, 5), frame_stack),
            "speed": Column("float32", (2,), frame_stack),
        },
        action=ActionSpec((SIGNALS,)),
    )


def test_the_order_of_leaves_is_that_of_their_names():
    """A replay is saved in the order of its columns, whichever an environment writes."""
    box = Box(0, 1, (1,))
    spaces: Any = OrderedDict(b=box, a=box)
    spec = spec_from_spaces(Dict(spaces), Discrete(2), "Any-v0")
    assert list(spec.observation) == ["a", "b"]


def test_stacks_hold_the_frames_of_each_leaf():
    envs = make_envs(EnvConfig(factory=Signals, frame_stack=3), 2, training=True)
    before = envs.reset([0, 1])
    now = envs.step([0, 0]).observation
    for name, leaf in now.items():
        np.testing.assert_array_equal(leaf[:, :2], before[name][:, 1:])
        assert leaf.shape == (2, *envs.spec.observation_shape[name])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"speed": None}, r"Environment 0: .* a dict of \['image', 'speed'\], but came as .*image"),
        ({"sound": np.zeros(1)}, "came as a dict of .*sound"),
        (
            {"speed": np.zeros(3, np.float32)},
            r"the observation 'speed' was declared float32 \(2,\)",
        ),
        ({"image": np.zeros((4, 5, 5))}, "the observation 'image' was declared uint8 .* float64"),
        ({"speed": np.array([np.nan, 0], np.float32)}, "the observation 'speed' is not finite"),
    ],
)
def test_what_is_wrong_with_a_leaf_names_it(changes: dict[str, Any], text: str):
    envs = SingleEnvs([Answering(**changes)])
    envs.reset([0])
    with pytest.raises(ValueError, match=text):
        envs.step([0])


def test_an_array_in_place_of_a_dict_is_refused():
    class Bare(Signals):
        def _next(self) -> Any:
            return super()._next()["speed"]

    with pytest.raises(ValueError, match=r"declared a dict of .* but came as one array"):
        SingleEnvs([Bare()]).reset([0])


def test_a_leaf_outside_of_its_space_is_told_by_name_once(caplog):
    envs = SingleEnvs([Answering(speed=np.array([0.0, 9.0], np.float32))])
    envs.reset([0])
    answers(envs, 2)
    (message,) = caplog.messages
    assert message.startswith("Environment 0: the observation 'speed' holds 9 at [1], outside")


def test_environments_that_are_retired_answer_with_zeros():
    envs = SingleEnvs([Signals(), Signals()])
    envs.reset([0, 1])
    envs.retired[1] = True
    observation = envs.step([0, 0]).observation
    for leaf in observation.values():
        assert leaf[0].any()
        assert not leaf[1].any()


def test_a_native_vector_answers_as_single_environments_do():
    vector = SyncVectorEnv([Signals] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    native, single = NativeVectorEnvs(vector, "Signals"), SingleEnvs([Signals() for _ in range(3)])
    single.reset(SEEDS)
    native.reset(SEEDS)
    vector.reset(
        seed=list[int | None](SEEDS)
    )  # not from one seed for all, which is what native vectors get
    for one, other in zip(answers(native, 25), answers(single, 25), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_restored_environments_go_on(monkeypatch, frame_stack: int):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 25)
    config = EnvConfig(factory=Signals, frame_stack=frame_stack)

    def build() -> RestorableEnvs:
        return RestorableEnvs([make_envs(config, 1, training=True) for _ in SEEDS], 2**24)

    envs, twin = build(), build()
    envs.reset(SEEDS)
    seen = answers(envs, 70)
    state = copy.deepcopy(envs.state_dict())
    observation, restarted = twin.load_state_dict(state)
    assert not restarted.any()
    np.testing.assert_array_equal(observation["image"], seen[-6])
    np.testing.assert_array_equal(observation["speed"], seen[-5])
    for one, other in zip(answers(twin, 40), answers(envs, 40), strict=True):
        np.testing.assert_array_equal(one, other)

    state["environments"][0]["observation"]["speed"][0] += 0.5
    del state["environments"][2]["observation"]["image"]
    _, restarted = build().load_state_dict(state)
    assert restarted.tolist() == [True, False, True]
