"""Schedules: pure functions from a step to a float, for exploration and annealing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lrl.types import ConfigError


class Schedule(ABC):
    """A value that depends on a step count alone."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the value at a step (0 is the start of the run)."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step.

    Example:
        >>> Constant(0.1)(10**9)
        0.1
    """

    value: float

    def __call__(self, step: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from `start` to `end` over `duration` steps, `end` afterwards.

    Example:
        >>> schedule = Linear(start=1.0, end=0.1, duration=90)
        >>> [round(schedule(step), 3) for step in (0, 45, 90, 1000)]
        [1.0, 0.55, 0.1, 0.1]
    """

    start: float
    end: float
    duration: int

    def __post_init__(self) -> None:
        """Refuse a duration without a slope."""
        if self.duration < 1:
            raise ConfigError(f"duration must be at least 1 step, got {self.duration}")

    def __call__(self, step: int) -> float:
        """Return the value at a step."""
        if step >= self.duration:
            return self.end
        return self.start + (self.end - self.start) * max(step, 0) / self.duration
