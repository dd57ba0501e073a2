"""Evaluation: seeded episodes on raw rewards; training, `lrl validate` and `test` share it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.actors.actor import BehaviourPolicy
from lrl.actors.exploration import Mask, greedy_actions, in_branches, random_actions
from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.envs import EnvConfig, StreamEnvs, kind_of, make_envs
from lrl.envs.protocols import CUSTOM
from lrl.parts.settings import check_types
from lrl.processes.interrupt import interrupt
from lrl.types import ActionSpec, ConfigError, EnvSpec

VALIDATION_SEED = 0
TEST_SEED = 2**20
_MAX_ENVIRONMENTS = 32
_LONG = 10_000  # steps of an episode that make one ask for its limit

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationConfig:
    """How policies are evaluated (YAML: `data.evaluation`).

    What depends on the environment takes that of training, and changes it as `env` says.
    """

    episodes: int = 20
    """Episodes of each evaluation during training, seeded 0, 1, 2, ... every time."""
    test_episodes: int = 100
    """Episodes of `lrl test`, with seeds that neither training nor validation uses."""
    epsilon: float | None = None
    """Probability of a random action; null is the default of the kind of environment: 0.001 for
    Atari, otherwise 0."""
    max_frames_per_episode: int = 108_000
    """Frames after which an episode is cut off and counted as it stands."""
    env: dict[str, Any] = field(default_factory=dict)
    """Settings of `data.env` that differ in evaluation, nested as there, such as
    {max_episode_steps: 500, atari: {repeat_action_probability: 0.0}}. `atari` and `kwargs` are
    changed setting by setting, lists as a whole."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if not isinstance(self.env, Mapping):
            raise ConfigError(
                f"data.evaluation.env is {self.env!r:.100}, but must be a mapping of the settings "
                "that differ, such as {max_episode_steps: 500}"
            )
        check_types(self, "evaluation")
        for name in ("episodes", "test_episodes", "max_frames_per_episode"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"evaluation.{name} must be at least 1, got {getattr(self, name)}"
                )
        for name, limit in (
            ("episodes", TEST_SEED - VALIDATION_SEED),
            ("test_episodes", TRAINING_SEED_FLOOR - TEST_SEED),
        ):
            if getattr(self, name) > limit:
                raise ConfigError(
                    f"evaluation.{name} must be at most {limit}, got {getattr(self, name)}: "
                    "the seeds of validation, test and training would overlap"
                )
        if self.epsilon is not None and not 0.0 <= self.epsilon <= 1.0:
            raise ConfigError(f"evaluation.epsilon must be between 0 and 1, got {self.epsilon}")

    def env_for(self, env: EnvConfig) -> EnvConfig:
        """Return the environment of the episodes.

        Args:
            env: The environment of training.

        Raises:
            ConfigError: A setting of `env` is unknown or wrong, or acts in training only.
        """
        if not self.env:
            return env
        try:
            found = env.overridden(self.env)
        except ConfigError as error:
            raise ConfigError(f"data.evaluation.{error}") from error
        for name in kind_of(found).training_only if found.kind == env.kind else ("reward_clip",):
            here = found.setting(name)
            if here != env.setting(name):
                raise ConfigError(
                    f"data.evaluation.env.{name} is {here}, but would do nothing: it "
                    "acts in training only (in evaluation rewards are raw, and lost lives end "
                    "nothing); leave it out"
                )
        return found

    def epsilon_for(self, env: EnvConfig) -> float:
        """Return the epsilon of the episodes, given the environment of training."""
        return kind_of(self.env_for(env)).default_epsilon if self.epsilon is None else self.epsilon

    def max_frames_for(self, env: EnvConfig) -> int:
        """Return the frames at which an episode is cut off, given the environment of training."""
        own, limit = self.max_frames_per_episode, kind_of(self.env_for(env)).frames_limit
        return own if limit is None else min(own, limit)

    def protocol_for(self, env: EnvConfig) -> str:
        """Return the name of the protocol of the scores, given the environment of training.

        It is `custom` where training and evaluation are not of one protocol.
        """
        envs = env, self.env_for(env)
        return common_protocol(envs, self.epsilon_for(env), self.max_frames_for(env))


def common_protocol(envs: Sequence[EnvConfig], epsilon: float, max_frames: int) -> str:
    """Return the name of the protocol that all of these environments have, otherwise `custom`."""
    names = {kind_of(env).protocol(epsilon, max_frames) for env in envs}
    return names.pop() if len(names) == 1 else CUSTOM


def differing_spaces(trained: EnvSpec, played: EnvSpec) -> list[str]:
    """Say in what observations and actions of an environment are not those of training."""
    here, there = _spaces(played), _spaces(trained)
    return [
        f"{name} {here[name]} instead of {there[name]}"
        for name in there
        if here[name] != there[name]
    ]


def _spaces(spec: EnvSpec) -> dict[str, Any]:
    """Return what of a specification an agent is bound to, for messages."""
    branches = spec.action.branches
    return {
        "observation_shape": spec.observation_shape,
        "observation_dtype": spec.observation_dtype,
        "observation_categories": spec.observation_categories,
        "num_actions": branches[0] if len(branches) == 1 else branches,
    }


def check_same_spaces(trained: EnvSpec, played: EnvSpec) -> None:
    """Check that an agent can be evaluated in an environment other than that of its training.

    Args:
        trained: The environment of training.
        played: That of `EvaluationConfig.env`.

    Raises:
        ConfigError: Observations or actions are others; the message says in what.
    """
    if differing := differing_spaces(trained, played):
        raise ConfigError(
            f"data.evaluation.env gives an environment with {', '.join(differing)} in training: "
            "an agent can be evaluated only with the observations and actions that it learnt with"
        )


@dataclass(frozen=True)
class Episodes:
    """Results of evaluated episodes, in the order of their seeds; all arrays are `[episodes]`."""

    returns: npt.NDArray[np.float64]  # undiscounted, raw rewards
    lengths: npt.NDArray[np.int64]  # environment steps
    timed_out: npt.NDArray[np.bool_]  # cut off by max_frames_per_episode or a game's own limit

    def metrics(self) -> dict[str, float]:
        """Return the rows of `eval/` (docs/metrics.md)."""
        return {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/return_min": float(self.returns.min()),
            "eval/return_max": float(self.returns.max()),
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": float(len(self.returns)),
            "eval/timeouts": float(self.timed_out.sum()),
        }


def run_episodes(
    env: EnvConfig,
    policy: BehaviourPolicy,
    seeds: Sequence[int],
    *,
    epsilon: float,
    max_frames: int,
    check: Callable[[], object] = interrupt.check,
    num_threads: int = 1,
) -> Episodes:
    """Play one episode per seed and return their results.

    Args:
        env: Environment; built for evaluation, so rewards are raw and lives do not matter.
        policy: Gives the action values.
        seeds: One per episode; an episode depends on its seed alone.
        epsilon: Probability of a random action.
        max_frames: Frames after which an episode is cut off.
        check: Called before every step; may raise to stop early.
        num_threads: Threads that step Atari games; results do not depend on them.
    """
    if not hasattr(policy, "begin"):
        raise TypeError(
            f"policy is {policy!r:.100}, but must be a behaviour policy: wrap a function in "
            "lrl.actors.actor.FunctionPolicy"
        )
    parts = []
    for start in range(0, len(seeds), _MAX_ENVIRONMENTS):
        group = seeds[start : start + _MAX_ENVIRONMENTS]
        envs = make_envs(env, len(group), training=False, num_threads=num_threads)
        try:
            parts.append(_run_group(env, envs, policy, group, epsilon, max_frames, check))
        finally:
            envs.close()
    return Episodes(
        np.concatenate([part.returns for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.timed_out for part in parts]),
    )


def _run_group(
    env: EnvConfig,
    envs: StreamEnvs,
    policy: BehaviourPolicy,
    seeds: Sequence[int],
    epsilon: float,
    max_frames: int,
    check: Callable[[], object],
) -> Episodes:
    count, has_frames_limit = len(seeds), kind_of(env).frames_limit is not None
    max_steps = max(1, max_frames // envs.spec.frame_skip)
    # Not from the seed alone: environments draw from exactly that generator.
    generators = [np.random.default_rng([seed, 1]) for seed in seeds]
    returns, lengths = np.zeros(count), np.zeros(count, dtype=np.int64)
    running, timed_out = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    observation, memory = envs.reset(seeds), policy.begin(count)
    while running.any() and lengths.max() < max_steps:
        check()
        values, _, memory = policy(observation, memory)
        mask, spec = envs.action_mask, envs.spec.action
        step = envs.step(choose_actions(values, epsilon, generators, mask, spec))
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        if has_frames_limit:
            timed_out |= running & step.truncated
        running &= ~(step.terminated | step.truncated)
        envs.retired = ~running
        observation = step.observation
        if lengths.max() == _LONG and not has_frames_limit:
            _ask_for_a_limit(env.source, max_frames)
    return Episodes(returns, lengths, timed_out | running)


@functools.cache  # said once
def _ask_for_a_limit(source: str, max_frames: int) -> None:
    _log.warning(
        "an evaluated episode goes on after %s steps, until data.evaluation.max_frames_per_episode "
        "cuts it off at %s: if %s has no time limit, set data.env.max_episode_steps",
        f"{_LONG:,}", f"{max_frames:,}", source,
    )  # fmt: skip


def choose_actions(
    q: npt.NDArray[np.float32],
    epsilon: float,
    generators: Sequence[np.random.Generator],
    mask: Mask,
    spec: ActionSpec,
) -> npt.NDArray[np.int32]:
    """Return epsilon-greedy actions; each episode draws from a generator of its own."""

    def choose(q: npt.NDArray[np.float32], mask: Mask) -> npt.NDArray[np.int32]:
        actions = greedy_actions(q, mask)
        if epsilon > 0.0:
            for index, rng in enumerate(generators):
                if rng.random() < epsilon:
                    allowed = None if mask is None else mask[index : index + 1]
                    actions[index] = random_actions(1, q.shape[1], rng, allowed)[0]
        return actions

    return in_branches(choose, q, mask, spec)
