"""The server's side of requests: which wait, in their order of arrival, and their answers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.actors.actor import Decision
from lrl.inference.figures import LATENCY_EDGES
from lrl.inference.requests import RequestSlots
from lrl.types import Memory, Observation, leaves_from, named


@dataclass(frozen=True)
class Taken:
    """Requests that make a batch.

    Attributes:
        slots: Their slots, `[requests]`.
        asked: Their fields when they were taken, `[requests]`.
        observation: Their observations, `[requests * rows, *observation_shape]`; overwritten when
            the next batch is taken.
        memory: What their policies remembered, `[requests * rows, ...]`; overwritten likewise.
        waiting: Requests that were waiting, these included.
    """

    slots: npt.NDArray[np.int64]
    asked: npt.NDArray[np.void]
    observation: Observation
    memory: Memory | None
    waiting: int


class RequestQueue:
    """Requests that wait for one server; lives in the server's process.

    What an earlier server of these slots left unanswered waits from the beginning.

    Args:
        slots: The server's slots.
        batch_requests: Requests in a batch at most.
    """

    def __init__(self, slots: RequestSlots, batch_requests: int) -> None:
        views = slots.layout.views(slots.block)
        self._asked, self._reply = views.asked, views.reply
        self._question, self._answer = views.question, views.answer
        self.counters = views.server
        self._bell, self._reply_bells = slots.bell, slots.reply_bells
        self._waiting: deque[int] = deque()
        self._batch_requests = batch_requests
        self._batch = {
            name: np.empty((batch_requests, *array.shape[1:]), array.dtype)
            for name, array in self._question.items()
        }
        for bell in self._reply_bells:  # the server before may have died before it rang
            bell.ring()
        self._look()

    @property
    def stop_requested(self) -> bool:
        """Whether the learner asked the server to finish."""
        return bool(self.counters["stop"][0])

    @property
    def is_full(self) -> bool:
        """Whether as many requests wait as a batch can hold."""
        return len(self._waiting) >= self._batch_requests

    def seconds_waited(self) -> float | None:
        """Return how long the oldest request has waited; None if there is none."""
        if not self._waiting:
            return None
        return time.monotonic() - float(self._asked["time"][self._waiting[0]])

    def collect(self, timeout: float) -> None:
        """Take in what arrives, at once if there is something, or after at most `timeout` s."""
        self.counters["heartbeat"] = time.monotonic()
        tokens = self._bell.wait(timeout)
        if not tokens and timeout > 0:
            self._look()  # a ring may have been dropped
        for slot in tokens:
            is_known = slot < len(self._asked)  # a token is any byte
            if is_known and slot not in self._waiting and self._is_open(slot):
                self._waiting.append(slot)

    def take(self) -> Taken:
        """Return the oldest requests, as many as a batch can hold."""
        count = min(len(self._waiting), self._batch_requests)
        waiting = len(self._waiting)
        slots = np.array([self._waiting.popleft() for _ in range(count)])
        asked = self._asked[slots]  # a copy, made before the observations are read
        batch: dict[str, npt.NDArray[Any]] = {}
        for name, array in self._question.items():
            out = self._batch[name][:count]
            # "clip", because the default copies through a buffer of its own; the slots are in range
            np.take(array, slots, axis=0, out=out, mode="clip")
            batch[name] = out.reshape(-1, *out.shape[2:])
        observation, memory = (
            leaves_from("observation", batch),
            leaves_from("memory", batch) or None,
        )
        return Taken(slots, asked, observation, memory, waiting)

    def answer(self, taken: Taken, decision: Decision, lag: int) -> None:
        """Give a batch its action values.

        Args:
            taken: The batch.
            decision: What the policy says of it.
            lag: Learner steps by which a newer version was published.
        """
        given = {"values": decision.values, **named("next_memory", decision.memory or {})}
        for name, place in self._answer.items():
            place[taken.slots] = given[name].reshape(len(taken.slots), *place.shape[1:])
        self._reply_to(taken, decision.version, failed=False)
        batches, both = int(self.counters["batches"][0]), self.counters["sums"][0]
        both[(batches + 1) % 2] = both[batches % 2]
        sums = both[(batches + 1) % 2]
        sums["requests"] += len(taken.slots)
        sums["capacity"] += self._batch_requests
        sums["waiting"] += taken.waiting
        sums["lag"] += lag
        latency = time.monotonic() - taken.asked["time"]
        np.add.at(sums["latency"], np.searchsorted(LATENCY_EDGES, latency), 1)
        self.counters["batches"] = batches + 1  # last: now the learner reads these sums

    def fail(self, taken: Taken) -> None:
        """Tell a batch that there are no values for it."""
        self.counters["failures"] += 1
        self._reply_to(taken, version=-1, failed=True)

    def _reply_to(self, taken: Taken, version: int, failed: bool) -> None:
        reply, slots = self._reply, taken.slots
        reply["version"][slots] = version
        reply["failed"][slots] = failed
        reply["incarnation"][slots] = taken.asked["incarnation"]
        reply["number"][slots] = taken.asked["number"]  # last: the others belong to it
        for slot in slots:
            self._reply_bells[slot].ring()

    def _is_open(self, slot: int) -> bool:
        asked, reply = self._asked[slot], self._reply[slot]
        return (asked["incarnation"], asked["number"]) != (reply["incarnation"], reply["number"])

    def _look(self) -> None:
        """Take in every open request, the oldest first, whether its ring was heard or not."""
        unseen = [
            slot
            for slot in range(len(self._asked))
            if slot not in self._waiting and self._is_open(slot)
        ]
        self._waiting.extend(sorted(unseen, key=lambda slot: self._asked["time"][slot]))
