"""Configuration of inference servers (YAML: `data.inference`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lrl.actors.config import ActorConfig
from lrl.inference.requests import MAX_SLOTS
from lrl.parts.renamed import knows_old_names
from lrl.parts.settings import check_types
from lrl.processes.supervisor import check_at_least, check_supervision
from lrl.types import ConfigError

_MAX_GROUPS = 32  # each takes two file descriptors, of which a fork server passes on few


@knows_old_names
@dataclass(frozen=True)
class InferenceConfig:
    """Servers that compute the action values of all actors in batches (central inference).

    Reference: Espeholt et al. 2020, "SEED RL", https://arxiv.org/abs/1910.06591.
    """

    section: ClassVar[str] = "inference"

    num_servers: int = 1
    """Inference servers per rank; requests of the actors' groups are dealt out to them in turn."""
    groups_per_actor: int = 1
    """Groups of an actor's environments, each with a request of its own: one group steps while the
    others wait for their actions."""
    batch_size: int | None = None
    """Observations in a batch at most, and at which it runs at once; a request (one of an actor's
    groups of environments) is never split. Null is one group of each actor that a server serves:
    with `groups_per_actor` 1 all that can ask."""
    max_batch_delay_seconds: float = 0.01
    """A batch that is not full runs when its oldest request has waited for so long; best above the
    time that the network takes."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices of the servers, dealt out in turn: `cpu`, `cuda` (the GPU of the rank), `cuda:1`."""
    sync_period_seconds: float = 0.0
    """Least time between two updates of a server's weights; 0 takes every published version."""
    num_threads: int = 1
    """Threads of torch in each server, on a CPU."""
    on_failure: Literal["restart", "fail"] = "restart"
    """What to do when a server dies or hangs: start it again, or end the run."""
    max_restarts: int = 5
    """Restarts of one within any 60 seconds before the run ends; or in a row at its start."""
    timeout_seconds: float = 60.0
    """A server that makes no progress for so long is killed. A start has twice as long, and ten
    minutes while it uses processor time."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_types(self, "inference")
        check_supervision(self)
        if self.num_servers < 1:
            raise ConfigError(
                f"inference.num_servers must be at least 1, got {self.num_servers}: where actors "
                "compute their own action values, inference is null"
            )
        check_at_least(self, groups_per_actor=1, num_threads=1)
        if self.groups_per_actor > _MAX_GROUPS:
            raise ConfigError(
                f"inference.groups_per_actor must be at most {_MAX_GROUPS}, got "
                f"{self.groups_per_actor}"
            )
        if self.batch_size is not None:
            check_at_least(self, batch_size=1)
        for name in ("max_batch_delay_seconds", "sync_period_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"inference.{name} must be at least 0, got {getattr(self, name)}")
        if isinstance(self.devices, str):
            raise ConfigError(
                f"inference.devices must be a list, such as [{self.devices}], got {self.devices!r}"
            )
        if not 1 <= len(self.devices) <= self.num_servers:
            raise ConfigError(
                f"inference.devices {list(self.devices)} must name at least one device, and no "
                f"more than inference.num_servers {self.num_servers}"
            )

    @property
    def busy_threads(self) -> int:
        """Cores of this machine that the servers of a rank keep busy."""
        return sum(
            self.num_threads if self.device_of(server) == "cpu" else 1
            for server in range(self.num_servers)
        )

    def device_of(self, server: int) -> str:
        """Return a server's device."""
        return self.devices[server % len(self.devices)]

    def groups(self, actors: ActorConfig) -> int:
        """Return the groups of environments of all actors."""
        return actors.num_actors * self.groups_per_actor

    def envs_per_group(self, actors: ActorConfig) -> int:
        """Return the environments whose observations make one request for actions."""
        return actors.envs_per_actor // self.groups_per_actor

    def slots_of(self, server: int, actors: ActorConfig) -> list[int]:
        """Return the groups, numbered over all actors, that a server works for."""
        return list(range(server, self.groups(actors), self.num_servers))

    def requests_per_batch(self, server: int, actors: ActorConfig) -> int:
        """Return how many requests make a full batch of a server."""
        if self.batch_size is None:
            return len({s // self.groups_per_actor for s in self.slots_of(server, actors)})
        return self.batch_size // self.envs_per_group(actors)

    def check(self, actors: ActorConfig) -> None:
        """Check that servers and batches fit the actors.

        Raises:
            ConfigError: They do not.
        """
        if actors.num_actors == 0:
            raise ConfigError(
                "actors.num_actors is 0 (synchronous mode), but data.inference has servers, which "
                "serve actors in the background: raise num_actors, or set data.inference to null"
            )
        if actors.envs_per_actor % self.groups_per_actor:
            raise ConfigError(
                f"actors.envs_per_actor {actors.envs_per_actor} cannot be divided into "
                f"inference.groups_per_actor {self.groups_per_actor} of equal size"
            )
        groups = self.groups(actors)
        if self.num_servers > groups:
            raise ConfigError(
                f"inference.num_servers {self.num_servers} is more than the {groups} groups of "
                "environments (actors.num_actors x groups_per_actor): some would have nothing to do"
            )
        most = len(self.slots_of(0, actors))
        if most > MAX_SLOTS:
            raise ConfigError(
                f"inference.num_servers {self.num_servers} leaves {most} groups of environments "
                f"to one server, which can serve {MAX_SLOTS}: raise it"
            )
        if self.batch_size is None:
            return
        rows = self.envs_per_group(actors)
        fewest = rows * len(self.slots_of(self.num_servers - 1, actors))
        if self.batch_size < rows:
            raise ConfigError(
                f"inference.batch_size {self.batch_size} is below the {rows} observations of one "
                "request, which is never split: raise it, or groups_per_actor"
            )
        if self.batch_size > fewest:
            raise ConfigError(
                f"inference.batch_size {self.batch_size} is more than the {fewest} environments "
                "that one server works for: every batch would wait for the whole delay; lower "
                "it, or leave it null"
            )
