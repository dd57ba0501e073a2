"""Signals that wait for a safe place: between steps the first time, at once the second."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from lrl.processes.ending import ending

AT_ONCE = "at once"
"""Argument of an exception that was raised in the middle of something."""
_REPEATED_SECONDS = 2.0
"""SIGTERMs within this time are one: a scheduler and a shell may both pass it on."""


class Interrupt:
    """Turn the first SIGINT into a KeyboardInterrupt at the next call of `check`.

    Between two batches everything that a checkpoint holds is consistent; in the middle of an
    optimiser step it is not. A second SIGINT raises at once. Lightning does the same with the
    first SIGTERM; here a second one raises at once, too, and SIGHUP, which comes when a terminal is
    closed, is passed on as SIGTERM. Lives in the learner process.

    Attributes:
        requested: Whether a SIGINT waits for `check`.
        terminated: Whether a SIGTERM came to one of several ranks, which stop together.
    """

    def __init__(self) -> None:
        self.requested = self.terminated = False
        self._found: Any = signal.default_int_handler
        self._previous: Any = None
        self._sigterm: Any = None  # Lightning's handler
        self._sigterm_at = 0.0
        self._raises = True
        self._exception: type[BaseException] = KeyboardInterrupt

    @property
    def asked(self) -> int:
        """The signal that asks one of several ranks for the end; 0 if there is none."""
        return signal.SIGTERM if self.terminated else signal.SIGINT if self.requested else 0

    def install(self) -> None:
        """Take over SIGINT, if this is the main thread and nobody else has."""
        is_main = threading.current_thread() is threading.main_thread()
        # Our own where Lightning has put it back, which it does after `on_exception`.
        before = signal.getsignal(signal.SIGINT)
        if is_main and before in (signal.default_int_handler, ending.handle, self._handle):
            self.requested = self.terminated = False  # whatever an earlier run was asked for
            signal.signal(signal.SIGINT, self._handle)
            self._found = self._found if before == self._handle else before
            self._previous = self._found

    def watch_sigterm(self, exception: type[BaseException], *, raises: bool = True) -> None:
        """Raise an exception at a second SIGTERM, where a step or an episode does not end.

        Call this after Lightning has taken SIGTERM over. SIGHUP is passed on as one.

        Args:
            exception: What is raised.
            raises: Whether that is done; a rank to which another may pass SIGTERM on leaves it to
                that one.
        """
        self._raises = raises
        if threading.current_thread() is threading.main_thread() and self._sigterm is None:
            self._sigterm_at, self._exception = 0.0, exception
            self._sigterm = signal.signal(signal.SIGTERM, self._handle_sigterm)
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
                signal.signal(signal.SIGHUP, self._handle_sighup)  # no command line and no `nohup`

    def release_sigterm(self) -> None:
        """Give SIGTERM back to Lightning, so that none disturbs what follows; idempotent."""
        if self._sigterm is not None:
            if signal.getsignal(signal.SIGTERM) == self._handle_sigterm:
                signal.signal(signal.SIGTERM, self._sigterm)
            self._sigterm = None

    def uninstall(self) -> None:
        """Give the signals back; idempotent."""
        self.release_sigterm()
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == self._handle_sighup:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was asked for."""
        if self.requested:
            self.requested = False
            raise KeyboardInterrupt

    def _handle_sigterm(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._raises and self._sigterm_at and now > self._sigterm_at + _REPEATED_SECONDS:
            raise self._exception(AT_ONCE)
        self._sigterm_at = self._sigterm_at or now
        if callable(self._sigterm):
            self._sigterm(signum, frame)

    def _handle_sighup(self, signum: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._previous is None:  # the run is over, and Lightning has put this handler back
            signal.signal(signal.SIGINT, self._found)
            signal.raise_signal(signal.SIGINT)
            return
        if self.requested:
            self.requested = False
            raise KeyboardInterrupt(AT_ONCE)
        self.requested = True


interrupt = Interrupt()
"""The process's one interrupt; callbacks install it, everything that waits or loops checks it."""
