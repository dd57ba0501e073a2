"""Configuration of actors (YAML: `data.actors`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lrl.processes.supervisor import check_at_least, check_supervision
from lrl.types import ConfigError

_MAX_GROUPS = 32  # each takes two file descriptors, of which a fork server passes on few


@dataclass(frozen=True)
class ActorConfig:
    """How many actors run, where, and what happens when one fails."""

    section: ClassVar[str] = "actors"

    num_actors: int = 2
    """Actor processes per rank; 0 steps the environments inside the learner (synchronous mode)."""
    envs_per_actor: int = 8
    """Environments stepped by each actor."""
    on_failure: Literal["restart", "fail"] = "restart"
    """What to do when an actor dies or hangs: start it again, or end the run."""
    max_restarts: int = 5
    """Restarts of one actor within any 60 seconds before the run ends; or in a row at its start."""
    timeout_seconds: float = 60.0
    """An actor that makes no progress for so long is killed. A start has twice as long, and ten
    minutes while it uses processor time. The evaluator, if there is one, has ten times as long."""
    start_method: Literal["auto", "forkserver", "spawn"] = "auto"
    """How processes start; `auto` is forkserver where the system has it, else spawn."""
    chunk_rows: int = 64
    """Rows an actor collects before it sends them; a chunk older than 0.25 s goes out anyway."""
    chunks_per_actor: int = 4
    """Chunks in an actor's ring; the actor waits when all are full."""
    groups: int = 1
    """Groups of an actor's environments, each with a request of its own to an inference server:
    one group steps while the others wait for their actions. Above 1 only with inference servers."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_supervision(self)
        check_at_least(
            self, num_actors=0, envs_per_actor=1, groups=1, chunk_rows=1, chunks_per_actor=2
        )
        if self.groups > _MAX_GROUPS:
            raise ConfigError(f"actors.groups must be at most {_MAX_GROUPS}, got {self.groups}")
        if self.envs_per_actor % self.groups:
            raise ConfigError(
                f"actors.envs_per_actor {self.envs_per_actor} cannot be divided into actors.groups "
                f"{self.groups} of equal size"
            )
        if self.start_method not in ("auto", "forkserver", "spawn"):
            raise ConfigError(
                f"actors.start_method {self.start_method!r} is not supported (threads of torch and "
                "ALE do not survive a fork); use 'auto', 'forkserver' or 'spawn'"
            )

    @property
    def envs_per_group(self) -> int:
        """Environments whose observations make one request for actions."""
        return self.envs_per_actor // self.groups
