"""Configuration of the replay buffer (YAML: `data.replay`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lrl.replay.samplers import Sampler, UniformSampler
from lrl.schedules import Schedule
from lrl.types import ConfigError

_ENDS = (0, 2**62)
"""Learner steps between which a schedule's values are taken to lie."""


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept and how transitions are made of it."""

    capacity: int = 100_000
    """Rows kept per rank, over all streams; the oldest are overwritten."""
    batch_size: int = 512
    """Transitions in a batch, per rank. Small networks learn fastest from large batches; for images
    32 is usual."""
    n_step: int | Schedule = 5
    """Environment steps whose rewards are summed before bootstrapping; a schedule of learner
    steps, rounded to the nearest integer, anneals it."""
    gamma: float | Schedule = 0.995
    """Discount of one environment step, or a schedule of learner steps."""
    sampler: Callable[[], Sampler] = UniformSampler
    """Which rows are drawn: `UniformSampler`, `PrioritizedSampler` or `RankSampler`."""
    device: str = "cpu"
    """Where rows are stored and batches are made: `cpu`, or with a learner on a GPU `cuda` (that
    of the rank) or `cuda:1`."""
    memory_map: str | None = None
    """Folder on a fast disk of this machine, in a file of which frames are kept instead of in
    memory; the file has no name and goes with the run."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("capacity", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replay.{name} must be at least 1, got {getattr(self, name)}")
        for step in _ENDS:
            if self.n_step_at(step) < 1:
                raise ConfigError(f"replay.n_step must be at least 1, got {self.n_step_at(step)}")
            if not 0.0 <= self.gamma_at(step) <= 1.0:
                raise ConfigError(
                    f"replay.gamma must be between 0 and 1, got {self.gamma_at(step)}"
                )
        if self.batch_size > self.capacity:
            raise ConfigError(
                f"replay.batch_size {self.batch_size} is above replay.capacity {self.capacity}"
            )
        if self.memory_map is not None and self.device != "cpu":
            raise ConfigError(
                f"replay.memory_map is {self.memory_map}, but replay.device is {self.device}: "
                "frames are kept in one place; set device to cpu, or memory_map to null"
            )
        if not callable(self.sampler):
            raise ConfigError(
                f"replay.sampler must be a class or a functools.partial of one, got "
                f"{self.sampler!r}: each buffer builds a sampler of its own"
            )

    def n_step_at(self, learner_steps: int) -> int:
        """Return `n_step` after so many learner steps.

        Example:
            >>> from lrl.schedules import Linear
            >>> config = ReplayConfig(n_step=Linear(10.0, 3.0, 1000))
            >>> [config.n_step_at(step) for step in (0, 500, 2000)]
            [10, 6, 3]
        """
        return round(_value(self.n_step, learner_steps))

    def gamma_at(self, learner_steps: int) -> float:
        """Return `gamma` after so many learner steps."""
        return _value(self.gamma, learner_steps)

    @property
    def largest_n_step(self) -> int:
        """The larger end of `n_step`, for which the capacity has to suffice."""
        return max(self.n_step_at(step) for step in _ENDS)


def _value(setting: float | Schedule, step: int) -> float:
    return setting(step) if isinstance(setting, Schedule) else setting
