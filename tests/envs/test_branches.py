"""Action spaces of several branches: how choices become actions, their masks, and two wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from lrl.envs import (
    Discretize,
    EnvConfig,
    JointActions,
    RestorableEnvs,
    WrapperConfig,
    make_envs,
    make_rendered,
    make_spec,
)
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs
from lrl.envs.spaces import Choices
from lrl.envs.toy import Dials
from lrl.types import ActionSpec, ConfigError

FLOATS = st.floats(-(2.0**90), 2.0**90, width=32)
OBSERVATION = np.zeros(1, np.float32)


class Listening(gymnasium.Env):
    """Keeps the actions that it gets; its mask is what the test sets."""

    def __init__(self, space: Space, mask: Any = None) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (1,), np.float32), space
        self.mask, self.actions = mask, list[Any]()

    def reset(self, *, seed=None, options=None):
        return OBSERVATION, {} if self.mask is None else {"action_mask": self.mask}

    def step(self, action):
        self.actions.append(action)
        return *(OBSERVATION, 0.0, False, False), self.reset()[1]


# --- Choices --------------------------------------------------------------------------------

GRID = MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [-2, 0]]), dtype=np.int16)


@pytest.mark.parametrize(
    ("space", "branches", "choices", "expected"),
    [
        (Discrete(4, start=-1), (4,), 0, -1),
        (MultiDiscrete([3, 5]), (3, 5), [2, 4], [2, 4]),
        (MultiDiscrete([3, 5], start=[10, -1]), (3, 5), [2, 0], [12, -1]),
        (GRID, (2, 3, 4, 2), [1, 2, 0, 1], [[1, 3], [-2, 1]]),
        (MultiBinary(3), (2, 2, 2), [1, 0, 1], [1, 0, 1]),
        (MultiBinary((2, 2)), (2, 2, 2, 2), [1, 0, 0, 1], [[1, 0], [0, 1]]),
        (MultiDiscrete([6]), (6,), 5, [5]),
    ],
)
def test_an_environment_gets_actions_of_its_own_space(space, branches, choices, expected):
    env = Listening(space)
    envs = SingleEnvs([env])
    assert envs.spec.action == ActionSpec(branches)
    envs.reset([0])
    envs.step([choices])
    (action,) = env.actions
    assert action in space
    assert np.asarray(action).tolist() == expected


def test_a_space_without_a_choice_is_refused():
    with pytest.raises(ConfigError, match="in which there is no choice"):
        SingleEnvs([Listening(MultiDiscrete([]))])


def test_a_vector_of_its_own_gets_actions_of_its_own_space():
    class Vector(VectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        num_envs = 2
        single_observation_space, single_action_space = Box(-1, 1, (1,), np.float32), GRID

        def reset(self, *, seed=None, options=None):
            return np.zeros((2, 1), np.float32), {"action_mask": self.mask()}

        def step(self, actions):
            self.got = actions
            reward, terminated, truncated = np.zeros((3, 2))
            observation = np.zeros((2, 1), np.float32)
            return observation, reward, terminated, truncated, {"action_mask": self.mask()}

        def mask(self):
            rows = [np.ones((2, size)) for size in (2, 3, 4, 2)]
            rows[1][1, 2] = 0
            return (tuple(rows[:2]), tuple(rows[2:]))

    vector = Vector()
    envs = NativeVectorEnvs(vector, "Vector-v0", action_masks=True)
    envs.reset([0, 1])
    assert envs.action_mask is not None
    assert np.argwhere(~envs.action_mask).tolist() == [[1, 4]]
    envs.step([[1, 2, 0, 1], [0, 0, 3, 0]])
    assert vector.got.dtype == np.int16
    assert vector.got.tolist() == [[[1, 3], [-2, 1]], [[0, 1], [1, 0]]]
    with pytest.raises(ValueError, match=r"Environment 1: action \[0 2 0 0\] is not allowed now"):
        envs.step([[0, 2, 0, 0], [0, 2, 0, 0]])


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([[3, 0]], r"Environment 0: action \[3 0\] is not in the action space, 0 ... 2, 0 ... 4"),
        ([[0, -1]], r"action \[ 0 -1\] is not in the action space"),
        ([1], r"integers of shape \(1, 2\), not int64 of shape \(1,\)"),
        ([[0.0, 1.0]], "must be integers"),
    ],
)
def test_actions_that_there_are_not_never_reach_the_environment(actions, message):
    env = Listening(MultiDiscrete([3, 5]))
    envs = SingleEnvs([env])
    envs.reset([0])
    with pytest.raises(ValueError, match=message):
        envs.step(actions)
    assert not env.actions


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Discrete(10**9), r"more choices than the 10,000,000 .* fewer in a wrapper"),
        (Box(-1, 1, (2,)), r"no choices: add lrl\.envs\.Discretize to env\.wrappers"),
        (Dict(a=Discrete(2)), "only Discrete, MultiDiscrete and MultiBinary are supported"),
        (Tuple([Discrete(2), Discrete(3)]), "only Discrete, MultiDiscrete and MultiBinary"),
    ],
)
def test_other_action_spaces_are_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        SingleEnvs([Listening(space)])


# --- Masks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (MultiDiscrete([2, 3]), (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))),
        (MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1], np.bool_)),
        (MultiDiscrete([2, 3]), (1, 0, 0, 1, 1)),
        (MultiDiscrete([2, 3]), [[1, 0], [0, 1, 1]]),
        (MultiDiscrete(np.array([[2], [3]])), ((np.array([1, 0]),), (np.array([0, 1, 1]),))),
    ],
)
def test_masks_come_as_gymnasium_samples_or_side_by_side(space, mask):
    envs = SingleEnvs([Listening(space, mask)], 1, True)
    envs.reset([0])
    np.testing.assert_array_equal(envs.action_mask, [[True, False, False, True, True]])
    envs.step([[0, 1]])
    for forbidden in ([1, 1], [0, 0]):
        with pytest.raises(ValueError, match=r"action \[\d \d\] is not allowed now"):
            envs.step([forbidden])


def test_every_branch_has_to_allow_something():
    env = Listening(MultiDiscrete([2, 3]), (np.array([1, 1]), np.array([0, 0, 0])))
    envs = SingleEnvs([env], 1, True)
    with pytest.raises(ValueError, match="allows no action in branch 1, but the episode goes on"):
        envs.reset([0])


@pytest.mark.parametrize("mask", [np.ones(4), (np.ones(2), np.ones(2)), np.ones(6), np.ones(2)])
def test_masks_of_another_shape_are_refused(mask):
    envs = SingleEnvs([Listening(MultiDiscrete([2, 3]), mask)], 1, True)
    with pytest.raises(ValueError, match=r"shape \(5,\), a number per choice of all 2 branches"):
        envs.reset([0])


@pytest.mark.parametrize("mask", [np.array([1, 1, 1, np.nan, 0]), (np.ones(2), np.full(3, np.nan))])
def test_a_mask_of_nan_is_refused(mask):
    envs = SingleEnvs([Listening(MultiDiscrete([2, 3]), mask)], 1, True)
    with pytest.raises(ValueError, match="of environment 0 holds NaN"):
        envs.reset([0])


# --- Restored, drawn ------------------------------------------------------------------------


def dials(**kwargs: Any) -> EnvConfig:
    return EnvConfig("lrl/Dials-v0", kwargs, action_masks=kwargs.get("masks", False))


@pytest.mark.parametrize("config", [dials(), dials(masks=True, sizes=(2, 3, 4))])
def test_environments_are_brought_to_where_they_were(config):
    def restorable() -> RestorableEnvs:
        return RestorableEnvs([make_envs(config, 1, training=True) for _ in range(2)], 1)

    first, second = restorable(), restorable()
    first.reset([3, 4])
    sizes = config.kwargs.get("sizes", (3, 5))
    for lock in range(5):
        first.step([Dials.setting(lock, sizes)] * 2)
    state = first.state_dict()
    assert state["environments"][0]["actions"].shape == (5, len(sizes))
    observation, restarted = second.load_state_dict(state)
    assert not restarted.any()
    assert observation.argmax(axis=1).tolist() == [5, 5]
    if config.action_masks:
        np.testing.assert_array_equal(first.action_mask, second.action_mask)
    answers = [envs.step([Dials.setting(5, sizes)] * 2).observation for envs in (first, second)]
    np.testing.assert_array_equal(*answers)
    state["environments"][1]["actions"][2] = 9
    _, restarted = restorable().load_state_dict(state)
    assert restarted.tolist() == [False, True]


def test_choices_are_named_by_their_branch():
    rendered = make_rendered(EnvConfig(factory="helpers.branched_envs.BranchedDiary"))
    assert rendered.action_names == ["0: 0", "0: 1", "1: 0", "1: 1", "1: 2"]
    rendered.close()


# --- Discretize -----------------------------------------------------------------------------


def test_continuous_actions_are_cut_evenly_with_both_ends():
    env = Listening(Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)))
    wrapped = Discretize(env, bins=5)
    assert wrapped.action_space == MultiDiscrete([5, 5])
    for choices in ([0, 0], [1, 2], [4, 4]):
        wrapped.step(np.array(choices))
    assert [action.tolist() for action in env.actions] == [[-2.0, 0.0], [-1.0, 0.5], [2.0, 1.0]]
    assert all(action in env.action_space for action in env.actions)


@given(
    st.lists(
        st.tuples(FLOATS, FLOATS),
        min_size=1, max_size=4,
    ),
    st.integers(2, 40),
    st.data(),
)  # fmt: skip
def test_every_choice_is_an_action_of_the_space(bounds, bins, data):
    low, high = (np.array(ends, np.float32) for ends in zip(*map(sorted, bounds), strict=True))
    space = Box(low, high, dtype=np.float32)
    env = Listening(space)
    wrapped = Discretize(env, bins)
    choices = Choices(wrapped.action_space, "env")
    chosen = [data.draw(st.integers(0, size - 1)) for size in choices.branches]
    shaped = np.array([chosen if len(chosen) > 1 else chosen[0]])
    wrapped.step(choices.actions(shaped)[0])
    assert env.actions[0] in space
    span = (high.astype(float) - low) / (bins - 1)
    np.testing.assert_allclose(env.actions[0], low + span * chosen, rtol=1e-5, atol=1e-5 * span[0])


def test_one_dimension_is_discrete_and_several_axes_are_flattened():
    env = Listening(Box(-1, 1, (1,), np.float32))
    wrapped = Discretize(env, 3)
    assert wrapped.action_space == Discrete(3)
    wrapped.step(np.int64(2))
    assert env.actions[0].tolist() == [1.0]
    env = Listening(Box(-1, 1, (2, 2), np.float64))
    wrapped = Discretize(env, 3)
    assert wrapped.action_space == MultiDiscrete([3] * 4)
    wrapped.step(np.array([0, 1, 2, 1]))
    assert env.actions[0].tolist() == [[-1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(("bins", "expected"), [(2, [0, 5]), (3, [0, 2, 5]), (6, [*range(6)])])
def test_whole_numbers_stay_whole(bins, expected):
    env = Listening(Box(0, 5, (1,), np.int64))
    wrapped = Discretize(env, bins)
    for choice in range(bins):
        wrapped.step(np.int64(choice))
    assert [action.tolist() for action in env.actions] == [[number] for number in expected]
    assert all(action in env.action_space for action in env.actions)


@pytest.mark.parametrize(
    ("space", "bins", "message"),
    [
        (Discrete(3), 3, r"Discretize needs Box actions, not Discrete\(3\)"),
        (Box(0, 9, (2,), np.int64), 11, "bins of Discretize are 11, but .* a dimension has 10"),
        (Box(-np.inf, 1, (2,), np.float32), 3, "needs actions with finite bounds"),
        (Box(-1, 1, (2,), np.float32), 1, "bins of Discretize must be a whole number of .* not 1"),
        (Box(-1, 1, (2,), np.float32), [3, 5], r"the same for each dimension, not \[3, 5\]"),
        (Box(-1, 1, (2,), np.float32), 2.5, "a whole number of at least 2, .*, not 2.5"),
    ],
)
def test_what_cannot_be_cut_is_refused(space, bins, message):
    with pytest.raises(ConfigError, match=rf"env\.wrappers: .*{message}"):
        Discretize(Listening(space), bins)


def test_pendulum_is_discretized_by_the_settings():
    wrapper = WrapperConfig("lrl.envs.Discretize", {"bins": 11})
    config = EnvConfig("Pendulum-v1", wrappers=[wrapper])
    assert make_spec(config).action == ActionSpec((11,))
    with pytest.raises(ConfigError, match=r"no choices: add lrl\.envs\.Discretize"):
        make_spec(EnvConfig("Pendulum-v1"))


# --- JointActions ---------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_joint_actions_are_numbered_row_by_row_and_masked_alike(sizes, data):
    masks = tuple(
        np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), np.int8)
        for size in sizes
    )
    env = Listening(MultiDiscrete(sizes), masks)
    wrapped = JointActions(env)
    _, info = wrapped.reset()
    assert wrapped.action_space == Discrete(int(np.prod(sizes)))
    for joint, choices in enumerate(np.ndindex(*sizes)):  # row by row
        wrapped.step(joint)
        assert env.actions[-1].tolist() == list(choices)
        allowed = all(mask[choice] for mask, choice in zip(masks, choices, strict=True))
        assert info["action_mask"][joint] == allowed


def test_only_small_products_of_several_branches_are_joined():
    JointActions(Listening(MultiBinary(12)))
    with pytest.raises(ConfigError, match=r"JointActions would make 8,192 actions of \(2, .*4,096"):
        JointActions(Listening(MultiBinary(13)))
    with pytest.raises(ConfigError, match=r"needs several branches, not Discrete\(3\)"):
        JointActions(Listening(Discrete(3)))
    with pytest.raises(ConfigError, match=r"no choices: add lrl\.envs\.Discretize"):
        JointActions(Listening(Box(-1, 1, (2,), np.float32)))


def test_the_wrappers_go_together():
    wrappers = [
        WrapperConfig("lrl.envs.Discretize", {"bins": 3}),
        WrapperConfig("lrl.envs.JointActions"),
    ]
    config = EnvConfig(factory="helpers.branched_envs.TwoThrusters", wrappers=wrappers)
    assert make_spec(config).action == ActionSpec((9,))
