"""Schedules: pure functions from a step to a float, for exploration and annealing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from lrl.parts.settings import is_a
from lrl.types import ConfigError


class Schedule(ABC):
    """A value that depends on a step count alone."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the value at a step (0 is the start of the run)."""


def value_at(setting: float | Schedule, step: int) -> float:
    """Return a setting's value at a step: a number is the same at all steps."""
    return setting(step) if isinstance(setting, Schedule) else setting


def ends_of(setting: float | Schedule) -> tuple[float, float]:
    """Return a setting's values at the start and at the end, between which the others lie."""
    return value_at(setting, 0), value_at(setting, 2**62)


def _check_numbers(schedule: Constant | Linear | Exponential) -> None:
    for field in fields(schedule):
        if not is_a(value := getattr(schedule, field.name), float):
            raise ConfigError(
                f"{type(schedule).__name__}.{field.name} is {value!r:.100}, but must be a number"
            )


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step.

    Example:
        >>> Constant(0.1)(10**9)
        0.1
    """

    value: float

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        _check_numbers(self)

    def __call__(self, step: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """`start` until step `begin`, a straight line over `duration` steps, `end` afterwards.

    Example:
        >>> schedule = Linear(start=1.0, end=0.1, duration=90, begin=10)
        >>> [round(schedule(step), 3) for step in (0, 10, 55, 100, 1000)]
        [1.0, 1.0, 0.55, 0.1, 0.1]
    """

    start: float
    """Value up to step `begin`."""
    end: float
    """Value from step `begin` + `duration` on."""
    duration: int
    """Steps from `start` to `end`."""
    begin: int = 0
    """Step at which the line begins."""

    def __post_init__(self) -> None:
        """Refuse what is no number, no slope and a line that begins before the run."""
        _check_numbers(self)
        if self.duration < 1:
            raise ConfigError(f"duration must be at least 1 step, got {self.duration}")
        if self.begin < 0:
            raise ConfigError(f"begin must be at least step 0, got {self.begin}")

    def __call__(self, step: int) -> float:
        """Return the value at a step."""
        done = max(step - self.begin, 0)
        if done >= self.duration:
            return self.end
        return self.start + (self.end - self.start) * done / self.duration


@dataclass(frozen=True)
class Exponential(Schedule):
    """A geometric course from `start` to `end` over `duration` steps, `end` afterwards.

    Each step multiplies the distance to `limit` by the same factor. With `limit` 0 that is the
    value itself; for a discount take 1, so that the horizon 1 / (1 - gamma) grows evenly.

    Reference: Schwarzer et al. 2023, "Bigger, Better, Faster", https://arxiv.org/abs/2305.19452,
    section 3, for annealing n-step and discount.

    Example:
        >>> n_step, gamma = Exponential(10.0, 2.5, 100), Exponential(0.96, 0.99, 100, limit=1.0)
        >>> [(n_step(step), round(gamma(step), 3)) for step in (0, 50, 100, 1000)]
        [(10.0, 0.96), (5.0, 0.98), (2.5, 0.99), (2.5, 0.99)]
    """

    start: float
    """Value at step 0."""
    end: float
    """Value from step `duration` on."""
    duration: int
    """Steps from `start` to `end`."""
    limit: float = 0.0
    """Value that the schedule would approach without end; 1 for a discount."""

    def __post_init__(self) -> None:
        """Refuse what is no number, no slope and ends between which the limit lies."""
        _check_numbers(self)
        if self.duration < 1:
            raise ConfigError(f"duration must be at least 1 step, got {self.duration}")
        if not (self.start - self.limit) * (self.end - self.limit) > 0:
            raise ConfigError(
                f"start {self.start} and end {self.end} must both be above or both be below limit "
                f"{self.limit}, which an exponential schedule never reaches"
            )

    def __call__(self, step: int) -> float:
        """Return the value at a step."""
        if step <= 0:
            return self.start
        if step >= self.duration:
            return self.end
        distance, last = self.start - self.limit, self.end - self.limit
        return self.limit + distance * (last / distance) ** (step / self.duration)
