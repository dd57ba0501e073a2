"""A rank that dies ends the others, wherever they are: in a reduction, an evaluation, a start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a rank that is started need not wait for it
    import lightning as L

_FIRST_RANK = "LRL_FIRST_RANK"  # its process id, which it gives to those that it starts
_PERIOD_SECONDS = 0.5
_GRACE_SECONDS = 10.0
_END_SECONDS = 10.0


class LostRankError(RuntimeError):
    """Another rank has ended or was killed."""


class RankWatch:
    """Looks in a thread whether the ranks live that this process started, or the one that did.

    It says so to a run that asks (`check`), as one does that waits or evaluates. One that hangs in
    a reduction with the dead, or at its start, is ended. Lightning has a watch of its own, of the
    first rank alone, which kills it without a word to the terminal.

    Attributes:
        lost: What is known of a rank that is gone; empty while all are there.
    """

    def __init__(self) -> None:
        self.lost = ""
        self._children: list[subprocess.Popen[bytes]] = []
        self._parent: int | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch_first(self) -> None:
        """Watch the rank that started this process, if one did; else be the one to be watched.

        Call it before ranks are started: the first one writes its process id into the environment.
        """
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            os.environ[_FIRST_RANK] = str(os.getpid())
            return
        first = int(os.environ.get(_FIRST_RANK, "0"))
        # One that lives and is no parent is an ancestor, whose environment came down to here; under
        # torchrun, who is no parent is one in any case, and may have ended long ago.
        is_orphan = not _is_there(first) and "TORCHELASTIC_RUN_ID" not in os.environ
        if first and (first == os.getppid() or is_orphan):
            self._parent = first
            self._start()

    def watch_started(self, trainer: L.Trainer) -> None:
        """Watch the ranks that this process started, in Lightning's place."""
        if children := started_ranks(trainer):
            launcher: Any = trainer.strategy.launcher
            launcher.procs = self._children = list(children)
            children.clear()  # of which Lightning's watch then sees the end
            self._start()

    def check(self) -> None:
        """Raise if a rank is gone.

        Raises:
            LostRankError: One is.
        """
        if self.lost:
            raise LostRankError(self.lost)

    def name(self) -> str:
        """Return what is known of a lost rank, after a moment in which its end may be seen."""
        until = time.monotonic() + 2 * _PERIOD_SECONDS
        while self._thread is not None and not self.lost and time.monotonic() < until:
            time.sleep(0.02)
        return self.lost

    def stop(self) -> None:
        """Watch no more; idempotent."""
        self._stop.set()
        self._thread = None

    def see_off(self) -> None:
        """Wait until the ranks that this process started have ended, and end what does not."""
        self.stop()
        until = time.monotonic() + _END_SECONDS
        for process in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.poll() is None:
                process.kill()

    def _start(self) -> None:
        if self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="rank-watch", daemon=True
            )
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not (lost := self._gone()):
            if stop.wait(_PERIOD_SECONDS):
                return
        self.lost = lost
        if stop.wait(_GRACE_SECONDS):
            return
        for process in self._children:
            process.kill()
        with contextlib.suppress(OSError):
            os.write(2, _last_words(lost))
        os._exit(1)

    def _gone(self) -> str:
        for rank, process in enumerate(self._children, start=1):
            if code := process.poll():
                return f"rank {rank} {_how(code)}"
        if self._parent is not None and os.getppid() != self._parent:
            return "rank 0 is gone"
        return ""


def _last_words(lost: str) -> bytes:
    return (
        f"lrl: error: {lost}, so that all ranks end; go on with --ckpt_path last, if it saved "
        "anything\n"
    ).encode()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _how(code: int) -> str:
    if code < 0:
        known = -code in signal.valid_signals() and -code in set(signal.Signals)
        return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    return f"ended with exit code {code}"


def started_ranks(trainer: L.Trainer) -> list[subprocess.Popen[bytes]]:
    """Return the ranks that this process started as commands of their own."""
    started = getattr(trainer.strategy.launcher, "procs", [])
    return started if all(isinstance(each, subprocess.Popen) for each in started) else []


rank_watch = RankWatch()
"""The process's one."""
