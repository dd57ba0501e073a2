"""A cluster's head node: the thread that waits for it, what it says, how long it says nothing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from lrl.actors.manager import ActorError

T = TypeVar("T")
_ASK_SECONDS = 5.0
_SILENCE_SECONDS = 15.0
"""After these it is lost; after a minute Ray itself ends the process, whatever that is doing."""


class _News(NamedTuple):
    total: dict[str, float]
    free: dict[str, float]
    nodes: list[dict[str, Any]]


class RayThread:
    """Makes one call after the other, so that nobody has to wait for them longer than they like.

    Where a head node is silent, Ray's calls return late or never, and Python handles no signal
    while its main thread is in one. The thread lives as long as the membership of a cluster: the
    kernel ends the processes that `ray.init` started together with the thread that called it.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Let a call be made after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_calls, name="ray", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self) -> None:
        """Let the thread end after the calls that wait."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _make_calls(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


class Head:
    """Asks the head node every few seconds, and waits for no answer.

    Args:
        ray: The module.
        later: Lets another thread make a call.

    Attributes:
        is_lost: Whether it was silent for too long.
    """

    def __init__(self, ray: Any, later: Callable[[Callable[[], _News]], Future[_News]]) -> None:
        self.is_lost = False
        self._ray = ray
        self._later = later
        self._answer: Future[_News] | None = None
        self._news: _News | None = None
        self._asked_at = self._silent_since = 0.0

    def look_after(self, absent_seconds: float) -> None:
        """Take an answer, or ask.

        Args:
            absent_seconds: For which nobody looked, and which count as no silence.

        Raises:
            ActorError: It has been silent for too long.
        """
        now = time.monotonic()
        if self._answer is None:
            if now - self._asked_at >= _ASK_SECONDS:
                self._asked_at = self._silent_since = now
                self._answer = self._later(self._ask)
            return
        self._silent_since += absent_seconds
        cause = f"it has answered nothing for {now - self._silent_since:.0f} s"
        if self._answer.done():
            if (error := self._answer.exception()) is None:
                self._news, self._answer = self._answer.result(), None
                return
            self._answer = self._later(self._ask)
            cause = f"{type(error).__name__}: {error}"
        if now - self._silent_since > _SILENCE_SECONDS:
            self.is_lost = True
            raise ActorError(
                f"the head node of the Ray cluster cannot be reached: {cause}; with another "
                "one the run goes on from its newest checkpoint (--ckpt_path last)"
            )

    def room(self, labels: Mapping[str, str]) -> str:
        """Say how much of what Ray counts is free, and how the nodes are labelled.

        Args:
            labels: Of which keys.
        """
        if self._news is None:
            return "unknown"
        total, free, nodes = self._news
        kinds = [name for name in sorted(total) if ":" not in name and "memory" not in name]
        parts = [f"{free.get(name, 0.0):g} of {total[name]:g} {name}" for name in kinds]
        text = ", ".join(parts) or "none"
        for key in labels:
            found = sorted({node["Labels"].get(key, "not set") for node in nodes if node["Alive"]})
            text += f"; of the nodes, {key} is {', '.join(found)}"
        return text

    def _ask(self) -> _News:
        ray = self._ray
        return _News(ray.cluster_resources(), ray.available_resources(), ray.nodes())
