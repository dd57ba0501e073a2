"""What runs in an inference server on a cluster: action values for actors, in batches."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lrl.actors.actor import Decision
from lrl.actors.policy import SubscribedPolicy
from lrl.cluster.nodes import Welcome, welcome
from lrl.cluster.weights import HeldWeights
from lrl.inference.figures import LATENCY_EDGES
from lrl.networks import NetworkRecipe
from lrl.networks.q_network import vector_size
from lrl.types import Memory, Observation, leaves_of, map_leaves

_MAX_FAILURES = 3  # in a row


@dataclass(frozen=True)
class RemoteServerPlan:
    """All that a server on a cluster is told; sent to it once.

    Attributes:
        recipe: Builds the network.
        batch_requests: Requests in a full batch.
        max_batch_delay_seconds: How long the oldest request waits for a batch to fill.
        device: Where the network runs.
        num_threads: Threads of torch.
        seed: Seed of the noise in noisy layers.
    """

    recipe: NetworkRecipe
    batch_requests: int
    max_batch_delay_seconds: float
    device: str
    num_threads: int
    seed: int


class _Request(NamedTuple):
    time: float
    rows: int
    observation: Observation
    memory: Memory | None
    answer: asyncio.Future[Decision]


class RemoteServer:
    """An inference server in one of Ray's processes.

    Its calls share one thread, that of Ray's event loop: while the network computes a batch, those
    of the next one wait. Whoever calls it is its supervisor: Ray restarts none.
    """

    def meet(self, packages: Sequence[str]) -> Welcome:
        """Say where it is, and which versions of packages are there."""
        return welcome(packages)

    def begin(self, plan: RemoteServerPlan, vector: npt.NDArray[np.float32], version: int) -> None:
        """Build the network."""
        torch.set_num_threads(plan.num_threads)
        torch.manual_seed(plan.seed)
        network = plan.recipe.build().to(plan.device)
        self._plan, self._weights = plan, HeldWeights(vector_size(network))
        self._weights.take(vector, version)
        self._policy = SubscribedPolicy(network, self._weights, plan.device, noise_per_row=True)
        self._waiting: list[_Request] = []
        self._delay: asyncio.TimerHandle | None = None
        self._errors: list[Exception] = []
        """Of the last batches, those in a row."""
        self._counters: dict[str, Any] = {
            "batches": 0,
            "requests": 0,
            "capacity": 0,
            "failures": 0,
            "latency": np.zeros(len(LATENCY_EDGES) + 1, np.int64),
        }

    def update(self, vector: npt.NDArray[np.float32] | None, version: int) -> dict[str, Any]:
        """Take newer weights, if there are any; return the counters.

        Args:
            vector: The weights.
            version: Theirs.

        Raises:
            Exception: The network failed three times in a row.
        """
        if len(self._errors) >= _MAX_FAILURES:
            raise self._errors[-1]
        self._weights.take(vector, version)
        return copy.deepcopy(self._counters)

    async def decide(self, observation: Observation, memory: Memory | None) -> Decision:
        """Return action values, the policy version that gave them, and what it remembers.

        Args:
            observation: `[environments, *observation_shape]`.
            memory: What the policy remembered, None if it remembers nothing.
        """
        loop = asyncio.get_running_loop()
        rows = len(next(iter(leaves_of(observation).values())))
        request = _Request(time.monotonic(), rows, observation, memory, loop.create_future())
        self._waiting.append(request)
        if len(self._waiting) >= self._plan.batch_requests:
            self._run_batch()
        elif len(self._waiting) == 1:
            self._delay = loop.call_later(self._plan.max_batch_delay_seconds, self._run_batch)
        return await request.answer

    def _run_batch(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        taken, self._waiting = self._waiting, []
        try:
            observation, memory = (
                map_leaves(lambda *parts: np.concatenate(parts), *values)
                for values in zip(*((r.observation, r.memory) for r in taken), strict=True)
            )
            decision = self._policy(observation, memory)
        except Exception as error:
            self._counters["failures"] += 1
            self._errors.append(error)
            for request in taken:
                request.answer.set_exception(error)
            return
        self._errors.clear()
        first = 0
        for request in taken:
            own = slice(first, first := first + request.rows)
            memory = map_leaves(lambda leaf, own=own: leaf[own], decision.memory)
            request.answer.set_result(Decision(decision.values[own], decision.version, memory))
        self._count(taken)

    def _count(self, taken: Sequence[_Request]) -> None:
        counters, now = self._counters, time.monotonic()
        counters["batches"] += 1
        counters["requests"] += len(taken)
        counters["capacity"] += self._plan.batch_requests
        latency = now - np.array([request.time for request in taken])
        np.add.at(counters["latency"], np.searchsorted(LATENCY_EDGES, latency), 1)
