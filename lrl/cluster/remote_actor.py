"""What runs in an actor on a cluster: it acts when it is called, and answers with its rows."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from lrl.actors.actor import Actor
from lrl.actors.exploration import Exploration
from lrl.actors.policy import SubscribedPolicy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.networks import NetworkRecipe
from lrl.networks.q_network import vector_size
from lrl.types import Column, EnvSpec, Rows

_LONGEST_SECONDS = 0.25
_COUNTERS = ("env_steps", "frames", "episodes", "rows", "wait_seconds")


@dataclass(frozen=True)
class RemotePlan:
    """All that an actor on a cluster is told; sent to it once.

    Attributes:
        run: Which run it belongs to, a number drawn at its start.
        slot: Its place in the run.
        chunk_rows: Rows after which it answers.
    """

    run: int
    slot: ActorSlot
    env: EnvConfig
    spec: EnvSpec
    exploration: Exploration
    recipe: NetworkRecipe
    chunk_rows: int
    env_steps_offset: int


class Welcome(NamedTuple):
    """What an actor says of where it is."""

    node: str
    """Ray's name of the node."""
    host: str
    pid: int
    versions: dict[str, str]


class Answer(NamedTuple):
    """What an actor made in one call."""

    run: int
    actor: int
    incarnation: int
    number: int
    """Of the call within the incarnation, from 0 on."""
    columns: dict[str, npt.NDArray[np.generic]]
    episodes: list[tuple[float, int, float]]
    """Raw return, environment steps and start value of each that ended."""
    counters: dict[str, float]
    """Of the whole incarnation, by the names in `_COUNTERS`."""
    checksum: int

    def computed_checksum(self) -> int:
        """Return the checksum of what arrived."""
        head = (*self[:4], self.episodes, sorted(self.counters.items()))
        total = zlib.crc32(repr(head).encode())
        for name, column in self.columns.items():
            total = zlib.crc32(name.encode(), total)
            total = zlib.crc32(np.ascontiguousarray(column).view(np.uint8).data, total)
        return total


class HeldWeights:
    """The newest weights that an actor was called with."""

    def __init__(self, num_parameters: int) -> None:
        self.version = -1
        self._vector = np.empty(num_parameters, np.float32)

    def take(self, vector: npt.NDArray[np.float32], version: int) -> None:
        """Copy them out of Ray's memory, which stays taken as long as somebody looks at it."""
        self._vector[:] = vector
        self.version = version

    def read(self, out: npt.NDArray[np.float32], newer_than: int = -1) -> int | None:
        """Copy them; return their version, or None if it is not newer."""
        if self.version <= newer_than:
            return None
        out[:] = self._vector
        return self.version


class Collected:
    """Rows of one call; the actor's sink.

    Args:
        expected: Columns of a row.
    """

    def __init__(self, expected: Mapping[str, Column]) -> None:
        self.rows = 0
        self.episodes: list[tuple[float, int, float]] = []
        self._expected = expected
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def put(self, rows: Rows) -> None:
        """Copy rows."""
        columns = rows.complete(self._expected)
        self._parts.append({name: columns[name].copy() for name in self._expected})
        self.rows += len(rows)

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Keep the figures of an episode."""
        self.episodes.append((episode_return, length, start_value))

    def take(self) -> tuple[dict[str, npt.NDArray[Any]], list[tuple[float, int, float]]]:
        """Return what was collected since the last call, the rows by columns."""
        parts, episodes = self._parts, self.episodes
        self._parts, self.episodes, self.rows = [], [], 0
        names = self._expected if parts else ()
        return {name: np.concatenate([part[name] for part in parts]) for name in names}, episodes


class RemoteActor:
    """An actor in one of Ray's processes. Whoever calls it is its supervisor: Ray restarts none."""

    def meet(self, packages: Sequence[str]) -> Welcome:
        """Say where it is, and which versions of packages are there."""
        import ray

        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        node = ray.get_runtime_context().get_node_id()
        return Welcome(node, platform.node(), os.getpid(), installed(packages))

    def begin(self, plan: RemotePlan, vector: npt.NDArray[np.float32], version: int) -> None:
        """Build environments and network."""
        torch.set_num_threads(1)
        slot = plan.slot
        torch.manual_seed(slot.policy_seed())
        network = plan.recipe.build()
        self._plan, self._weights = plan, HeldWeights(vector_size(network))
        self._weights.take(vector, version)
        self._sink = Collected(plan.spec.row_columns())
        self._actor = Actor(
            make_envs(plan.env, slot.envs_per_actor, training=True),
            SubscribedPolicy(network, self._weights),
            plan.exploration,
            self._sink,
            slot,
            reward_clip=plan.env.reward_clip,
            env_steps_offset=plan.env_steps_offset,
        )
        self._number = 0
        self._counters: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._answered: float | None = None

    def act(self, vector: npt.NDArray[np.float32] | None, version: int) -> Answer:
        """Act until there are enough rows, or for a quarter of a second.

        Args:
            vector: Newer weights, None if there are none.
            version: Theirs.
        """
        began, counters = time.monotonic(), self._counters
        if self._answered is not None:
            counters["wait_seconds"] += began - self._answered
        if vector is not None:
            self._weights.take(vector, version)
        while True:
            made = self._actor.step()
            counters["env_steps"] += made
            counters["frames"] += made * self._plan.spec.frame_skip
            is_full = self._sink.rows >= self._plan.chunk_rows
            if is_full or time.monotonic() - began > _LONGEST_SECONDS:
                break
        counters["rows"] += self._sink.rows
        counters["episodes"] += len(self._sink.episodes)
        slot, (columns, episodes) = self._plan.slot, self._sink.take()
        answer = Answer(
            self._plan.run, slot.actor, slot.incarnation, self._number, columns, episodes,
            dict(counters), 0,
        )  # fmt: skip
        self._number += 1
        answer = answer._replace(checksum=answer.computed_checksum())
        self._answered = time.monotonic()
        return answer


def packages_of(env: EnvConfig) -> list[str]:
    """Return the packages that must be the same on all nodes, the environment's among them."""
    spec = gymnasium.registry.get(env.id)
    made_by = env.factory or (spec.entry_point if spec else None) or ""
    module = str(made_by).partition(".")[0].partition(":")[0]
    return ["lrl", "torch", "numpy", "gymnasium", *packages_distributions().get(module, ())]


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed here."""
    found: dict[str, str] = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
