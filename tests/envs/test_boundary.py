"""Environments that break their word: each is named, before training or at the step."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from lrl.envs import EnvConfig, WrapperConfig, make_spec
from lrl.envs.gym import NativeVectorEnvs, SingleEnvs
from lrl.envs.vector import StreamEnvs
from lrl.types import ConfigError

SPACE = Box(-1.0, 1.0, (2,), np.float32)
FINE = np.zeros(2, np.float32)


class Answering(gymnasium.Env):
    """Gives a chosen answer to every step, and a chosen first observation."""

    def __init__(self, answer: tuple[Any, ...] = (), first: Any = FINE, space: Box = SPACE) -> None:
        self.observation_space = space
        self.action_space = Discrete(2)
        self.answer = answer or (FINE, 0.0, False, False, {})
        self.first = first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: int):
        return self.answer


def envs_with(answer: tuple[Any, ...]) -> StreamEnvs:
    """Three environments, of which the second gives the answer."""
    envs = SingleEnvs([Answering(), Answering(answer), Answering()])
    envs.reset([0, 1, 2])
    return envs


NAN = np.array([0.0, np.nan], np.float32)
MUTATIONS = {
    "NaN observation": ((NAN, 0.0, False, False, {}), "the observation is not finite"),
    "infinite observation": ((FINE + np.inf, 0.0, False, False, {}), "is not finite"),
    "wide observation": ((np.zeros(3, np.float32), 0.0, False, False, {}), r"came as float32 \(3,"),
    "flat observation": ((np.float32(0.0), 0.0, False, False, {}), r"came as float32 \(\)"),
    "bytes": ((np.zeros(2, np.uint8), 0.0, False, False, {}), "came as uint8"),
    "complex numbers": ((FINE.astype(complex), 0.0, False, False, {}), "came as complex128"),
    "text": ((np.array(["1", "2"]), 0.0, False, False, {}), "came as <U1"),
    "no observation": ((None, 0.0, False, False, {}), r"came as object"),
    "NaN reward": ((FINE, np.nan, False, False, {}), "the reward is nan"),
    "infinite reward": ((FINE, -np.inf, False, False, {}), "the reward is -inf"),
    "reward beyond float32": ((FINE, 1e39, False, False, {}), r"the reward is 1e\+39"),
    "no reward": ((FINE, None, False, False, {}), "reward is None, but must be a number"),
    "text for a reward": ((FINE, "1.5", False, False, {}), "reward is '1.5', but must be a number"),
    "a reward per player": ((FINE, np.ones(2), False, False, {}), "reward is array"),
    "text for an end": ((FINE, 0.0, "no", False, {}), "terminated is 'no', but must be true or"),
    "NaN for an end": ((FINE, 0.0, np.nan, False, {}), "terminated is nan, but must be true or"),
    "no flag": ((FINE, 0.0, False, 2, {}), "truncated is 2, but must be true or false"),
    "four values": ((FINE, 0.0, False, {}), "step returned 4 values, but must return 5"),
    "no values": ("no", "step returned str, but must return 5"),
    "no truncation": ((FINE, 0.0, False, None, {}), "truncated is None, but must be true or false"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_answer_names_the_environment(mutation):
    answer, message = MUTATIONS[mutation]
    with pytest.raises(ValueError, match=message) as caught:
        envs_with(answer).step([0, 1, 0])
    assert "Environment 1" in str(caught.value)


@pytest.mark.parametrize("reward", [1, np.float32(1), np.int64(1), np.array(1.0), True])
@pytest.mark.parametrize("end", [True, np.True_, 1, np.array(True)])
def test_other_numbers_and_flags_are_taken_for_what_they_are(reward, end):
    step = envs_with((FINE, reward, end, np.False_, {})).step([0, 1, 0])
    assert step.reward.tolist() == [0.0, 1.0, 0.0]
    assert step.terminated.tolist() == [False, True, False]


def test_a_reset_without_info_names_the_environment():
    first = Answering()
    first.reset = lambda **_: FINE  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="Environment 1: reset returned ndarray, but must"):
        SingleEnvs([Answering(), first]).reset([0, 1])


@pytest.mark.parametrize("action", [2, -1, 99, 2**40])
def test_an_action_that_is_none_reaches_no_environment(action):
    envs = envs_with((FINE, 0.0, False, False, {}))
    with pytest.raises(ValueError, match=f"Environment 2: action {action} is not in the action sp"):
        envs.step([0, 1, action])


@pytest.mark.parametrize("actions", [[0, 1], [0.0, 1.0, 0.0], [[0, 1, 0]], [0, 1, np.nan]])
def test_actions_of_another_shape_or_type_are_refused(actions):
    with pytest.raises(ValueError, match=r"actions must be integers of shape \(3,\)"):
        envs_with((FINE, 0.0, False, False, {})).step(actions)


class OddVector(VectorEnv):
    """A vector whose rewards have a shape of their own."""

    def __init__(self, reward: Any, observation: Any = np.zeros((3, 2), np.float32)) -> None:  # noqa: B008
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = 3
        self.single_observation_space, self.single_action_space = SPACE, Discrete(2)
        self.reward, self.observation = reward, observation

    def reset(self, *, seed=None, options=None):
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions):
        flags = np.zeros(3, bool)
        return self.observation, self.reward, flags, flags, {}


@pytest.mark.parametrize(
    "observation", [np.zeros((3, 2), np.uint8), np.full((3, 2), "1"), np.zeros((3, 3), np.float32)]
)
def test_a_vector_answers_what_it_declared(observation):
    envs = NativeVectorEnvs(OddVector(np.zeros(3), observation), "Odd-v0")
    envs.reset([0, 1, 2])
    with pytest.raises(ValueError, match=r"The vector environment: .* declared float32 \(3, 2\)"):
        envs.step([0, 0, 0])


@pytest.mark.parametrize("reward", [np.zeros((3, 1)), np.zeros(2), 0.0])
def test_a_vector_has_one_reward_for_each_environment(reward):
    envs = NativeVectorEnvs(OddVector(reward), "Odd-v0")
    envs.reset([0, 1, 2])
    with pytest.raises(ValueError, match=r"reward, .* have the shapes .*, but must have \(3,\)"):
        envs.step([0, 0, 0])


def test_an_observation_outside_of_its_space_is_told_once(caplog):
    envs = envs_with((np.array([0.0, 255.0], np.float32), 0.0, False, False, {}))
    with caplog.at_level(logging.WARNING):
        envs.step([0, 0, 0])
        envs.step([0, 0, 0])
    (message,) = caplog.messages
    assert message == (
        "Environment 1: the observation holds 255 at [1], outside of its space [-1, 1]; it is "
        "taken as it is (said once)"
    )


def test_what_rounding_does_is_not_told(caplog):
    envs = envs_with((np.array([0.0, 1.001], np.float32), 0.0, False, False, {}))
    envs.step([0, 0, 0])
    assert caplog.messages == []


def test_the_zeros_of_a_retired_environment_are_not_told(caplog):
    ones = np.ones(2, np.float32)
    single = [Answering(space=Box(1.0, 5.0, (2,)), first=ones) for _ in range(2)]
    for env in single:
        env.answer = (ones, 0.0, False, False, {})
    envs = SingleEnvs(single)
    envs.reset([0, 1])
    envs.retired = np.array([True, False])
    envs.step([0, 0])
    assert caplog.messages == []
    single[1].answer = (0 * ones, 0.0, False, False, {})
    envs.step([0, 0])
    assert caplog.messages[0].startswith("Environment 1: the observation holds 0")


def test_only_the_first_answers_are_looked_at(caplog):
    single = Answering()
    envs = SingleEnvs([single])
    envs.reset([0])
    for _ in range(120):
        envs.step([0])
    single.answer = (np.array([0.0, -5.0], np.float32), 0.0, False, False, {})
    envs.step([0])
    assert caplog.messages == []


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 255, (2,), np.uint8),
        Box(-np.inf, np.inf, (2,), np.float32),
        Box(np.zeros(2, bool), np.ones(2, bool), dtype=bool),  # pyright: ignore[reportArgumentType, reportCallIssue]
    ],
)
def test_where_nothing_can_lie_outside_nothing_is_looked_at(space):
    envs = SingleEnvs([Answering(space=space, first=np.zeros(2, space.dtype))])
    envs.reset([0])
    assert not envs._bounds


def test_bounds_as_wide_as_their_type_do_not_overflow(caplog):
    """As many environments declare what they know no bounds of; a warning of numpy's would fail."""
    largest = float(np.finfo(np.float32).max)
    envs = SingleEnvs([Answering(space=Box(-largest, largest, (2,), np.float32))])
    envs.reset([0])
    assert caplog.messages == []


class Heavy:
    """Stands for an info of 100 MB: it may neither be copied nor sent nor kept."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("an info was copied or sent")


def test_infos_are_neither_sent_nor_kept():
    heavy = Heavy()
    watched = weakref.ref(heavy)
    single = Answering((FINE, 0.0, True, False, {"heavy": heavy}))
    envs = SingleEnvs([single])
    envs.reset([0])
    envs.step([0])
    single.answer = (FINE, 0.0, False, False, {})
    del heavy
    assert watched() is None


class Failing(gymnasium.Env):
    """Fails where it is told to."""

    def __init__(self, where: str = "init", error: str = "RuntimeError") -> None:
        self.observation_space, self.action_space = SPACE, Discrete(2)
        self.where, self.error = where, error
        self.fail("init")

    def reset(self, *, seed=None, options=None):
        self.fail("reset")
        return np.full(2, np.nan if self.where == "nan" else 0.0, np.float32), {}

    def fail(self, where: str) -> None:
        if where == self.where:
            raise {"RuntimeError": RuntimeError, "SystemExit": SystemExit, "OSError": OSError}[
                self.error
            ]("the cartridge is missing")


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("Failing-v0", entry_point=Failing)  # pyright: ignore[reportArgumentType]
    yield
    del gymnasium.registry["Failing-v0"]


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit", "OSError"])
@pytest.mark.parametrize("where", ["init", "reset"])
def test_an_environment_that_cannot_be_used_is_a_mistake_in_the_settings(where, error):
    config = EnvConfig("Failing-v0", {"where": where, "error": error})
    with pytest.raises(ConfigError) as caught:
        make_spec(config)
    message = str(caught.value)
    assert "Failing-v0" in message
    assert f"{error}: the cartridge is missing" in message
    assert "test_boundary.py, line" in message


def test_a_first_observation_that_is_not_finite_is_found_before_training():
    with pytest.raises(ConfigError, match=r"fails at its first reset: .* not finite"):
        make_spec(EnvConfig("Failing-v0", {"where": "nan"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_mistake_too(tmp_path, monkeypatch, text, message):
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for config in (
        EnvConfig("broken_module:Some-v0"),
        EnvConfig(wrappers=[WrapperConfig("broken_module.Some")]),
    ):
        with pytest.raises(ConfigError, match="broken_module") as caught:
            make_spec(config)
        assert message in str(caught.value)
