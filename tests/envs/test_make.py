"""From settings to environments: which backend, wrappers, limits, errors, other processes."""

import multiprocessing
import subprocess
import sys
from typing import cast

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec as EnvSpecOfGymnasium
from helpers.envs_rollout import assert_same, rollout

from lrl.envs import EnvConfig, WrapperConfig, make_envs, make_spec
from lrl.envs.gym import NATIVE_VECTOR_FROM, NativeVectorEnvs, SingleEnvs
from lrl.types import ConfigError, EnvSpec


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
    native = cast("CartPoleVectorEnv", envs._envs.unwrapped)
    singles = [gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(num_envs)]

    def restart(index):
        singles[index].reset()
        singles[index].unwrapped.state = np.asarray(native.state)[:, index].copy()

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
        step = envs.step((np.dot(observation, [0.1, 0.3, 1.0, 1.0]) > 0).astype(int))
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


def test_wrappers_are_applied_innermost_first_with_their_arguments():
    wrappers = [
        WrapperConfig("gymnasium.wrappers.FlattenObservation"),
        WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": -0.25, "max_reward": 0.25}),
        WrapperConfig("gymnasium.wrappers.ClipReward", {"min_reward": 0.0, "max_reward": 9.0}),
    ]
    config = EnvConfig("lrl/Ledger-v0", wrappers=wrappers, frame_stack=2)
    assert make_spec(config) == EnvSpec.box((2, 20), "uint8", 3, frame_stack=2)
    rewards = [row[1] for row in rollout(make_envs(config, 2, training=True), [1, 2], 50)]
    assert set(np.ravel(rewards)) == {0.0, 0.25}


@pytest.mark.parametrize(
    ("wrapper", "text"),
    [
        (WrapperConfig("gymnasium.wrappers.Missing"), r"env\.wrappers\[0\]\.path .*Missing"),
        (WrapperConfig("no_such_module.Wrapper"), r"env\.wrappers\[0\]\.path .*no_such_module"),
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


@pytest.mark.atari
@pytest.mark.parametrize(
    ("env_id", "new"),
    [
        ("ale_py:Pong-v4", "Pong"),
        ("ale_py:Qbert-v0", "Qbert"),
        ("PongNoFrameskip-v4", "Pong"),
        ("ale_py:Pong-ramDeterministic-v0", "Pong"),
    ],
)
def test_an_id_of_the_old_atari_interface_is_refused_with_the_new_one(env_id, new):
    with pytest.raises(ConfigError, match=rf"env\.id is '{env_id}', .* 'ALE/{new}-v5'"):
        make_spec(EnvConfig(env_id))


def test_an_id_of_others_may_end_as_old_atari_ids_do(monkeypatch):
    name = "LakeDeterministic-v0"
    spec = EnvSpecOfGymnasium(name, "gymnasium.envs.toy_text:FrozenLakeEnv")
    monkeypatch.setitem(gymnasium.registry, name, spec)
    assert make_spec(EnvConfig(name)).action.branches == (4,)


@pytest.mark.atari
def test_an_old_id_is_recognised_before_ale_py_is_imported():
    code = (
        "from lrl.envs import EnvConfig, make_spec\n"
        "try: make_spec(EnvConfig('Pong-v4'))\n"
        "except ValueError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ALE/Pong-v5" in result.stdout, result.stderr


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
        "import gymnasium\ngymnasium.register('Late-v0', entry_point='lrl.testing:LedgerEnv')\n"
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
        process.join(100)
        assert process.exitcode == 0
    del gymnasium.registry["Late-v0"]
