"""Configuration of the replay buffer (YAML: `data.replay`)."""

from __future__ import annotations

from dataclasses import dataclass

from lrl.types import ConfigError


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept and how transitions are made of it."""

    capacity: int = 100_000
    """Rows kept per rank, over all streams; the oldest are overwritten."""
    batch_size: int = 32
    """Transitions in a batch, per rank."""
    n_step: int = 1
    """Environment steps whose rewards are summed before bootstrapping."""
    gamma: float = 0.99
    """Discount of one environment step."""
    device: str = "cpu"
    """Where rows are stored and batches are made: `cpu`, `cuda`, `cuda:1`."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("capacity", "batch_size", "n_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replay.{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"replay.gamma must be between 0 and 1, got {self.gamma}")
        if self.batch_size > self.capacity:
            raise ConfigError(
                f"replay.batch_size {self.batch_size} is above replay.capacity {self.capacity}"
            )
