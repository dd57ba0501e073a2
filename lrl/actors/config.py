"""Configuration of actors (YAML: `data.actors`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lrl.parts.renamed import knows_old_names
from lrl.parts.settings import check_types
from lrl.processes.supervisor import check_at_least, check_supervision
from lrl.transport.layout import MOST_CHUNKS
from lrl.types import ConfigError


@knows_old_names
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

    def __post_init__(self) -> None:
        """Check ranges."""
        check_types(self, "actors")
        check_supervision(self)
        check_at_least(self, num_actors=0, envs_per_actor=1, chunk_rows=1, chunks_per_actor=2)
        chunks = self.chunks_per_actor
        if chunks > MOST_CHUNKS:
            raise ConfigError(
                f"actors.chunks_per_actor must be at most {MOST_CHUNKS}, got {chunks}"
            )
        if self.start_method not in ("auto", "forkserver", "spawn"):
            raise ConfigError(
                f"actors.start_method {self.start_method!r} is not supported (threads of torch and "
                "ALE do not survive a fork); use 'auto', 'forkserver' or 'spawn'"
            )
