"""A supervised process: how it is judged, how it ends, and what is kept over its restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from lrl.processes import helpers
from lrl.processes.child import read_stacks, read_traceback
from lrl.processes.main_module import MAIN_GUARD
from lrl.processes.patience import Patience

_END_SECONDS = 10.0
_LOST = 255  # the exit code that multiprocessing gives a process whose fork server has died
_RESTART_WINDOW_SECONDS = 60.0
# Who acts for longer is restarted at once. Starting does not count.
_SHORT_LIFE_SECONDS = 1.0


@dataclass
class Lives:
    """How often one actor or server was started again, and whether it may be once more."""

    restarts: int = 0
    deaths: deque[float] = field(default_factory=deque)
    short: int = 0
    """Deaths in a row that came soon after they were seen at work, or before it."""

    def end(self, acted_at: float | None) -> float:
        """Note a death; return the seconds until the next start: only a crash loop has to wait.

        Args:
            acted_at: `time.monotonic()` at which it was first seen at work, None if it never was.
        """
        now = time.monotonic()
        self.deaths.append(now)
        while self.deaths[0] < now - _RESTART_WINDOW_SECONDS:
            self.deaths.popleft()
        is_short = acted_at is None or now - acted_at < _SHORT_LIFE_SECONDS
        self.short = self.short + 1 if is_short else 0
        return min(30.0, 0.1 * 2 ** min(self.short - 1, 9)) if is_short else 0.0

    def exhausted(self, max_restarts: int) -> str:
        """Say why there were too many deaths; empty if there were not."""
        if len(self.deaths) > max_restarts:
            return f"failed {len(self.deaths)} times in {_RESTART_WINDOW_SECONDS:g} s"
        if self.short > max_restarts:  # of starts that take minutes each
            return f"failed {self.short} times in a row at its start"
        return ""


@dataclass
class SupervisedProcess:
    """One supervised process, and what is kept over its restarts."""

    name: str
    process: BaseProcess
    errors: Connection
    stacks: Connection
    launched_at: float
    start: Patience = field(default_factory=Patience)
    acted_at: float | None = None
    """When it was first seen at work."""
    ended_at: float | None = None
    restart_at: float | None = None
    lives: Lives = field(default_factory=Lives)
    fatal_traceback: str = ""
    failed_at: float | None = None
    """When that traceback came."""

    def cause_of_death(self) -> str:
        """Say why the process ended: its traceback, signal or exit code."""
        self.take_traceback()
        if self.fatal_traceback:
            return f"failed:\n{self.fatal_traceback}"
        code = self.process.exitcode
        if code == 1 and not self.has_started():
            return f"ended while starting; its output may say why (in a script: {MAIN_GUARD})"
        if code is not None and code < 0:
            hint = " (often the out-of-memory killer)" if code == -9 else ""
            return f"was killed by signal {-code}{hint}" + _indented(read_stacks(self.stacks))
        return f"exited with code {code}"

    @property
    def has_failed(self) -> bool:
        """Whether it ended, or will, by an error that its code raised."""
        return self.process.exitcode == 1 or self.failed_at is not None

    def has_failed_to_end(self) -> bool:
        """Return whether an error should have ended it: closing hangs, or a thread goes on."""
        return self.failed_at is not None and time.monotonic() > self.failed_at + _END_SECONDS

    def end_orphan(self) -> str:
        """End a process that lives, but counts as ended because its fork server has died; say so.

        Two of one place would answer for each other.
        """
        if self.process.exitcode == _LOST and hasattr(signal, "SIGKILL"):
            assert self.process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
                return "has lost its fork server and is killed"
        return ""

    def end_hung(self, patience_seconds: float = 3.0) -> str:
        """End a process that does nothing; say where its threads were, if it tells so in time."""
        deadline, said = time.monotonic() + patience_seconds, ""
        if hasattr(signal, "SIGCONT") and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGABRT)
                os.kill(self.process.pid, signal.SIGCONT)  # one that was stopped tells, too
            while self.process.exitcode is None and time.monotonic() < deadline:
                wait([self.process.sentinel], 0.02)
                said += read_stacks(self.stacks)
        end([self])
        return _indented(said + read_stacks(self.stacks))

    def close(self) -> None:
        """Let go of the pipes; idempotent."""
        self.errors.close()
        self.stacks.close()

    def take_traceback(self) -> str:
        """Return the last traceback that came since the last call, of an error that was survived.

        One that ended the process is kept in `fatal_traceback` instead.
        """
        survived = ""
        with contextlib.suppress(EOFError, OSError):
            while self.errors.poll():
                fatal, text = read_traceback(self.errors)
                if fatal and not self.fatal_traceback:  # what closing raises comes after it
                    self.fatal_traceback, self.failed_at = text, time.monotonic()
                elif not fatal:
                    survived = text
        return survived

    def has_started(self) -> bool:
        """Return whether the process ever came to run our code."""
        return True


def end(handles: Sequence[SupervisedProcess]) -> None:
    """Kill processes and wait for their ends, or for a fork server to tell of them; bounded."""
    for handle in handles:
        handle.process.kill()
    deadline = time.monotonic() + _END_SECONDS
    for handle in handles:
        while handle.process.exitcode is None and time.monotonic() < deadline:
            helpers.wake()
            handle.process.join(0.1)


def _indented(stacks: str) -> str:
    return "".join(f"\n  {line}" for line in stacks.splitlines())
