"""The thread that makes those calls of Ray that wait for a cluster's head node."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


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

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """Return what a call returns, and raise what it raises.

        Raises:
            concurrent.futures.TimeoutError: It has not returned by then; it goes on.
        """
        return self.later(call).result(seconds)

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
