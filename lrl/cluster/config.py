"""Configuration of actors on a Ray cluster (YAML: `data.cluster`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from lrl.parts.settings import check_types, is_a
from lrl.processes.supervisor import check_at_least
from lrl.types import ConfigError

_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")
_LEAST = 0.0001
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:{_WORD}/)?{_WORD}"
_SELECTOR = rf"!?(?:{_WORD}|in\({_WORD}(?:, ?{_WORD})*\))"


def _check_quantity(name: str, value: float) -> None:
    """Check what Ray counts in parts of 0.0001."""
    if not (is_a(value, float) and (value == 0 or _LEAST <= value < float("inf"))):
        raise ConfigError(
            f"cluster.{name} must be 0 or a finite number from {_LEAST} on, got {value!r}"
        )


@dataclass(frozen=True)
class ClusterConfig:
    """Which cluster, how many actors it has, and what each of them needs there.

    What else is said of actors is in `actors`: environments of each, rows of a chunk, restarts.
    """

    section: ClassVar[str] = "cluster"

    address: str | None = None
    """Head node of a running cluster, host:port. Null starts Ray on this machine alone, for this
    run, and ends it with the run."""
    num_actors: int = 2
    """Actors per rank on the cluster. Those for which it has no room wait until nodes join."""
    num_cpus: float = 1.0
    """Ray's CPUs that each takes, 0 to count none."""
    resources: dict[str, float] = field(default_factory=dict)
    """Ray's own resources that each takes, by name."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that may have actors, as Ray's label selectors have them."""
    spread: bool = True
    """Spread them over the nodes; otherwise Ray packs them."""
    calls_per_actor: int = 2
    """Chunks that are asked of an actor before the learner has taken the first; it then waits."""
    silence_seconds: float = 15.0
    """An actor or inference server that answers no call for so long is given up, and its node
    avoided for a minute. A call of an actor takes the time of `actors.chunk_rows` rows, at most
    0.25 s or one step, and a second more where a server does not answer."""
    object_store_mib: int = 256
    """Memory for objects of a Ray that is started here."""
    i_know_this_network_is_private: bool = False
    """Join a cluster without authentication: whoever reaches it can run any code on its nodes."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_types(self, "cluster")
        check_at_least(self, num_actors=1, calls_per_actor=1, object_store_mib=80)
        if self.address is not None and not re.fullmatch(r"[^\s:/]+:\d+", self.address):
            raise ConfigError(
                f"cluster.address must be host:port of the cluster's head node, or null, got "
                f"{self.address!r}"
            )
        self._check_resources()
        self._check_labels()
        if not self.silence_seconds >= 3:
            raise ConfigError(
                f"cluster.silence_seconds must be at least 3, got {self.silence_seconds}"
            )

    def _check_resources(self) -> None:
        _check_quantity("num_cpus", self.num_cpus)
        for name, value in self.resources.items():
            if name in _OF_RAY:
                raise ConfigError(
                    f"cluster.resources has {name!r}, which Ray counts itself: give custom "
                    "resources there, and CPUs as cluster.num_cpus"
                )
            if not (isinstance(name, str) and name):
                raise ConfigError(f"cluster.resources has {name!r}, but names are text")
            _check_quantity(f"resources {name!r}", value)

    def _check_labels(self) -> None:
        is_own = self.address is None
        for key, value in self.labels.items():
            if not re.fullmatch(_KEY, str(key)):
                raise ConfigError(
                    f"cluster.labels has the key {key!r}; one is made of letters, digits, '-', "
                    "'_' and '.', perhaps after a prefix and '/'"
                )
            if not (isinstance(value, str) and re.fullmatch(_SELECTOR, value)):
                raise ConfigError(
                    f"cluster.labels {key!r} must be a value, '!value', 'in(a, b)' or '!in(a, b)', "
                    f"got {value!r}"
                )
            if is_own and (key.startswith("ray.io/") or not re.fullmatch(_WORD, value)):
                raise ConfigError(
                    f"cluster.labels {key!r}: {value!r} chooses among nodes, but a Ray that is "
                    "started here (cluster.address null) has one, which is given these labels: "
                    "leave it out, or give a key and value of your own"
                )
