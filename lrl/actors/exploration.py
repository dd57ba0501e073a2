"""Exploration: from action values to the actions an actor takes.

Numpy only. Every environment draws its own decision from the actor's generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lrl.schedules import Linear, Schedule
from lrl.types import ConfigError


class Exploration(ABC):
    """Choose actions; the part that differs between epsilon-greedy variants is `epsilons`."""

    @abstractmethod
    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a random action for each environment.

        Args:
            env_steps: Environment steps of the whole run so far, as the actor estimates them.
            environments: Indices of the environments among those of all actors and ranks.
            total_environments: Number of environments of all actors and ranks.
        """

    def select(
        self,
        q: npt.NDArray[np.float32],
        epsilons: npt.NDArray[np.float64],
        rng: np.random.Generator,
    ) -> npt.NDArray[np.int32]:
        """Return the greedy action, or with probability epsilon a uniformly random one.

        Args:
            q: Action values `[environments, actions]`.
            epsilons: Probability of a random action for each environment.
            rng: The actor's generator.
        """
        actions = q.argmax(axis=1).astype(np.int32)
        explore = rng.random(len(q)) < epsilons
        return np.where(explore, rng.integers(q.shape[1], size=len(q), dtype=np.int32), actions)


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"exploration.{name} must be between 0 and 1, got {value}")


@dataclass(frozen=True)
class EpsilonGreedy(Exploration):
    """The same epsilon in every environment, following a schedule of environment steps."""

    schedule: Schedule = field(default_factory=lambda: Linear(1.0, 0.05, 10_000))
    """Epsilon as a function of the environment steps of the whole run."""

    def __post_init__(self) -> None:
        """Refuse values that are no probabilities."""
        _check_probability("schedule (its start)", self.schedule(0))
        _check_probability("schedule (its end)", self.schedule(2**62))

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the scheduled value for every environment."""
        return np.full(len(environments), self.schedule(env_steps))


@dataclass(frozen=True)
class EpsilonSpread(Exploration):
    """Constant epsilons spread evenly from `minimum` to `maximum` over the environments.

    A single environment gets `maximum`, so that it explores.
    """

    minimum: float = 0.001
    """Epsilon of the first environment."""
    maximum: float = 0.4
    """Epsilon of the last environment."""

    def __post_init__(self) -> None:
        """Refuse values that are no probabilities."""
        _check_probability("minimum", self.minimum)
        _check_probability("maximum", self.maximum)

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return each environment's constant, whatever the step."""
        if total_environments == 1:
            return np.full(len(environments), self.maximum)
        share = environments / (total_environments - 1)
        return self.minimum + (self.maximum - self.minimum) * share


@dataclass(frozen=True)
class EpsilonLadder(Exploration):
    """The ladder of Ape-X: epsilon_i = base ** (1 + alpha * i / (N - 1)).

    Reference: Horgan et al. 2018, https://arxiv.org/abs/1803.00933, section 4.1. A single
    environment gets `base`.
    """

    base: float = 0.4
    """Epsilon of the first environment, the most exploring one."""
    alpha: float = 7.0
    """How steeply the ladder falls."""

    def __post_init__(self) -> None:
        """Refuse a base that is no probability, and a rising ladder."""
        _check_probability("base", self.base)
        if not 0.0 <= self.alpha < float("inf"):
            raise ConfigError(
                f"exploration.alpha must be a finite number of at least 0, got {self.alpha}"
            )

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return each environment's rung, whatever the step."""
        share = environments / max(total_environments - 1, 1)
        return self.base ** (1.0 + self.alpha * share)
