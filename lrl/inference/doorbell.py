"""A doorbell between processes: bytes that wake whoever waits."""

from __future__ import annotations

import contextlib
import select
import socket

_FIRST_BEYOND_SELECT = 1024  # a descriptor


class Doorbell:
    """One process waits, any number ring; killing any of them harms no other.

    Created by the learner, which keeps both ends, so that they outlive the processes that use
    them; picklable while child processes are started. Every ring is a byte of its own: nothing is
    locked, and a reader that dies between two bytes leaves the others whole.
    """

    def __init__(self) -> None:
        self._inside, self._button = socket.socketpair()
        self._button.setblocking(False)

    def ring(self, token: int = 0) -> None:
        """Wake the waiting process; 0 to 255 tells it why.

        Rings that nobody takes are dropped when the buffer is full (a few hundred).
        """
        with contextlib.suppress(BlockingIOError):
            self._button.send(bytes((token,)))

    def wait(self, timeout: float) -> bytes:
        """Return all tokens that came, at once if there are some; empty after `timeout` seconds."""
        # A socket's own time-out is rounded up to whole milliseconds, as poll's is.
        if self._inside.fileno() < _FIRST_BEYOND_SELECT or not hasattr(select, "poll"):
            ready, _, _ = select.select([self._inside], [], [], timeout)
        else:
            poll = select.poll()
            poll.register(self._inside, select.POLLIN)
            ready = poll.poll(1000 * timeout)
        return self._inside.recv(4096) if ready else b""

    def close(self) -> None:
        """Close this process's copies of both ends. Idempotent."""
        self._inside.close()
        self._button.close()

    def __getstate__(self) -> tuple[socket.socket, socket.socket]:
        return self._inside, self._button

    def __setstate__(self, state: tuple[socket.socket, socket.socket]) -> None:
        self._inside, self._button = state
        self._button.setblocking(False)
