"""Nested observation spaces: names and columns of their leaves, what is taken and what refused."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from helpers.dict_envs import NestedLedger, assert_nested
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.envs import EnvConfig, RestorableEnvs, make_envs, make_spec, restorable
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs
from lrl.envs.spaces import ObservationLeaves
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.types import ActionSpec, Column, ConfigError, EnvSpec, leaves_of

SEEDS = [5, 6, 7]
NESTED = {
    "clock": Column("float32"),
    "frame": Column("uint8", (5, 4)),
    "moods.0": Column("int8", categories=(3,)),
    "moods.1.bits": Column("bool", (4,)),
    "moods.1.digits": Column("int16", (2, 2), categories=(4, 5, 6, 300)),
}


class Answers(gymnasium.Env):
    """Answers with a list of observations, one after the other."""

    def __init__(self, space: Space, *answers: Any) -> None:
        self.observation_space, self.action_space = space, Discrete(2)
        self._answers = list(answers)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self._answers.pop(0), {}

    def step(self, action: int):
        return self._answers.pop(0), 0.0, False, False, {}


def test_leaves_are_columns_by_the_names_of_their_paths():
    config = EnvConfig(factory=NestedLedger)
    assert make_spec(config) == EnvSpec(NESTED, ActionSpec((3,)))
    assert list(make_spec(config).observation) == sorted(NESTED)


def test_specifications_with_categories_are_plain_data_and_back():
    for spec in (
        EnvSpec(NESTED, ActionSpec((3,))),
        EnvSpec({"": Column("int8", categories=(3,))}, ActionSpec((2,))),
    ):
        assert EnvSpec.of(spec.as_dict()) == spec
    before = EnvSpec({"a": Column("float32", (2,))}, ActionSpec((3,))).as_dict()
    del before["observation"]["a"]["categories"]  # as it was saved before there were any
    assert EnvSpec.of(before).observation == {"a": Column("float32", (2,))}


@pytest.mark.parametrize(
    ("space", "answer", "column", "stored"),
    [
        (Discrete(4), np.int64(3), Column("int8", categories=(4,)), 3),
        (Discrete(128, start=-7), 120, Column("int8", categories=(128,)), 127),
        (Discrete(129), 128, Column("int16", categories=(129,)), 128),
        (Discrete(40000), np.int32(39999), Column("int32", categories=(40000,)), 39999),
        (MultiDiscrete([2, 3]), (1, 2), Column("int8", (2,), categories=(2, 3)), [1, 2]),
        (MultiDiscrete([2, 3], start=[9, -1]), [9, 1], Column("int8", (2,), 1, None, (2, 3)),
         [0, 2]),
        (MultiBinary((1, 2)), np.array([[0, 1]], bool), Column("bool", (1, 2)), [[False, True]]),
        (Box(-9, 9, (1, 2), np.int16), np.array([[-3, 4]], np.int16), Column("float32", (1, 2)),
         [[-3, 4]]),
        (Box(0, 1, (), np.float16), np.float16(0.5), Column("float32"), 0.5),
    ],
)  # fmt: skip
def test_one_leaf_alone_has_no_name(space: Space, answer: Any, column: Column, stored: Any):
    envs = SingleEnvs([Answers(space, answer)])
    assert envs.spec.observation == {"": column}
    observation = envs.reset([0])
    assert observation.dtype == column.type
    assert observation.tolist() == [stored]


def test_one_leaf_in_a_tuple_has_its_number():
    envs = SingleEnvs([Answers(Tuple((Discrete(3),)), (2,))])
    assert {name: leaf.tolist() for name, leaf in envs.reset([0]).items()} == {"0": [2]}


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_every_way_to_step_gives_the_same_leaves(frame_stack: int):
    config = EnvConfig(factory=NestedLedger, frame_stack=frame_stack)
    single = make_envs(config, 3, training=True)
    kinds: list[StreamEnvs] = [
        RestorableEnvs([make_envs(config, 1, training=True) for _ in SEEDS], 2**24)
    ]
    if frame_stack == 1:
        vector = SyncVectorEnv([NestedLedger] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
        kinds.append(NativeVectorEnvs(vector, "Ledger"))
    expected = [single.reset(SEEDS), *(single.step([0, 1, 2]).observation for _ in range(40))]
    for envs in kinds:
        observations = [envs.reset(SEEDS)]
        if isinstance(envs, NativeVectorEnvs):  # it gives its environments seeds of its own
            vector: Any = envs._envs
            vector.reset(seed=list(SEEDS))
        observations += [envs.step([0, 1, 2]).observation for _ in range(40)]
        for one, other in zip(observations[1:], expected[1:], strict=True):
            for name, leaf in one.items():
                np.testing.assert_array_equal(leaf, other[name])
    for observation in expected:
        assert_nested(observation)
        for name, column in single.spec.observation.items():
            assert observation[name].dtype == column.type
            assert observation[name].shape == (3, *column.stacked_shape)


def test_restored_environments_go_on_with_all_leaves(monkeypatch):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 25)
    config = EnvConfig(factory=NestedLedger)

    def build() -> RestorableEnvs:
        return RestorableEnvs([make_envs(config, 1, training=True) for _ in SEEDS], 2**24)

    envs, twin = build(), build()
    envs.reset(SEEDS)
    last: Any = None
    for _ in range(70):
        last = envs.step([0, 1, 2]).observation
    observation, restarted = twin.load_state_dict(copy.deepcopy(envs.state_dict()))
    assert not restarted.any()
    for _ in range(30):
        for name, leaf in observation.items():
            np.testing.assert_array_equal(leaf, last[name])
        last, observation = (e.step([2, 1, 0]).observation for e in (envs, twin))


@pytest.mark.parametrize(
    ("leaf", "wrapper"),
    [
        (Discrete(3), {"path": "gymnasium.wrappers.FlattenObservation"}),
        (Box(0, 1, (3,)), {"path": "gymnasium.wrappers.FrameStackObservation",
                           "kwargs": {"stack_size": 2}}),
        (Box(0, 9, (3,), np.int64), {"path": "gymnasium.wrappers.DtypeObservation",
                                     "kwargs": {"dtype": "float32"}}),
    ],
)  # fmt: skip
def test_wrappers_of_gymnasium_go_on_working(leaf: Space, wrapper: dict[str, Any]):
    space = leaf if "Dtype" in wrapper["path"] else Dict(a=leaf, b=Tuple((Box(-1, 1, (2,)),)))
    config = EnvConfig(factory=Sampled, kwargs={"space": space}, wrappers=[wrapper])  # pyright: ignore[reportArgumentType]
    envs = make_envs(config, 2, training=True)
    envs.reset([0, 1])
    observation = envs.step([0, 0]).observation
    if "Stack" in wrapper["path"]:
        assert envs.spec.observation == {
            "a": Column("float32", (2, 3)), "b.0": Column("float32", (2, 2))
        }  # fmt: skip
    else:
        width = 3 if "Dtype" in wrapper["path"] else 5
        assert envs.spec == EnvSpec.box((width,), "float32", 2)
        assert observation.shape == (2, width)


class Sampled(gymnasium.Env):
    """Answers with samples of its space."""

    def __init__(self, space: Space) -> None:
        self.observation_space, self.action_space = space, Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._sample(), {}

    def step(self, action: int):
        return self._sample(), 0.0, False, False, {}

    def _sample(self) -> Any:
        self.answer = self.observation_space.sample()
        return self.answer


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (Dict(a=Dict(b=Text(5))), r"the leaf 'a.b' of its observations is Text"),
        (Tuple((Discrete(2), Graph(Box(0, 1, (1,)), None))), r"the leaf '1' .* is Graph"),
        (Dict(a=Discrete(10**9)), r"'a' of its observations is Discrete\(10+\), more categories"),
        (Sequence(Discrete(2)), "Odd: its observations are Sequence"),
        (OneOf((Discrete(2), Discrete(3))), "Odd: its observations are OneOf"),
        (Dict(), "holds nothing"),
        (Tuple(()), "holds nothing"),
        (Dict({"": Discrete(2)}), "a leaf without a name"),
        (Dict({"a.b": Discrete(2), "a": Dict(b=Discrete(2))}), "two leaves .* called 'a.b'"),
    ],
)
def test_other_spaces_are_refused_by_the_names_of_leaves(space: Space, text: str):
    with pytest.raises(ConfigError, match=text) as caught:
        ObservationLeaves(space, "Odd")
    assert "env.wrappers" in str(caught.value)


ARM = Dict(arm=Dict(mode=Discrete(3, start=2)), pair=Tuple((MultiBinary(2), Box(0, 1, (1,)))))
GOOD = {"arm": {"mode": 4}, "pair": (np.zeros(2, np.int8), np.zeros(1, np.float32))}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"arm": {}}, r"the observation 'arm' was declared a dict of \['mode'\], but came as a "),
        ({"arm": 3}, r"the observation 'arm' was declared a dict of .* came as int"),
        ({"pair": GOOD["pair"][:1]}, "'pair' was declared a tuple of 2, but came as a tuple of 1"),
        ({"pair": np.zeros(2)}, "'pair' was declared a tuple of 2, but came as one array"),
        ({"arm": {"mode": 1}}, r"the observation 'arm.mode' holds 1, which is not .*Discrete"),
        ({"arm": {"mode": 5}}, r"the observation 'arm.mode' holds 5, which is not .*Discrete"),
        ({"arm": {"mode": 2.0}}, r"'arm.mode' was declared integers \(\), but came as float64"),
        ({"arm": {"mode": True}}, r"'arm.mode' was declared integers \(\), but came as bool"),
        ({"arm": {"mode": "left"}}, r"'arm.mode' was declared integers \(\), but came as <U4"),
        ({"pair": (np.array([0, 2]), GOOD["pair"][1])}, "'pair.0' holds 2, which is not .*Binary"),
        ({"pair": (np.zeros(3, int), GOOD["pair"][1])}, r"'pair.0' was declared .* \(2,\), but"),
        ({"pair": (GOOD["pair"][0], np.full(1, np.nan, np.float32))}, "'pair.1' is not finite"),
    ],
)
def test_a_wrong_answer_is_told_by_environment_and_leaf(change: dict[str, Any], text: str):
    envs = SingleEnvs([Answers(ARM, GOOD, GOOD), Answers(ARM, GOOD, {**GOOD, **change})])
    envs.reset([0, 1])
    with pytest.raises(ValueError, match=text) as caught:
        envs.step([0, 0])
    assert str(caught.value).startswith("Environment 1: the observation")


def test_a_kind_of_environment_may_not_make_up_categories():
    class Own(StreamEnvs):
        def _reset_envs(self, seeds: Any) -> Any:
            return np.array([0, 3], np.int8)

        def _step_envs(self, actions: Any, ended: Any) -> EnvStep:
            raise NotImplementedError

    spec = EnvSpec({"": Column("int8", categories=(3,))}, ActionSpec((2,)))
    with pytest.raises(ValueError, match="hold a category that does not exist"):
        Own(spec, 2).reset([0, 1])


KEYS = st.text("abz_", min_size=1, max_size=3)
ENDS = st.one_of(
    st.integers(1, 300).flatmap(lambda n: st.integers(-9, 9).map(lambda s: Discrete(n, start=s))),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(MultiDiscrete),
    st.integers(1, 4).map(MultiBinary),
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: Box(-5, 5, tuple(shape))),
    st.lists(st.integers(1, 3), max_size=3).map(lambda s: Box(0, 255, tuple(s), np.uint8)),
)
SPACES = st.recursive(
    ENDS,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
    ),
    max_leaves=5,
)


def flattened(space: Space, value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return leaves by name, as slowly and plainly as it can be said."""
    if isinstance(space, (Dict, Tuple)):
        found = {}
        entries = space.items() if isinstance(space, Dict) else enumerate(space)
        for key, entry in entries:
            found |= flattened(entry, value[key], (*path, str(key)))
        return found
    if isinstance(space, (Discrete, MultiDiscrete)):
        value = value - space.start
    return {".".join(path): np.asarray(value)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(space=SPACES, seed=st.integers(0, 99), frame_stack=st.integers(1, 3))
def test_any_nesting_equals_its_naive_twin(space: Space, seed: int, frame_stack: int):
    single = [Sampled(copy.deepcopy(space)) for _ in range(2)]
    stacks: Any = [FrameStackObservation(env, frame_stack) for env in single]
    envs = SingleEnvs(stacks if frame_stack > 1 else single, frame_stack)
    envs.reset([seed, seed + 1])
    found: Any = None
    for _ in range(frame_stack):
        found = leaves_of(envs.step([0, 0]).observation)
    assert list(found) == list(envs.spec.observation) == sorted(found)
    for index, env in enumerate(single):
        newest = flattened(space, env.answer)
        assert newest.keys() == found.keys()
        for name, column in envs.spec.observation.items():
            leaf = found[name][index]
            assert leaf.shape == column.stacked_shape
            assert column.holds(leaf)
            np.testing.assert_array_equal(leaf[-1] if frame_stack > 1 else leaf, newest[name])
