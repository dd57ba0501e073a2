"""Configuration of the replay (YAML: `data.replay`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from lrl.parts.settings import check_section, check_types
from lrl.replay.samplers import Sampler, UniformSampler
from lrl.replay.sequences import SequenceConfig
from lrl.schedules import Schedule, ends_of
from lrl.types import ConfigError


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept and how transitions are made of it."""

    capacity: int = 100_000
    """Rows kept per rank, over all streams; the oldest are overwritten."""
    batch_size: int = 512
    """Transitions in a batch, per rank, or sequences. Small networks learn fastest from large
    batches; for images 32 is usual, and 64 sequences."""
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
    index: str = "host"
    """Where rows are chosen for a batch: on the `host`, or, with `PrioritizedSampler`, on the
    `device`, in the learner step itself, which is for captured steps on a GPU (docs/speed.md)."""
    memory_map: str | None = None
    """Folder on a fast disk of this machine, in a file of which frames are kept instead of in
    memory; the file has no name and goes with the run."""
    sequences: SequenceConfig | None = None
    """How rows are cut into sequences, through which an agent with a core (`model.core`) is
    unrolled; null learns from single transitions."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if not callable(self.sampler):
            raise ConfigError(
                f"replay.sampler must be a class or a functools.partial of one, got "
                f"{self.sampler!r}: each buffer builds a sampler of its own"
            )
        check_types(self, "replay")
        if self.sequences is not None:
            check_section("replay.sequences", self.sequences, SequenceConfig)
        self._check_annealed()
        for name in ("capacity", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replay.{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_size > self.capacity:
            raise ConfigError(
                f"replay.batch_size {self.batch_size} is above replay.capacity {self.capacity}"
            )
        check_index(self.index, self.sequences)
        if self.memory_map is not None and self.device != "cpu":
            raise ConfigError(
                f"replay.memory_map is {self.memory_map}, but replay.device is {self.device}: "
                "frames are kept in one place; set device to cpu, or memory_map to null"
            )

    def _check_annealed(self) -> None:
        for name in ("n_step", "gamma"):
            value = getattr(self, name)
            if not isinstance(value, (Real, Schedule)):
                raise ConfigError(
                    f"replay.{name} is {value!r:.100}, but must be a number or a schedule of "
                    "learner steps, such as lrl.schedules.Linear(...)"
                )
        for n_step in ends_of(self.n_step):
            if round(n_step) < 1:
                raise ConfigError(f"replay.n_step must be at least 1, got {round(n_step)}")
        for gamma in ends_of(self.gamma):
            if not 0.0 <= gamma <= 1.0:
                raise ConfigError(f"replay.gamma must be between 0 and 1, got {gamma}")


def check_index(index: str, sequences: SequenceConfig | None) -> None:
    """Check where rows are chosen.

    Raises:
        ConfigError: There is no such place, or sequences cannot be drawn there.
    """
    if index not in ("host", "device"):
        raise ConfigError(f"replay.index must be 'host' or 'device', got {index!r}")
    if index == "device" and sequences is not None:
        raise ConfigError(
            "replay.index is device, which draws single transitions, but replay.sequences is set: "
            "set index to host"
        )
