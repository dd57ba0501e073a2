"""Exploration: from action values to the actions an actor takes.

Numpy only. Every environment draws its own decision from the actor's generator, and `select` is
the one place where actors honour action masks. Where an action is a choice in each of several
branches, an exploration is asked for each branch in turn (`in_branches`) and knows of one only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lrl.parts.settings import check_positive, check_section
from lrl.schedules import Linear, Schedule
from lrl.types import ActionSpec, ConfigError

Mask: TypeAlias = "npt.NDArray[np.bool_] | None"
"""Allowed actions `[environments, actions]`; None allows all."""


class Moment(NamedTuple):
    """When and where actions are chosen."""

    env_steps: int
    """Environment steps of the whole run so far, as the actor estimates them."""
    environments: npt.NDArray[np.int64]
    """Indices of the environments among those of all actors and ranks."""
    total_environments: int
    """Number of environments of all actors and ranks."""
    rng: np.random.Generator
    """The actor's generator."""
    mask: Mask = None
    """Allowed actions `[environments, actions]`, at least one for each environment; None allows
    all."""


class Exploration(ABC):
    """Choose actions.

    It keeps nothing between two calls: what it draws comes from the actor's generator, whose state
    is saved.
    """

    @abstractmethod
    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return the action of each environment, never a forbidden one.

        Args:
            q: Action values `[environments, actions]`.
            moment: When and where they are.
        """

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a uniformly random action for each environment; see `Moment`.

        It is what `train/epsilon` shows: 0 where exploration is of another kind.
        """
        return np.zeros(len(environments))

    def check_actors(self, num_actors: int) -> None:  # noqa: B027 (most explorations fit any)
        """Check that the exploration fits a number of actors, those of all ranks.

        Raises:
            ConfigError: It does not.
        """


def greedy_actions(q: npt.NDArray[np.floating], mask: Mask = None) -> npt.NDArray[np.int32]:
    """Return the best allowed action of each row, the first one if they tie.

    Example:
        >>> greedy_actions(np.array([[1.0, 9.0, 2.0]]), np.array([[True, False, True]]))
        array([2], dtype=int32)
    """
    values = q if mask is None else np.where(mask, q, -np.inf)
    return values.argmax(axis=1).astype(np.int32)


def best_values(
    q: npt.NDArray[np.floating], mask: Mask, spec: ActionSpec
) -> npt.NDArray[np.floating]:
    """Return the value of the best allowed action of each row: over branches, the mean of theirs.

    Example:
        >>> q, mask = np.array([[1.0, 9.0, 2.0]]), np.array([[True, False, True]])
        >>> best_values(q, mask, ActionSpec((3,))), best_values(q, mask, ActionSpec((2, 1)))
        (array([2.]), array([1.5]))
    """
    parts = zip(spec.split(q), spec.split(mask), strict=True)
    best = [
        (values if allowed is None else np.where(allowed, values, -np.inf)).max(axis=1)
        for values, allowed in parts
    ]
    return best[0] if len(best) == 1 else np.mean(best, axis=0)


def in_branches(
    choose: Callable[[Any, Any], npt.NDArray[np.int32]],
    q: npt.NDArray[np.floating],
    mask: Mask,
    spec: ActionSpec,
) -> npt.NDArray[np.int32]:
    """Return a choice in each branch, `[environments, branches]`, or in the only one.

    Args:
        choose: From the values and the mask of one branch to choices `[environments]`.
        q: Values of all choices `[environments, values]`.
        mask: Which of them are allowed; None for all.
        spec: The actions.

    Example:
        >>> in_branches(greedy_actions, np.array([[1.0, 9.0, 2.0]]), None, ActionSpec((2, 1)))
        array([[1, 0]], dtype=int32)
    """
    if len(spec.branches) == 1:
        return choose(q, mask)
    parts = zip(spec.split(q), spec.split(mask), strict=True)
    return np.stack([choose(values, allowed) for values, allowed in parts], axis=1)


def random_actions(
    count: int, num_actions: int, rng: np.random.Generator, mask: Mask
) -> npt.NDArray[np.int32]:
    """Return uniformly random allowed actions `[count]`."""
    if mask is None:
        return rng.integers(num_actions, size=count, dtype=np.int32)
    return greedy_actions(rng.random((count, num_actions)), mask)


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"exploration.{name} must be between 0 and 1, got {value}")


def _ends(name: str, schedule: Schedule) -> tuple[tuple[str, float], ...]:
    """Name the values between which a schedule moves, if it is one."""
    if not callable(schedule):
        raise ConfigError(
            f"exploration.{name} is {schedule!r:.100}, but must be a schedule of environment "
            "steps, such as lrl.schedules.Constant(0.1)"
        )
    return (" (its start)", schedule(0)), (" (its end)", schedule(2**62))


@dataclass(frozen=True)
class Greedy(Exploration):
    """Always the best action: for networks whose noisy layers explore by themselves."""

    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return the best allowed actions."""
        return greedy_actions(q, moment.mask)


@dataclass(frozen=True)
class Boltzmann(Exploration):
    """Draw actions from softmax(q / temperature)."""

    temperature: Schedule
    """Temperature as a function of the environment steps of the whole run, in units of the action
    values: differences far below it count for nothing, differences far above it decide alone."""

    def __post_init__(self) -> None:
        """Refuse temperatures that are not above 0."""
        for end, value in _ends("temperature", self.temperature):
            check_positive(f"exploration.temperature{end}", value)

    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return softmax samples among the allowed actions; see `Exploration.select`."""
        # The largest of q / temperature + Gumbel noise is a sample of the softmax. Multiplied by
        # the temperature, nothing can overflow.
        noise = moment.rng.gumbel(size=q.shape)
        return greedy_actions(q + self.temperature(moment.env_steps) * noise, moment.mask)


@dataclass(frozen=True)
class Mixture(Exploration):
    """Each environment decides at every step by which of two explorations it acts.

    With a schedule this moves from one to the other; mixtures may be nested.
    """

    first: Exploration
    """Acts where `second` does not."""
    second: Exploration
    """Acts with probability `share`."""
    share: Schedule
    """Probability of `second` as a function of the environment steps of the whole run."""

    def __post_init__(self) -> None:
        """Refuse shares that are no probabilities, and parts that are no explorations."""
        for name in ("first", "second"):
            check_section(f"exploration.{name}", getattr(self, name), Exploration)
        for end, value in _ends("share", self.share):
            _check_probability(f"share{end}", value)

    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return what one of the two selects, decided for each environment on its own."""
        first, second = self.first.select(q, moment), self.second.select(q, moment)
        by_second = moment.rng.random(len(q)) < self.share(moment.env_steps)
        return np.where(by_second, second, first)

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the mean of both, weighted by the share."""
        first, second = (
            part.epsilons(env_steps, environments, total_environments)
            for part in (self.first, self.second)
        )
        share = self.share(env_steps)
        return (1.0 - share) * first + share * second

    def check_actors(self, num_actors: int) -> None:
        """Check both."""
        self.first.check_actors(num_actors)
        self.second.check_actors(num_actors)


@dataclass(frozen=True)
class PerActor(Exploration):
    """Each actor has an exploration of its own, for all of its environments.

    Actors are counted over all ranks, rank by rank; the synchronous mode counts as one actor per
    rank. A spread or a ladder counts only the environments of its actor, a schedule the
    environment steps of the whole run.
    """

    explorations: list[Exploration]
    """One for each actor of all ranks, in their order."""

    def __post_init__(self) -> None:
        """Refuse what are no explorations."""
        if not self.explorations or not all(isinstance(e, Exploration) for e in self.explorations):
            raise ConfigError(
                "exploration.explorations must be a list of explorations, one for each actor, got "
                f"{self.explorations!r}"
            )

    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return what each environment's exploration selects; see `Exploration.select`."""
        actions = np.zeros(len(q), np.int32)
        of_actors = self._actors(moment.environments, moment.total_environments)
        for exploration, chosen, own, count in of_actors:
            mask = None if moment.mask is None else moment.mask[chosen]
            here = moment._replace(environments=own, total_environments=count, mask=mask)
            actions[chosen] = exploration.select(q[chosen], here)
        return actions

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the epsilons of each environment's exploration."""
        epsilons = np.zeros(len(environments))
        for exploration, chosen, own, count in self._actors(environments, total_environments):
            epsilons[chosen] = exploration.epsilons(env_steps, own, count)
        return epsilons

    def check_actors(self, num_actors: int) -> None:
        """Check that there is one exploration for each actor."""
        if len(self.explorations) != num_actors:
            raise ConfigError(
                f"exploration.explorations has {len(self.explorations)} explorations for "
                f"{num_actors} actors: give one for each actor of all ranks "
                "(data.actors.num_actors times the ranks; synchronous mode has one per rank)"
            )
        for exploration in self.explorations:
            exploration.check_actors(1)

    def _actors(
        self, environments: npt.NDArray[np.int64], total_environments: int
    ) -> Iterator[tuple[Exploration, npt.NDArray[np.bool_], npt.NDArray[np.int64], int]]:
        """Yield of each actor its exploration, which environments are its own, and their places.

        The places are indices among the environments of that actor, whose number comes last.
        """
        count = total_environments // len(self.explorations)
        actors = environments // count
        for actor in np.unique(actors):
            chosen = actors == actor
            yield self.explorations[actor], chosen, environments[chosen] % count, count


class EpsilonExploration(Exploration):
    """The best action, or with probability epsilon a random one; subclasses say which epsilon."""

    @abstractmethod
    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a random action for each environment; see `Moment`."""

    def select(self, q: npt.NDArray[np.float32], moment: Moment) -> npt.NDArray[np.int32]:
        """Return greedy and uniformly random actions; see `Exploration.select`."""
        env_steps, environments, total_environments, rng, mask = moment
        epsilons = self.epsilons(env_steps, environments, total_environments)
        explore = rng.random(len(q)) < epsilons
        at_random = random_actions(len(q), q.shape[1], rng, mask)
        return np.where(explore, at_random, greedy_actions(q, mask))


@dataclass(frozen=True)
class EpsilonGreedy(EpsilonExploration):
    """The same epsilon in every environment, following a schedule of environment steps."""

    schedule: Schedule = field(default_factory=lambda: Linear(1.0, 0.02, 50_000))
    """Epsilon as a function of the environment steps of the whole run."""

    def __post_init__(self) -> None:
        """Refuse values that are no probabilities."""
        for end, value in _ends("schedule", self.schedule):
            _check_probability(f"schedule{end}", value)

    def epsilons(
        self, env_steps: int, environments: npt.NDArray[np.int64], total_environments: int
    ) -> npt.NDArray[np.float64]:
        """Return the scheduled value for every environment."""
        return np.full(len(environments), self.schedule(env_steps))


@dataclass(frozen=True)
class EpsilonSpread(EpsilonExploration):
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
class EpsilonLadder(EpsilonExploration):
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
