"""The checks around every vector environment, with a backend that answers what the test wants."""

import numpy as np
import pytest

from lrl.envs import EnvStep, StreamEnvs
from lrl.types import ConfigError, EnvSpec

SPEC = EnvSpec.box(observation_shape=(3,), observation_dtype="float32", num_actions=2)


class Scripted(StreamEnvs):
    """Answers zeros, except for what the test sets in `next`."""

    def __init__(self, num_envs=2):
        super().__init__(SPEC, num_envs)
        self.next = {}
        self.received = []
        self.closed = 0

    def _reset_envs(self, seeds):
        return self.next.pop("observation", np.zeros((self.num_envs, 3), np.float32))

    def _step_envs(self, actions, ended):
        self.received.append(actions)
        flags = np.zeros((3, self.num_envs), bool)
        answer = {
            "observation": np.zeros((self.num_envs, 3), np.float32),
            "reward": np.zeros(self.num_envs),
            "terminated": flags[0],
            "truncated": flags[1],
            "life_lost": flags[2],
        }
        answer.update(self.next)
        self.next = {}
        return EnvStep(**answer)

    def _close_envs(self):
        self.closed += 1


@pytest.fixture
def envs():
    envs = Scripted()
    envs.reset([0, 1])
    return envs


@pytest.mark.parametrize(("actions", "index"), [([0, 2], 1), ([-1, 0], 0), ([99, 99], 0)])
def test_an_action_outside_the_space_never_reaches_the_backend(envs, actions, index):
    text = rf"Environment {index}: action {actions[index]} is not in the action space, 0 \.\.\. 1"
    with pytest.raises(ValueError, match=text):
        envs.step(np.array(actions))
    assert envs.received == []


@pytest.mark.parametrize(
    "actions", [np.zeros(2), np.zeros(2, bool), np.zeros(3, int), np.zeros((2, 1), int), 0]
)
def test_actions_of_another_type_or_shape_never_reach_the_backend(envs, actions):
    with pytest.raises(ValueError, match=r"actions must be integers of shape \(2,\)"):
        envs.step(actions)
    assert envs.received == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_any_integer_type_is_taken_and_passed_on_as_int64(envs, dtype):
    envs.step(np.array([1, 0], dtype))
    np.testing.assert_array_equal(envs.received[0], [1, 0])
    assert envs.received[0].dtype == np.int64


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_observations_and_rewards_must_be_finite(envs, value):
    observation = np.zeros((2, 3), np.float32)
    observation[1, 2] = value
    envs.next = {"observation": observation}
    with pytest.raises(ValueError, match=r"Environment 1: the observation is not finite"):
        envs.step([0, 0])
    envs.next = {"reward": np.array([value, 0.0])}
    with pytest.raises(ValueError, match=rf"Environment 0: the reward is {value}"):
        envs.step([0, 0])
    envs.next = {"observation": observation}
    with pytest.raises(ValueError, match=r"Environment 1: the observation is not finite"):
        envs.reset([0, 1])


@pytest.mark.parametrize(
    "observation", [np.zeros((2, 4), np.float32), np.zeros((2, 3)), np.zeros((1, 3), np.float32)]
)
def test_observations_must_stay_as_declared(envs, observation):
    envs.next = {"observation": observation}
    with pytest.raises(ValueError, match=r"declared float32 \(2, 3\), but came as"):
        envs.step([0, 0])


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_the_step_after_an_end_has_no_reward_and_no_life_loss(envs, flag):
    envs.next = {flag: np.array([True, False]), "reward": np.array([5.0, 6.0])}
    assert envs.step([0, 0]).reward.tolist() == [5.0, 6.0]
    envs.next = {"reward": np.array([7.0, 8.0]), "life_lost": np.array([True, True])}
    step = envs.step([0, 0])
    assert step.reward.tolist() == [0.0, 8.0]
    assert step.life_lost.tolist() == [False, True]
    envs.next = {"reward": np.array([7.0, 8.0])}
    assert envs.step([0, 0]).reward.tolist() == [7.0, 8.0]


def test_a_backend_that_does_not_reset_in_the_next_step_is_recognised(envs):
    for _ in range(2):
        envs.next = {"terminated": np.array([False, True])}
        if not envs.received:
            envs.step([0, 0])
    with pytest.raises(ValueError, match=r"Environment 1 ended in the very step .* not NEXT_STEP"):
        envs.step([0, 0])


def test_a_reset_forgets_a_pending_autoreset(envs):
    envs.next = {"terminated": np.array([True, True])}
    envs.step([0, 0])
    envs.reset([3, 4])
    envs.next = {"reward": np.array([1.0, 2.0])}
    assert envs.step([0, 0]).reward.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("seeds", [[], [1], [1, 2, 3], [1, -1]])
def test_reset_needs_one_seed_per_environment(envs, seeds):
    with pytest.raises(ValueError, match="reset needs 2 seeds of 0 or more"):
        envs.reset(seeds)


def test_close_is_idempotent_and_final(envs):
    envs.close()
    envs.close()
    assert envs.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        envs.step([0, 0])
    with pytest.raises(RuntimeError, match="closed"):
        envs.reset([0, 1])


def test_step_needs_a_reset():
    with pytest.raises(RuntimeError, match="before the first reset"):
        Scripted().step([0, 0])


def test_there_must_be_an_environment():
    with pytest.raises(ConfigError, match="num_envs is 0"):
        Scripted(0)
