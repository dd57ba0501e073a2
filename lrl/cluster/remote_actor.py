"""What runs in an actor on a cluster: it acts when it is called, and answers with its rows."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lrl.actors.actor import Actor, BehaviourPolicy
from lrl.actors.exploration import Exploration
from lrl.actors.policy import SubscribedPolicy
from lrl.actors.slot import ActorSlot
from lrl.cluster.asked_policy import AskedPolicy, NoAnswer
from lrl.cluster.nodes import Welcome, welcome
from lrl.cluster.weights import HeldWeights
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
        recipe: Builds its network; None if servers compute its action values.
        groups: Groups of its environments, each with requests of its own.
        chunk_rows: Rows after which it answers.
    """

    run: int
    slot: ActorSlot
    env: EnvConfig
    spec: EnvSpec
    exploration: Exploration
    recipe: NetworkRecipe | None
    groups: int
    chunk_rows: int
    env_steps_offset: int


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

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.columns.get("kind", ()))

    def computed_checksum(self) -> int:
        """Return the checksum of what arrived."""
        head = (*self[:4], self.episodes, sorted(self.counters.items()))
        total = zlib.crc32(repr(head).encode())
        for name, column in self.columns.items():
            total = zlib.crc32(name.encode(), total)
            total = zlib.crc32(np.ascontiguousarray(column).view(np.uint8).data, total)
        return total


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
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return welcome(packages)

    def begin(self, plan: RemotePlan, vector: npt.NDArray[np.float32] | None, version: int) -> None:
        """Build environments and network, and begin the first episodes.

        Args:
            plan: What is told to it.
            vector: Weights; None if servers compute its action values.
            version: Theirs.
        """
        torch.set_num_threads(1)
        torch.manual_seed(plan.slot.policy_seed())
        self._plan = plan
        self._sink = Collected(plan.spec.row_columns())
        self._asked_policies: list[AskedPolicy] = []
        self._weights: HeldWeights | None = None
        if plan.recipe is None:
            self._asked_policies = [AskedPolicy(plan.spec.memory) for _ in range(plan.groups)]
            policies: Sequence[BehaviourPolicy] = self._asked_policies
        else:
            network = plan.recipe.build()
            self._weights = HeldWeights(vector_size(network))
            self._weights.take(vector, version)
            policies = [SubscribedPolicy(network, self._weights)] * plan.groups
        slots = plan.slot.split(plan.groups)
        self._actors = [self._actor(*each) for each in zip(slots, policies, strict=True)]
        self._number = 0
        self._counters: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._answered: float | None = None
        for actor in self._actors:
            actor.begin()

    def act(
        self,
        vector: npt.NDArray[np.float32] | None,
        version: int,
        servers: Sequence[tuple[int, Any]] | None,
    ) -> Answer:
        """Act until there are enough rows, or for a quarter of a second.

        Without an answer of a server it goes no further, and says what it made until then.

        Args:
            vector: Newer weights, None if there are none.
            version: Theirs.
            servers: Who computes the action values of each group from now on, with its
                incarnation; None where they are the same as before.
        """
        began, counters = time.monotonic(), self._counters
        if self._answered is not None:
            counters["wait_seconds"] += began - self._answered
        if self._weights is not None:
            self._weights.take(vector, version)
        for policy, (incarnation, server) in zip(self._asked_policies, servers or (), strict=False):
            policy.ask_from_now_on(server, incarnation)
        with contextlib.suppress(NoAnswer):
            while time.monotonic() - began < _LONGEST_SECONDS or not self._sink.rows:
                self._step()
                if self._sink.rows >= self._plan.chunk_rows:
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

    def _actor(self, slot: ActorSlot, policy: BehaviourPolicy) -> Actor:
        plan = self._plan
        return Actor(
            make_envs(plan.env, slot.envs_per_actor, training=True),
            policy,
            plan.exploration,
            self._sink,
            slot,
            reward_clip=plan.env.reward_clip,
            env_steps_offset=plan.env_steps_offset,
        )

    def _step(self) -> None:
        for actor in self._actors:
            made = actor.step()
            actor.prefetch()
            self._counters["env_steps"] += made
            self._counters["frames"] += made * self._plan.spec.frame_skip
