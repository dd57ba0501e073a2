"""Gymnasium environments: single ones in a loop, native vectors, wrappers, stacks, spaces."""

import multiprocessing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.envs import EnvConfig, WrapperConfig, make_envs, make_spec
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs, spec_from_spaces
from lrl.envs.make import NATIVE_VECTOR_FROM
from lrl.envs.toy import Ledger
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
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action):
        self.received.append(int(action))
        observation, _ = self.reset() if self.answer is None else (self.answer, None)
        return observation, 0.5, len(self.received) % 2 == 0, False, {}


def rollout(envs, seeds, steps, seed=0):
    """Return the observations, rewards and end flags of random actions."""
    rng = np.random.default_rng(seed)
    observation = envs.reset(seeds)
    trace = [(observation, np.zeros(len(seeds)), *np.zeros((2, len(seeds)), bool))]
    for _ in range(steps):
        step = envs.step(rng.integers(envs.spec.num_actions, size=len(seeds)))
        trace.append(step[:4])
    return trace


def assert_same(trace, other):
    for row, other_row in zip(trace, other, strict=True):
        for value, other_value in zip(row, other_row, strict=True):
            np.testing.assert_array_equal(value, other_value)


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
    for _ in range(200):
        expected.append(twin.step(rng.integers(3, size=3))[:4])
    assert_same(rollout(make_envs(config, 3, training=True), [5, 6, 7], 200), expected)


@given(
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3), rng_seed=st.integers(0, 9)
)
@settings(max_examples=20, deadline=None)
def test_a_stream_is_complete_and_in_order(seeds, rng_seed):
    envs = make_envs(EnvConfig("lrl/Ledger-v0"), len(seeds), training=True)
    rng = np.random.default_rng(rng_seed)
    place = Ledger.decode(envs.reset(seeds))  # [environments, (instance, episode, step)]
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
                reward = Ledger.reward(episode, time, int(actions[index]))
            assert Ledger.decode(step.observation)[index].tolist() == expected
            assert step.reward[index] == reward
        place = Ledger.decode(step.observation)
        ended = (step.terminated | step.truncated).tolist()


def test_observations_are_never_overwritten_later():
    for config, num_envs in ((EnvConfig(), NATIVE_VECTOR_FROM), (EnvConfig(frame_stack=2), 2)):
        envs = make_envs(config, num_envs, training=True)
        kept = [row[0] for row in rollout(envs, range(num_envs), 50)]
        again = [row[0].copy() for row in rollout(envs, range(num_envs), 50)]
        np.testing.assert_array_equal(kept, again)
        assert all(observation.dtype == np.float32 for observation in kept)


@pytest.mark.parametrize("num_envs", [2, NATIVE_VECTOR_FROM])
def test_the_same_seeds_give_the_same_trajectory_and_others_another(num_envs):
    traces = [
        rollout(make_envs(EnvConfig(), num_envs, training=True), seeds, 200)
        for seeds in (range(num_envs), range(num_envs), range(1, num_envs + 1))
    ]
    assert_same(traces[0], traces[1])
    assert (traces[0][0][0] != traces[2][0][0]).all()


def test_an_episode_of_evaluation_depends_on_its_own_seed_alone():
    together = make_envs(EnvConfig(), NATIVE_VECTOR_FROM, training=False)
    alone = make_envs(EnvConfig(), 1, training=False)
    observation = together.reset(range(NATIVE_VECTOR_FROM))
    np.testing.assert_array_equal(alone.reset([5])[0], observation[5])


def test_native_cartpole_equals_the_single_one_step_by_step():
    limit, num_envs = 20, NATIVE_VECTOR_FROM
    envs = make_envs(EnvConfig(max_episode_steps=limit), num_envs, training=True)
    assert isinstance(envs, NativeVectorEnvs)
    state = lambda: envs._envs.unwrapped.state.T  # noqa: E731
    singles = [gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(num_envs)]

    def restart(index):
        singles[index].reset()
        singles[index].unwrapped.state = state()[index].copy()

    rng = np.random.default_rng(0)
    envs.reset(range(num_envs))
    for index in range(num_envs):
        restart(index)
    ended = np.zeros(num_envs, bool)
    ends = np.zeros(2, int)
    for _ in range(300):
        actions = rng.integers(2, size=num_envs)
        step = envs.step(actions)
        for index, single in enumerate(singles):
            if ended[index]:
                assert step.reward[index] == 0
                assert (abs(step.observation[index]) <= 0.05).all()
                restart(index)
                continue
            observation, reward, terminated, truncated, _ = single.step(int(actions[index]))
            np.testing.assert_allclose(step.observation[index], observation, rtol=1e-6, atol=1e-7)
            assert step.reward[index] == reward == 1
            assert step.terminated[index] == terminated
            assert step.truncated[index] == truncated
        ended = step.terminated | step.truncated
        ends += step.terminated.sum(), step.truncated.sum()
    assert (ends > 10).all()


@pytest.mark.parametrize("num_envs", [1, NATIVE_VECTOR_FROM])
def test_the_registered_time_limit_truncates_and_does_not_terminate(num_envs):
    envs = make_envs(EnvConfig(), num_envs, training=True)
    observation = envs.reset(range(num_envs))
    for time in range(1, 501):
        step = envs.step((observation[:, 2] + observation[:, 3] > 0).astype(int))
        observation = step.observation
        assert not step.terminated.any()
        assert step.truncated.tolist() == [time == 500] * num_envs


@pytest.mark.parametrize("num_envs", [1, NATIVE_VECTOR_FROM])
def test_the_time_limit_can_be_set(num_envs):
    envs = make_envs(EnvConfig(max_episode_steps=3), num_envs, training=True)
    ends = [row[3] for row in rollout(envs, range(num_envs), 8)]
    assert np.array(ends)[:, 0].tolist() == [False] * 3 + [True] + [False] * 3 + [True, False]


@pytest.mark.parametrize(
    ("config", "num_envs", "training", "native"),
    [
        (EnvConfig(), NATIVE_VECTOR_FROM, True, True),
        (EnvConfig(), NATIVE_VECTOR_FROM - 1, True, False),
        (EnvConfig(), NATIVE_VECTOR_FROM, False, False),
        (EnvConfig(frame_stack=2), NATIVE_VECTOR_FROM, True, False),
        (
            EnvConfig(wrappers=[WrapperConfig("gymnasium.wrappers.FlattenObservation")]),
            NATIVE_VECTOR_FROM,
            True,
            False,
        ),
    ],
)
def test_which_backend_is_chosen(config, num_envs, training, native):
    envs = make_envs(config, num_envs, training=training)
    assert type(envs) is (NativeVectorEnvs if native else SingleEnvs)
    assert envs.spec == make_spec(config)
    assert envs.num_envs == num_envs


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
        flags = np.zeros((2, self.num_envs), bool)
        return self.buffer, np.ones(self.num_envs, np.float32), *flags, {}


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
    assert make_spec(EnvConfig(name)) == EnvSpec((2,), "uint8", 2)
    envs = make_envs(EnvConfig(name), 2, training=False)
    first = envs.reset([0, 0])
    assert envs.step([0, 1]).observation.tolist() == [[1, 1], [1, 1]]
    assert first.tolist() == [[0, 0], [0, 0]]
    assert isinstance(envs, NativeVectorEnvs)
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
        (Discrete(5), Discrete(2), "only Box"),
        (Dict(a=Box(0, 1, (1,))), Discrete(2), "only Box"),
        (Box(0, 1, (1,)), Box(0, 1, (1,)), "only Discrete"),
        (Box(0, 1, (1,)), MultiDiscrete([2, 2]), "only Discrete"),
    ],
)
def test_other_spaces_are_refused_by_name(observation_space, action_space, supported):
    with pytest.raises(ConfigError, match=rf"Odd-v0 has the .* space .*{supported}"):
        spec_from_spaces(observation_space, action_space, "Odd-v0")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.uint8, "uint8"), (np.float16, "float32"), (np.float64, "float32"), (np.int32, "float32")],
)
def test_observations_become_uint8_or_float32(dtype, expected):
    spec = spec_from_spaces(Box(0, 1, (2, 3), dtype), Discrete(4), "Any-v0")
    assert spec == EnvSpec((2, 3), expected, 4)


def test_a_frame_stack_has_the_newest_frame_last_and_repeats_the_first():
    config = EnvConfig("lrl/Ledger-v0", {"end_probability": 0.3}, frame_stack=3)
    assert make_spec(config) == EnvSpec((3, 3, 4), "uint8", 3, frame_stack=3)
    envs = make_envs(config, 1, training=True)
    for observation, *_ in rollout(envs, [9], 100):
        stack = Ledger.decode(observation[0])
        newest = stack[-1, 2]
        assert stack[:, 2].tolist() == [max(newest - 2, 0), max(newest - 1, 0), newest]
        assert len(set(stack[:, 1])) == 1  # all of one episode


def test_wrappers_are_applied_innermost_first_with_their_arguments():
    wrappers = [
        WrapperConfig("gymnasium.wrappers.FlattenObservation"),
        WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": -0.25, "max_reward": 0.25}),
        WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": 0.0, "max_reward": 9.0}),
    ]
    config = EnvConfig("lrl/Ledger-v0", wrappers=wrappers, frame_stack=2)
    assert make_spec(config) == EnvSpec((2, 12), "uint8", 3, frame_stack=2)
    rewards = [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 50)]
    assert set(np.ravel(rewards)) == {0.0, 0.25}


@pytest.mark.parametrize(
    ("wrapper", "text"),
    [
        (WrapperConfig("gymnasium.wrappers.Missing"), r"env\.wrappers\[0\]\.path .* Missing"),
        (WrapperConfig("no_such_module.Wrapper"), r"env\.wrappers\[0\]\.path .* no_such_module"),
        (WrapperConfig("gymnasium.spaces.Box"), r"not a gymnasium\.Wrapper"),
        (
            WrapperConfig("gymnasium.wrappers.ClipReward", {"minimum": 0}),
            r"env\.wrappers\[0\]\.kwargs is .*minimum",
        ),
    ],
)
def test_a_wrong_wrapper_is_named(wrapper, text):
    with pytest.raises(ConfigError, match=text):
        make_envs(EnvConfig(wrappers=[wrapper]), 1, training=True)


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("CartPoel-v1", "CartPole"),
        ("no_such_module:Name-v0", "no_such_module"),
        ("Nothing at all", "Nothing at all"),
    ],
)
def test_an_unknown_id_is_refused(env_id, text):
    with pytest.raises(ConfigError, match=rf"env\.id is '{env_id}'.*{text}"):
        make_spec(EnvConfig(env_id))


@pytest.mark.parametrize("num_envs", [1, NATIVE_VECTOR_FROM])
def test_wrong_arguments_of_the_environment_are_refused(num_envs):
    with pytest.raises(ConfigError, match=r"env\.kwargs \{'gravitas': 1\} cannot be made"):
        make_envs(EnvConfig(kwargs={"gravitas": 1}), num_envs, training=True)


@pytest.mark.parametrize(("num_envs", "num_threads"), [(0, 1), (1, 0)])
def test_counts_must_be_positive(num_envs, num_threads):
    with pytest.raises(ConfigError, match="at least 1"):
        make_envs(EnvConfig(), num_envs, training=True, num_threads=num_threads)


def return_in_child(config, queue):
    """Run in a spawned process, which knows nothing but its arguments."""
    rewards = [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 30)]
    queue.send(float(np.sum(rewards)))


def test_settings_work_in_a_spawned_process_also_with_a_module_to_import(tmp_path, monkeypatch):
    (tmp_path / "registers_late.py").write_text(
        "import gymnasium\ngymnasium.register('Late-v0', entry_point='lrl.envs.toy:Ledger')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    context = multiprocessing.get_context("spawn")
    for config in (EnvConfig("registers_late:Late-v0"), EnvConfig("lrl/Ledger-v0")):
        expected = np.sum(
            [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 30)]
        )
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=return_in_child, args=(config, sender))
        process.start()
        assert receiver.poll(40), "the child sent nothing"
        assert receiver.recv() == expected
        process.join(10)
        assert process.exitcode == 0
    del gymnasium.registry["Late-v0"]
