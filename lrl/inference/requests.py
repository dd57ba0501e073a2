"""Requests for action values: shared memory between groups of environments and their server.

Every group has a slot. It writes observations there and rings the server's doorbell with its
slot's number; the server writes action values and rings back. The truth is in the slots: a request
that has no reply yet is seen by a restarted server too, and a reply names the incarnation and the
number of the request it belongs to, so that a late one is recognised.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.inference.doorbell import Doorbell
from lrl.inference.figures import LATENCY_EDGES
from lrl.processes.shared_memory import SharedBlock
from lrl.types import Column, EnvSpec, Memory, Observation, leaves_from, leaves_of, named

MAX_SLOTS = 256
"""Slots of one server: a ring of its doorbell is one byte."""

_SLOT_BYTES = 128  # a cache line for the request's fields, one for the reply's
_ASKED = np.dtype([("incarnation", "i8"), ("number", "i8"), ("time", "f8")])
_REPLY = np.dtype(
    [("incarnation", "i8"), ("number", "i8"), ("version", "i8"), ("failed", "i8")]
)  # fmt: skip
_SUMS = np.dtype(
    [
        ("requests", "i8"),
        ("capacity", "i8"),  # requests that the batches could have held
        ("waiting", "i8"),  # requests that were waiting when a batch began
        ("lag", "i8"),  # learner steps between the newest version and the one used
        ("latency", "i8", len(LATENCY_EDGES) + 1),  # requests by their latency
    ]
)
_SERVER = np.dtype(
    [
        ("stop", "i8"),  # 1 asks the server to finish; written by the learner, all else by servers
        ("heartbeat", "f8"),  # time.monotonic() of the last sign of life; 0 before the first
        ("failures", "i8"),  # batches
        ("batches", "i8"),
        ("sums", _SUMS, 2),  # over the batches if their number is even, and if it is odd
    ]
)


@dataclass(frozen=True)
class RequestLayout:
    """Where everything lies in a server's slots.

    Attributes:
        spec: Says what observations, memory and action values look like.
        slots: Number of slots.
        rows: Observations of one request.
    """

    spec: EnvSpec
    slots: int
    rows: int

    @property
    def nbytes(self) -> int:
        """Size of the shared memory."""
        columns = (*self._question().values(), *self._answer().values())
        return self._offset + sum(self._bytes_of(column) for column in columns)

    def views(self, block: SharedBlock) -> RequestViews:
        """Return the arrays in a block of `nbytes`."""
        fields = block.array(np.uint8, (self.slots, 2, 64), _aligned(_SERVER.itemsize))
        arrays: dict[str, npt.NDArray[Any]] = {}
        offset = self._offset
        for name, column in (self._question() | self._answer()).items():
            shape = (self.slots, self.rows, *column.shape)
            arrays[name] = block.array(column.type, shape, offset)
            offset += self._bytes_of(column)
        return RequestViews(
            server=block.array(_SERVER, 1).view(_SERVER),
            asked=fields[:, 0, : _ASKED.itemsize].view(_ASKED)[:, 0],
            reply=fields[:, 1, : _REPLY.itemsize].view(_REPLY)[:, 0],
            question={name: arrays[name] for name in self._question()},
            answer={name: arrays[name] for name in self._answer()},
        )

    def _question(self) -> dict[str, Column]:
        leaves = self.spec.observation.items()
        observation = {name: Column(leaf.dtype, leaf.stacked_shape) for name, leaf in leaves}
        return named("observation", observation) | named("memory", self.spec.memory)

    def _answer(self) -> dict[str, Column]:
        values = {"values": Column("float32", (self.spec.num_actions,))}
        return values | named("next_memory", self.spec.memory)

    @property
    def _offset(self) -> int:
        return _aligned(_SERVER.itemsize) + self.slots * _SLOT_BYTES

    def _bytes_of(self, column: Column) -> int:
        return _aligned(self.slots * self.rows * column.nbytes)


@dataclass(frozen=True)
class RequestViews:
    """The arrays of all slots, in shared memory.

    Attributes:
        server: The server's signs of life and counters, by name; `[1]`.
        asked: Incarnation and number of each slot's latest request, and when it was made.
        reply: Incarnation and number of the request that was answered last, the policy version
            of its values, and whether the network failed.
        question: Observations and memory, `[slots, rows, ...]` each, written by the actors.
        answer: Action values, float32 `[slots, rows, actions]`, and the memory after them, written
            by the server.
    """

    server: npt.NDArray[np.void]
    asked: npt.NDArray[np.void]
    reply: npt.NDArray[np.void]
    question: dict[str, npt.NDArray[Any]]
    answer: dict[str, npt.NDArray[Any]]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


class RequestSlots:
    """The slots of one server with all their doorbells; created by the learner.

    They outlive servers and actors. Picklable while a server is started; an actor gets the
    `client` of its slot only.

    Args:
        layout: Sizes.

    Raises:
        ConfigError: There is not enough memory.
    """

    def __init__(self, layout: RequestLayout) -> None:
        self.layout = layout
        self.block = SharedBlock(
            layout.nbytes, "lower actors.envs_per_actor, or the number of actors"
        )
        self.server = layout.views(self.block).server
        self.bell = Doorbell()
        self.reply_bells = [Doorbell() for _ in range(layout.slots)]

    def client(self, slot: int) -> RequestEnd:
        """Return the actor's half of a slot."""
        return RequestEnd(self.layout, self.block, slot, self.bell, self.reply_bells[slot])

    def counted(self) -> dict[str, Any]:
        """Return the server's batches, and its sums over them, as after the last whole batch."""
        while True:  # the next batch is counted elsewhere; the one after it, where these lie
            batches = int(self.server["batches"][0])
            sums = self.server["sums"][0, batches % 2].copy()
            if self.server["batches"][0] == batches:
                return {"batches": batches} | {name: sums[name] for name in _SUMS.names or ()}

    def close(self) -> None:
        """Let go of memory and doorbells. Idempotent."""
        self.block.close()
        self.bell.close()
        for bell in self.reply_bells:
            bell.close()


@dataclass(frozen=True)
class RequestEnd:
    """What an actor process needs to make requests; picklable while it is started."""

    layout: RequestLayout
    block: SharedBlock
    slot: int
    server_bell: Doorbell
    reply_bell: Doorbell


@dataclass(frozen=True)
class Reply:
    """A server's answer to one request.

    Attributes:
        values: Action values, float32 `[rows, actions]`.
        version: The policy version that gave them.
        failed: Whether the network raised an error; the values are then meaningless.
        memory: What the policy remembers after it.
    """

    values: npt.NDArray[np.float32]
    version: int
    failed: bool
    memory: Memory | None


class Requester:
    """Makes one slot's requests, in the actor process; at most one is open at a time.

    Args:
        end: The actor's half of the slot.
        incarnation: Of the actor.
    """

    def __init__(self, end: RequestEnd, incarnation: int) -> None:
        views = end.layout.views(end.block)
        self._slot = end.slot
        self._server_bell = end.server_bell
        self._reply_bell = end.reply_bell
        self._asked = views.asked[end.slot : end.slot + 1]
        self._reply = views.reply[end.slot : end.slot + 1]
        self._question = {name: array[end.slot] for name, array in views.question.items()}
        self._answer = {name: array[end.slot] for name, array in views.answer.items()}
        self._incarnation = incarnation
        self._number = 0

    def ask(self, observation: Observation, memory: Memory | None = None) -> None:
        """Send observations `[rows, *observation_shape]`; a reply to an earlier one is void.

        Args:
            observation: What the values are asked of.
            memory: What the policy remembers.

        Raises:
            ValueError: They have another type or shape than the slot.
        """
        given = named("observation", leaves_of(observation)) | named("memory", memory or {})
        for name, place in self._question.items():
            if given[name].dtype != place.dtype or given[name].shape != place.shape:
                raise ValueError(
                    f"{name} is {given[name].dtype}{list(given[name].shape)}, "
                    f"expected {place.dtype}{list(place.shape)}"
                )
            np.copyto(place, given[name])
        self._number += 1
        # In this order: a server sees the request when its number has changed.
        self._asked["incarnation"] = self._incarnation
        self._asked["time"] = time.monotonic()
        self._asked["number"] = self._number
        self._server_bell.ring(self._slot)

    def wait(self, timeout: float) -> Reply | None:
        """Return the reply to the latest request; None if it did not come in `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            remaining = deadline - time.monotonic()
            rung = self._reply_bell.wait(max(remaining, 0.0))
            reply = self._reply[0]
            if (reply["incarnation"], reply["number"]) == (self._incarnation, self._number):
                answer = {name: array.copy() for name, array in self._answer.items()}
                memory = leaves_from("next_memory", answer) or None
                failed = bool(reply["failed"])
                return Reply(answer["values"], int(reply["version"]), failed, memory)
            if not rung and remaining <= 0:
                return None
