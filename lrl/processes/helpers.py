"""multiprocessing's own processes, fork server and resource tracker: they must hold nobody up.

multiprocessing asks the fork server for processes and for their ends, and waits for its answer
without a deadline; both helpers end by themselves once the learner has, unless they were stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from typing import Any

from lrl.processes.patience import Patience

_LOOK_SECONDS = 0.5
_DESCRIPTORS = Path("/proc/self/fd")
_lock = threading.Lock()
_sockets: list[int] = []
_server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
_tracker: Any = resource_tracker._resource_tracker  # pyright: ignore[reportAttributeAccessIssue]


@atexit.register  # before multiprocessing's own, which waits for processes
def wake() -> None:
    """Let the helpers go on, if somebody has stopped them."""
    for pid in (_server._forkserver_pid, _tracker._pid):
        if pid is not None and hasattr(signal, "SIGCONT"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def start(child: process.BaseProcess, method: str, idle_seconds: float) -> None:
    """Start a process that ignores Ctrl-C from its first moment, in bounded time.

    Args:
        child: The process.
        method: Its start method.
        idle_seconds: The fork server is killed if it does not answer and does nothing else either
            for so long. Other processes of its making then count as ended, with exit code 255.

    Raises:
        TimeoutError: The fork server was killed.
    """
    serves = method == "forkserver"
    with _awake(idle_seconds) if serves else contextlib.nullcontext(), interrupt_blocked():
        if serves:
            _ensure_server()
        child.start()


@contextlib.contextmanager
def interrupt_blocked() -> Iterator[None]:
    """Let processes that are started ignore Ctrl-C from their first moment; they inherit the mask.

    It reaches the whole process group, and kills an interpreter that is still importing. So does
    the SIGHUP of a terminal that is closed.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # started later, it would unblock Ctrl-C
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _awake(idle_seconds: float) -> Iterator[None]:
    """Keep the helpers awake, and end a fork server that hangs: this ends the wait for it."""
    done, killed, patience = threading.Event(), threading.Event(), Patience()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            wake()
            pid = _server._forkserver_pid
            if pid is not None and patience.verdict(pid, idle_seconds):
                killed.set()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    thread = threading.Thread(target=watch, name="lrl-helpers-awake", daemon=True)
    thread.start()
    try:
        yield
    except (OSError, EOFError) as error:
        if killed.is_set():
            raise TimeoutError("the fork server did not answer and was killed") from error
        raise
    finally:
        done.set()
        thread.join()


def _ensure_server() -> None:
    """Start the fork server if none runs; on Linux its socket then has no name to leave behind.

    multiprocessing makes a folder for it, which stays after a SIGKILL. A socket of the kind
    without a file would obey anyone. Here the file goes once a descriptor refers to it.
    """
    if not hasattr(os, "O_PATH") or not _DESCRIPTORS.is_dir():
        forkserver.ensure_running()
        return
    config: dict[str, Any] = process.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]
    with _lock, tempfile.TemporaryDirectory(prefix="lrl-") as folder:
        config["tempdir"], before = folder, config.get("tempdir")
        try:
            forkserver.ensure_running()
        finally:
            config["tempdir"] = before
        if _server._forkserver_address.startswith(folder):
            descriptor = os.open(_server._forkserver_address, os.O_PATH)
            _server._forkserver_address = str(_DESCRIPTORS / str(descriptor))
            while _sockets:  # of a server that has ended
                os.close(_sockets.pop())
            _sockets.append(descriptor)
