"""Gymnasium environments as streams: the loop over single ones, native vectors, spaces."""

from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FrameStackObservation
from helpers.envs_rollout import assert_same, rollout
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.envs import EnvConfig, make_envs, make_spec
from lrl.envs.gym import NATIVE_VECTOR_FROM, NativeVectorEnvs, SingleEnvs, spec_from_spaces
from lrl.testing import LedgerEnv
from lrl.types import ConfigError, EnvSpec


class Scripted(gymnasium.Env):
    """Two steps an episode; observations, spaces and the start of the actions as asked."""

    def __init__(self, space=None, actions=None, answer=None):
        self.observation_space = space or Box(-1, 1, (2,), np.float64)
        self.action_space = actions or Discrete(3, start=-1)
        self.answer = answer
        self.received = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros_like(self.observation_space.sample()), {}

    def step(self, action):
        self.received.append(int(action))
        observation, _ = self.reset() if self.answer is None else (self.answer, None)
        return observation, 0.5, len(self.received) % 2 == 0, False, {}


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_loop_equals_gymnasiums_sync_vector(frame_stack):
    config = EnvConfig("lrl/Ledger-v0", {"end_probability": 0.2}, frame_stack=frame_stack)

    def single():
        env = gymnasium.make("lrl/Ledger-v0", end_probability=0.2)
        return (
            gymnasium.wrappers.FrameStackObservation(env, frame_stack) if frame_stack > 1 else env
        )

    twin = SyncVectorEnv([single] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    rng = np.random.default_rng(0)
    expected = [(twin.reset(seed=[5, 6, 7])[0], np.zeros(3), *np.zeros((2, 3), bool))]
    expected += [twin.step(rng.integers(3, size=3))[:4] for _ in range(200)]
    assert_same(rollout(make_envs(config, 3, training=True), [5, 6, 7], 200), expected)


@given(
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3), rng_seed=st.integers(0, 9)
)
@settings(max_examples=20, deadline=None)
def test_a_stream_is_complete_and_in_order(seeds, rng_seed):
    envs = make_envs(EnvConfig("lrl/Ledger-v0"), len(seeds), training=True)
    rng = np.random.default_rng(rng_seed)
    place = LedgerEnv.decode(envs.reset(seeds))  # [environments, (instance, episode, step)]
    assert place.tolist() == [[seed, 0, 0] for seed in seeds]
    ended = [False] * len(seeds)
    for _ in range(60):
        actions = rng.integers(3, size=len(seeds))
        step = envs.step(actions)
        for index, (instance, episode, time) in enumerate(place.tolist()):
            if ended[index]:
                expected, reward = [instance, episode + 1, 0], 0.0
                assert not step.terminated[index] | step.truncated[index]
            else:
                expected = [instance, episode, time + 1]
                reward = LedgerEnv.reward(episode, time, int(actions[index]))
            assert LedgerEnv.decode(step.observation)[index].tolist() == expected
            assert step.reward[index] == reward
        place = LedgerEnv.decode(step.observation)
        ended = (step.terminated | step.truncated).tolist()


def test_observations_are_never_overwritten_later():
    for config, num_envs in ((EnvConfig(), NATIVE_VECTOR_FROM), (EnvConfig(frame_stack=2), 2)):
        envs = make_envs(config, num_envs, training=True)
        kept = [envs.reset(range(num_envs))]
        copies = [kept[0].copy()]
        for _ in range(50):
            kept.append(envs.step(np.zeros(num_envs, np.int64)).observation)
            copies.append(kept[-1].copy())
        np.testing.assert_array_equal(kept, copies)
        assert all(observation.dtype == np.float32 for observation in kept)


class Vector(VectorEnv):
    """A vector-only environment that declares a chosen autoreset mode."""

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP, max_episode_steps=None):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = Box(0, 255, (2,), np.uint8)
        self.single_action_space = Discrete(2, start=5)
        self.actions = []
        self.buffer = np.zeros((num_envs, 2), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.buffer, {}

    def step(self, actions):
        self.actions.append(actions.tolist())
        self.buffer += 1
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        return self.buffer, np.ones(self.num_envs, np.float32), terminated, truncated, {}


@pytest.fixture
def register():
    registered = []

    def add(name, **kwargs):
        gymnasium.register(name, **kwargs)
        registered.append(name)
        return name

    yield add
    for name in registered:
        del gymnasium.registry[name]


def test_a_vector_only_environment_works_and_its_buffer_is_copied(register):
    name = register("VectorOnly-v0", vector_entry_point=Vector)
    assert make_spec(EnvConfig(name)) == EnvSpec.box((2,), "uint8", 2)
    envs = make_envs(EnvConfig(name), 2, training=False)
    first = envs.reset([0, 0])
    assert envs.step([0, 1]).observation.tolist() == [[1, 1], [1, 1]]
    assert first.tolist() == [[0, 0], [0, 0]]
    assert isinstance(envs, NativeVectorEnvs)
    assert isinstance(envs._envs.unwrapped, Vector)
    assert envs._envs.unwrapped.actions == [[5, 6]]
    envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_another_autoreset_mode_is_refused(register, mode):
    name = register("OtherMode-v0", vector_entry_point=partial(Vector, mode=mode))
    with pytest.raises(ConfigError, match=rf"autoreset mode {mode}, but only .*NEXT_STEP"):
        make_envs(EnvConfig(name), 2, training=True)


def test_an_undeclared_autoreset_mode_is_refused():
    envs = Vector(2)
    envs.metadata = {}
    with pytest.raises(ConfigError, match="autoreset mode None"):
        NativeVectorEnvs(envs, "Undeclared-v0")


def test_actions_that_do_not_start_at_0_are_mapped():
    env = Scripted()
    envs = SingleEnvs([env])
    assert envs.spec.num_actions == 3
    envs.reset([0])
    for action in (0, 2, 1, 1):  # the third resets
        envs.step([action])
    assert env.received == [-1, 1, 0]


def test_the_raw_reward_comes_as_float64_and_the_observation_as_float32():
    envs = SingleEnvs([Scripted()])
    assert envs.reset([0]).dtype == np.float32
    step = envs.step([0])
    assert (step.observation.dtype, step.reward.dtype) == (np.float32, np.float64)
    assert step.reward.tolist() == [0.5]


@pytest.mark.parametrize("answer", [np.zeros(3), np.zeros((1, 2)), np.zeros(2, np.uint8)])
def test_a_changed_observation_names_the_environment(answer):
    envs = SingleEnvs([Scripted(), Scripted(answer=answer)])
    envs.reset([0, 1])
    with pytest.raises(ValueError, match=r"Environment 1: .* declared float32 \(2,\), but came as"):
        envs.step([0, 0])


def test_wrong_numbers_in_an_image_name_the_environment():
    envs = SingleEnvs([Scripted(Box(0, 255, (2,), np.uint8), answer=np.array([0.5, 300.0]))])
    envs.reset([0])
    with pytest.raises(ValueError, match=r"Environment 0: .* declared uint8"):
        envs.step([0])


@pytest.mark.parametrize(
    ("observation_space", "action_space", "supported"),
    [
        (Box(0, 1, (1,)), Box(0, 1, (1,)), "no choices: add lrl.envs.Discretize to env.wrappers"),
        (Box(0, 1, (1,)), Dict(a=Discrete(2)), "only Discrete, MultiDiscrete and MultiBinary"),
        (Box(0, 1, (1,)), Tuple([Discrete(2)]), "only Discrete, MultiDiscrete and MultiBinary"),
    ],
)
def test_other_action_spaces_are_refused_by_name(observation_space, action_space, supported):
    with pytest.raises(ConfigError, match=rf"Odd-v0 has the .* space .*{supported}"):
        spec_from_spaces(observation_space, action_space, "Odd-v0")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.uint8, "uint8"),
        (np.bool_, "bool"),
        (np.float16, "float32"),
        (np.float64, "float32"),
        (np.int32, "float32"),
    ],
)
def test_observations_become_uint8_bool_or_float32(dtype, expected):
    spec = spec_from_spaces(Box(0, 1, (2, 3), dtype), Discrete(4), "Any-v0")
    assert spec == EnvSpec.box((2, 3), expected, 4)


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_booleans_stay_booleans(frame_stack):
    space = Box(np.zeros((2, 3), bool), np.ones((2, 3), bool), dtype=bool)  # pyright: ignore[reportArgumentType, reportCallIssue]
    envs = SingleEnvs([FrameStackObservation(Scripted(space), frame_stack)])
    shape = (1, frame_stack, 2, 3)
    for observation in (envs.reset([0]), envs.step([0]).observation):
        assert (observation.dtype, observation.shape) == (np.bool_, shape)


def test_a_frame_stack_has_the_newest_frame_last_and_repeats_the_first():
    config = EnvConfig("lrl/Ledger-v0", {"end_probability": 0.3}, frame_stack=3)
    assert make_spec(config) == EnvSpec.box((3, 5, 4), "uint8", 3, frame_stack=3)
    envs = make_envs(config, 1, training=True)
    for observation, *_ in rollout(envs, [9], 100):
        stack = LedgerEnv.decode(observation[0])
        newest = stack[-1, 2]
        assert stack[:, 2].tolist() == [max(newest - 2, 0), max(newest - 1, 0), newest]
        assert len(set(stack[:, 1])) == 1  # all of one episode


def test_a_retired_environment_is_left_alone_until_the_next_reset():
    single = [Scripted(), Scripted()]
    envs = SingleEnvs(single)
    envs.reset([0, 1])
    envs.step([0, 0])
    envs.retired = np.array([True, False])
    step = envs.step([2, 2])
    assert [env.received for env in single] == [[-1], [-1, 1]]
    assert step.reward.tolist() == [0.0, 0.5]
    assert step.observation[0].tolist() == [0.0, 0.0]
    assert step.terminated.tolist() == [False, True]
    envs.reset([0, 1])
    assert not envs.retired.any()


class OneArray(gymnasium.Env):
    """Counts up in one array, which is its observation."""

    observation_space, action_space = Box(0, 99, (1,), np.float32), Discrete(2)

    def __init__(self):
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        return self.count, {}

    def step(self, action):
        self.count += 1
        return self.count, 0.0, False, False, {}


def test_stacks_hold_what_an_array_was_that_is_written_into():
    envs = make_envs(EnvConfig(factory=OneArray, frame_stack=3), 1, training=True)
    envs.reset([0])
    stacks = [envs.step([0]).observation.ravel().tolist() for _ in range(3)]
    envs.close()
    assert stacks == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]


class Closing(OneArray):
    """Is open until it is closed, which the second one answers with an error."""

    open: ClassVar[list[int]] = []

    def __init__(self, last=9):
        super().__init__()
        self.number = len(self.open)
        if self.number > last:
            raise OSError("no licence for another one")
        self.open.append(self.number)

    def close(self):
        self.open[self.number] = -1
        if self.number == 1:
            raise OSError("the simulator is gone already")


@pytest.mark.parametrize("last", [9, 2])
def test_all_are_closed_also_if_one_fails_or_cannot_be_made(last, monkeypatch):
    monkeypatch.setattr(Closing, "open", [])
    with pytest.raises((OSError, ConfigError)):
        make_envs(EnvConfig(factory=Closing, kwargs={"last": last}), 4, training=True).close()
    assert Closing.open == [-1] * (last + 1 if last < 4 else 4)
