"""The nodes of a cluster: what is installed there, and which of them are avoided for a while."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import NamedTuple

import gymnasium

from lrl.envs import EnvConfig

_AVOID_SECONDS = 60.0
_NODE = "ray.io/node-id"


class Welcome(NamedTuple):
    """What an actor or server says of where it is."""

    node: str
    """Ray's name of the node."""
    host: str
    pid: int
    versions: dict[str, str]


def welcome(packages: Sequence[str]) -> Welcome:
    """Say where this process is, and which versions of packages are here."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return Welcome(node, platform.node(), os.getpid(), _installed(packages))


class Nodes:
    """What the learner knows of the nodes.

    Args:
        packages: Names of packages that must have the same versions on all of them.
    """

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = list(packages)
        self._versions = _installed(packages)
        self._avoided: dict[str, float] = {}

    def difference(self, there: Mapping[str, str]) -> str:
        """Say which package has another version there than here; empty if none has."""
        for name, here in self._versions.items():
            if (other := there.get(name, "none")) != here:
                return (
                    f"{name} {other} is installed there and {here} here; all nodes need the same "
                    f"versions of {', '.join(self._versions)}"
                )
        return ""

    def avoid(self, node: str) -> None:
        """Place nothing there for a minute."""
        self._avoided[node] = time.monotonic() + _AVOID_SECONDS

    def selector(self, labels: Mapping[str, str]) -> dict[str, str] | None:
        """Return labels, and that of no node that is avoided, as Ray takes them."""
        now = time.monotonic()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        avoided = {_NODE: f"!in({', '.join(self._avoided)})"} if self._avoided else {}
        return {**avoided, **labels} or None


def packages_of(env: EnvConfig) -> list[str]:
    """Return the packages that must be the same on all nodes, the environment's among them."""
    registering, _, env_id = env.id.rpartition(":")
    spec = gymnasium.registry.get(env_id)
    makers = [env.factory] if env.factory else [registering, spec and spec.entry_point]
    names = ["lrl", "torch", "numpy", "gymnasium"]
    for maker in makers:
        path = (getattr(maker, "__module__", "") if callable(maker) else maker) or ""
        names += packages_distributions().get(re.split("[.:]", path)[0], ())
        if path.startswith("lrl.envs.minatar"):
            names.append("minatar")
    return list(dict.fromkeys(names))


def _installed(packages: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
