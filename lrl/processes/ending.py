"""Signals that end a command of the command line, from its first instruction to its last."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_EXIT_CODE = 128  # plus the signal's number, as shells have it


class StoppedError(BaseException):
    """SIGTERM or SIGHUP came; what cleans up after an exception does so after this one."""


class Ending:
    """Answers SIGINT, SIGTERM and SIGHUP where nothing else has taken them over.

    While modules are imported, and once the command is done, a signal ends the process at once:
    nothing has to be cleaned up, and an exception in the middle of an import may be lost or come
    out as another one. Within `raising` it raises a KeyboardInterrupt or a StoppedError. While the
    Trainer runs, SIGINT is `Interrupt`'s, SIGTERM is Lightning's, and SIGHUP is passed on as one.

    Attributes:
        number: The first signal that came here; None before that.
        skips_libraries: Whether `exit` keeps libraries from tidying up, one of which is stuck.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.skips_libraries = False
        self._raises = self._holds = self._is_due = self._has_reported = False

    def listen(self) -> None:
        """Take the signals over, except those that are ignored, as SIGHUP is after `nohup`."""
        self.__init__()
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.handle)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals raise inside."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let signals wait for a `check` after what may not be left in its middle."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False

    def check(self) -> None:
        """Raise what had to wait, and again what an import may have caught."""
        if self._is_due:
            raise self._exception()

    def report(self, number: int, is_told: bool = False, then: str = "") -> int:
        """Say in one line which signal ended the command, the given one if none came here first.

        Args:
            number: The signal.
            is_told: Whether another process says so already.
            then: What to do next.

        Returns:
            The exit code.
        """
        self.number, self._has_reported = self.number or number, True
        if not is_told:
            sys.stderr.write("; ".join(filter(None, (self._sentence(), then))) + "\n")
        return _EXIT_CODE + self.number

    def exit(self, code: int) -> NoReturn:
        """End the process."""
        if self.skips_libraries:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)
        sys.exit(code)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Do what the phase of the command asks for."""
        self.number = self.number or number
        if signal.getsignal(number) != self.handle:
            return  # Lightning answers it, and calls the handler that it found
        of_trainer = signal.getsignal(signal.SIGTERM)
        if number != signal.SIGINT and callable(of_trainer) and of_trainer != self.handle:
            signal.raise_signal(signal.SIGTERM)
        elif self._raises:
            self._is_due = True
            if not self._holds:
                raise self._exception()
        else:
            self._end_at_once()

    def _end_at_once(self) -> None:
        assert self.number is not None
        with contextlib.suppress(Exception):  # it may be in the middle of writing just now
            sys.stdout.flush()
        if not self._has_reported:
            with contextlib.suppress(OSError):
                os.write(2, f"{self._sentence()}\n".encode())
        os._exit(_EXIT_CODE + self.number)

    def _sentence(self) -> str:
        assert self.number is not None
        is_ctrl_c = self.number == signal.SIGINT
        return f"lrl: stopped by {'Ctrl-C' if is_ctrl_c else signal.Signals(self.number).name}"

    def _exception(self) -> BaseException:
        return KeyboardInterrupt() if self.number == signal.SIGINT else StoppedError()


ending = Ending()
"""The process's one; `lrl.__main__` lets it listen."""
