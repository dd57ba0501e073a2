"""Request slots with their actors, and a server without a network; processes import this module."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.actors.actor import Decision
from lrl.inference.doorbell import Doorbell
from lrl.inference.request_queue import RequestQueue, Taken
from lrl.inference.requests import RequestEnd, Requester, RequestSlots
from lrl.processes.helpers import interrupt_blocked
from lrl.types import EnvSpec

ECHO_SPEC = EnvSpec.box(observation_shape=(2,), observation_dtype="float32", num_actions=2)
"""As many actions as numbers in an observation, which then serves as its own values."""

Array = npt.NDArray[np.float32]


class Clock:
    """Stands for the module `time`: it only moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.module = SimpleNamespace(monotonic=lambda: self.now, sleep=time.sleep)


def in_background(function: Callable[..., Any], *args: object) -> Future[Any]:
    """Call in a thread that nobody has to wait for."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def signed(slot: int, number: int, rows: int = 1) -> Array:
    """Observations that tell whose they are."""
    return np.full((rows, 2), (slot, number), np.float32)


def observation_of(slot: int, number: int, rows: int, size: int) -> Array:
    """Random observations that can be made again: those of one request."""
    return np.random.default_rng((slot, number)).standard_normal((rows, size), np.float32)


def requesters(slots: RequestSlots, incarnation: int = 0) -> list[Requester]:
    return [Requester(slots.client(slot), incarnation) for slot in range(slots.layout.slots)]


def values_of(requester: Requester) -> list | None:
    """Return the reply's values, if it has come."""
    reply = requester.wait(0.0)
    return None if reply is None else reply.values.tolist()


def take_all(queue: RequestQueue) -> Taken:
    """Take in what has arrived, and then a batch."""
    queue.collect(0.0)
    return queue.take()


def echo(queue: RequestQueue, taken: Taken, version: int = 0) -> None:
    """Answer with the observations themselves."""
    queue.answer(taken, Decision(taken.observation.view(np.float32), version), lag=0)


class Echo:
    """A server in a thread that answers with observations, while in the context."""

    def __init__(self, slots: RequestSlots, batch_requests: int = 2) -> None:
        self.queue = RequestQueue(slots, batch_requests)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.queue.collect(0.01)
            if self.queue.seconds_waited() is not None:
                echo(self.queue, self.queue.take())


# --- What runs in processes -----------------------------------------------------------------


def start(method: str, target: Callable[..., object], *args: object) -> BaseProcess:
    context = multiprocessing.get_context(method)
    process = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
        target=target, args=args, daemon=True
    )
    with interrupt_blocked():
        process.start()
    return process


def finish(process: BaseProcess) -> int | None:
    """Wait for a process, forget it and return its exit code."""
    process.join(30)
    code = process.exitcode
    process.kill()
    process.join()
    process.close()
    return code


def ring_forever(bell: Doorbell) -> None:
    while True:
        bell.ring(7)


def wait_forever(bell: Doorbell, ready: Doorbell) -> None:
    while True:
        ready.ring(9)
        bell.wait(0.1)


def ask_forever(end: RequestEnd, incarnation: int) -> None:
    """Ask an echo until killed; fail at the first reply that belongs to something else."""
    requester = Requester(end, incarnation)
    number = 0
    while True:
        number += 1
        observation = signed(1000 * end.slot + incarnation, number, end.layout.rows)
        requester.ask(observation)
        reply = requester.wait(30.0)
        assert reply is not None
        np.testing.assert_array_equal(reply.values, observation)


def ask_many(end: RequestEnd, count: int, result: Connection) -> None:
    """Make requests 1 to `count`, and send all versions and values that came."""
    requester = Requester(end, incarnation=0)
    size = end.layout.spec.observation_shape[0]
    replies = []
    for number in range(1, count + 1):
        requester.ask(observation_of(end.slot, number, end.layout.rows, size))
        reply = requester.wait(30.0)
        assert reply is not None
        assert not reply.failed
        replies.append(reply)
    with closing(result):
        result.send(([r.version for r in replies], np.stack([r.values for r in replies])))
