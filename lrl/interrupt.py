"""Ctrl-C that waits for a safe place: between steps the first time, at once the second."""

from __future__ import annotations

import signal
import threading
from types import FrameType

AT_ONCE = "at once"
"""Argument of a KeyboardInterrupt that was raised in the middle of something."""


class Interrupt:
    """Turn the first SIGINT into a KeyboardInterrupt at the next call of `check`.

    Between two batches everything that a checkpoint holds is consistent; in the middle of an
    optimiser step it is not. A second SIGINT raises at once. Lives in the learner process.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous = None

    def install(self) -> None:
        """Take over SIGINT, if this is the main thread and nobody else has."""
        is_main = threading.current_thread() is threading.main_thread()
        # Our own where Lightning has put it back, which it does after `on_exception`.
        if is_main and signal.getsignal(signal.SIGINT) in (
            signal.default_int_handler,
            self._handle,
        ):
            self.requested = False  # whatever an earlier run was asked for
            signal.signal(signal.SIGINT, self._handle)
            self._previous = signal.default_int_handler

    def uninstall(self) -> None:
        """Give SIGINT back; idempotent."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was asked for."""
        if self.requested:
            self.requested = False
            raise KeyboardInterrupt

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested or self._previous is None:
            self.requested = False
            raise KeyboardInterrupt(AT_ONCE)
        self.requested = True


interrupt = Interrupt()
"""The process's one interrupt; callbacks install it, everything that waits or loops checks it."""
