"""Action masks from the environments' info to the vector that actors step."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from lrl.envs import EnvConfig, make_envs, make_spec
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs
from lrl.envs.toy import Masked
from lrl.types import ConfigError, EnvSpec

MASKED = EnvConfig("lrl/Masked-v0", action_masks=True)
OBSERVATION = np.zeros(1, np.float32)


class Answering(gymnasium.Env):
    """Episodes of two steps, with the infos that the test gives, in turn."""

    def __init__(self, *infos, end="terminated"):
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Discrete(3)
        self.infos, self.end, self.time = list(infos), end, 0

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return OBSERVATION, self.infos.pop(0)

    def step(self, action):
        self.time += 1
        ended = self.time == 2
        terminated, truncated = (
            ended and self.end == "terminated",
            ended and self.end == "truncated",
        )
        return OBSERVATION, 0.0, terminated, truncated, self.infos.pop(0)


def masks(*rows):
    return [{"action_mask": np.array(row, np.int8)} for row in rows]


def test_masks_follow_reset_steps_and_autoreset():
    envs = SingleEnvs([Answering(*masks([1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]))], 1, True)
    assert envs.spec == EnvSpec.box((1,), "float32", 3, action_masks=True)
    envs.reset([0])
    seen = [np.asarray(envs.action_mask)]
    for action in (2, 1, 0):  # the last is ignored: it resets
        envs.step([action])
        seen.append(np.asarray(envs.action_mask))
    expected = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert np.stack(seen)[:, 0].astype(int).tolist() == expected  # none was overwritten later
    assert all(mask.dtype == np.bool_ for mask in seen)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_, np.float32, np.int64])
def test_masks_of_any_type_are_taken_and_copied(dtype):
    mask = np.array([0, 1, 1], dtype)
    envs = SingleEnvs([Answering({"action_mask": mask})], 1, True)
    envs.reset([0])
    mask[:] = 0
    np.testing.assert_array_equal(envs.action_mask, [[False, True, True]])


def test_a_forbidden_action_never_reaches_the_environment():
    infos = masks([1, 0, 1], [1, 1, 1])
    envs = SingleEnvs([Answering(*masks([1, 1, 1])), Answering(*infos)], 1, True)
    envs.reset([0, 1])
    with pytest.raises(ValueError, match="Environment 1: action 1 is not allowed now"):
        envs.step([1, 1])
    assert len(infos) == 2


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_final_mask_that_forbids_everything_allows_everything(end):
    envs = SingleEnvs([Answering(*masks([1, 0, 0], [1, 0, 0], [0, 0, 0]), end=end)], 1, True)
    envs.reset([0])
    envs.step([0])
    envs.step([0])
    np.testing.assert_array_equal(envs.action_mask, [[True, True, True]])


def test_no_allowed_action_in_an_episode_names_the_environment():
    infos = masks([1, 1, 1], [1, 1, 1])
    stuck = masks([1, 1, 1], [0, 0, 0])
    envs = SingleEnvs([Answering(*infos), Answering(*stuck)], 1, True)
    envs.reset([0, 1])
    with pytest.raises(ValueError, match=r"Environment 1: .* allows no action, but the episode"):
        envs.step([0, 0])
    envs = SingleEnvs([Answering(*masks([0, 0, 0]))], 1, True)
    with pytest.raises(ValueError, match=r"Environment 0: .* allows no action"):
        envs.reset([0])


def test_a_missing_mask_is_a_wrong_setting():
    text = r"env\.action_masks is true, but environment 0 gave no info\['action_mask'\]"
    with pytest.raises(ConfigError, match=text):
        SingleEnvs([Answering({})], 1, True).reset([0])
    envs = SingleEnvs([Answering(*masks([1, 1, 1]), {"mask": 1})], 1, True)
    envs.reset([0])
    with pytest.raises(ConfigError, match=text):
        envs.step([0])


@pytest.mark.parametrize("mask", [[1, 1], [[1, 1, 1]], 1, None])
def test_a_mask_of_another_shape_names_the_environment(mask):
    envs = SingleEnvs([Answering(*masks([1, 1, 1])), Answering({"action_mask": mask})], 1, True)
    with pytest.raises(ValueError, match=r"environment 1 must have the shape \(3,\)"):
        envs.reset([0, 1])


def test_without_the_setting_there_are_no_masks():
    envs = make_envs(EnvConfig("lrl/Masked-v0"), 2, training=True)
    envs.reset([0, 1])
    assert envs.action_mask is None
    envs.step([0, 0])
    assert envs.action_mask is None
    assert not envs.spec.action.masks


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_masks_pass_through_wrappers_and_stacks(frame_stack):
    config = EnvConfig("lrl/Masked-v0", max_episode_steps=3, frame_stack=frame_stack,
                       action_masks=True)  # fmt: skip
    envs = make_envs(config, 2, training=True)
    rng = np.random.default_rng(0)
    observation = envs.reset([0, 1])
    for _ in range(20):
        places = observation.reshape(2, frame_stack, -1)[:, -1].argmax(axis=1)
        expected = [Masked.mask(place).tolist() for place in places]
        assert envs.action_mask is not None
        assert envs.action_mask.astype(int).tolist() == expected
        actions = [rng.choice(np.flatnonzero(mask)) for mask in envs.action_mask]
        observation = envs.step(actions).observation


class Vector(VectorEnv):
    """Two environments with two actions; gives the masks that the test says, in turn."""

    def __init__(self, *infos):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self.infos = 2, list(infos)
        self.single_observation_space, self.single_action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), self.infos.pop(0)

    def step(self, actions):
        ended = np.array([True, False]), np.zeros(2, bool)
        return np.zeros((2, 1), np.float32), np.zeros(2), *ended, self.infos.pop(0)


def test_a_native_vector_gives_masks_of_all_its_environments():
    buffer = np.array([[1, 0], [0, 1]], np.int8)
    infos = [{"action_mask": buffer}, {"action_mask": np.array([[0, 0], [1, 1]])}]
    envs = NativeVectorEnvs(Vector(*infos), "Vector-v0", action_masks=True)
    assert envs.spec.action.masks
    envs.reset([0, 1])
    first = envs.action_mask
    buffer[:] = 0
    np.testing.assert_array_equal(first, [[True, False], [False, True]])
    envs.step([0, 1])
    np.testing.assert_array_equal(envs.action_mask, [[True, True], [True, True]])


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({}, "env.action_masks is true, but the vector environment gave no"),
        ({"action_mask": np.ones(2)}, r"the vector environment must have the shape \(2, 2\)"),
        ({"action_mask": np.array([[1, 1], [0, 0]])}, "Environment 1: .* allows no action"),
    ],
)
def test_wrong_masks_of_a_native_vector_are_refused(info, text):
    envs = NativeVectorEnvs(Vector(info), "Vector-v0", action_masks=True)
    with pytest.raises(ValueError, match=text):
        envs.reset([0, 1])


def test_the_specification_says_that_there_are_masks():
    assert make_spec(MASKED) == EnvSpec.box((6,), "float32", 4, action_masks=True)


def test_a_setting_without_masks_fails_before_anything_starts():
    with pytest.raises(ConfigError, match=r"env\.action_masks is true, but environment 0 gave no"):
        make_spec(EnvConfig("lrl/Chain-v0", action_masks=True))


def test_masks_that_are_not_used_are_worth_a_warning():
    text = r"lrl/Masked-v0 gives info\['action_mask'\].* set env.action_masks to true"
    with pytest.warns(UserWarning, match=text):
        spec = make_spec(EnvConfig("lrl/Masked-v0"))
    assert not spec.action.masks
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            make_spec(EnvConfig("lrl/Masked-v0"))
        make_spec(MASKED)
        make_spec(EnvConfig())
    assert len(caught) == 1


def test_a_mask_of_one_branch_may_come_as_its_space_takes_it():
    """`MultiDiscrete([3]).sample` takes a tuple of one mask."""
    envs = SingleEnvs([Answering({"action_mask": (np.array([0, 1, 1], np.int8),)})], 1, True)
    envs.reset([0])
    np.testing.assert_array_equal(envs.action_mask, [[False, True, True]])
