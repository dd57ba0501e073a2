"""What every child process does: it leaves signals to the learner, and sends it its errors."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait

from lrl.processes import outputs

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT")
_TRACEBACK_CHARACTERS = 6000  # fits into a pipe that nobody reads before this process has ended


class StopRequested(Exception):
    """The learner asked the actor to stop, and the ring stayed full for the time of grace."""


class LearnerGone(ConnectionError):
    """The learner's end of the channel is closed: the learner died, or dropped this actor."""


class ErrorTold(SystemExit):
    """The learner knows why the process ends."""


@contextlib.contextmanager
def errors_sent_to(errors: Connection) -> Iterator[None]:
    """Send the traceback of what is raised inside to the learner, and exit with 1."""
    try:
        with errors_told(errors):
            yield
    except LearnerGone:
        os._exit(1)


@contextlib.contextmanager
def errors_told(errors: Connection) -> Iterator[None]:
    """Send the traceback of what is raised inside, before what is around it raises or hangs."""
    try:
        yield
    except (LearnerGone, StopRequested, ErrorTold):
        raise
    except BaseException:  # SystemExit from an environment must reach the learner too
        send_traceback(errors, fatal=True)
        raise ErrorTold(1) from None


def send_traceback(errors: Connection, fatal: bool) -> None:
    """Send the traceback of the exception being handled, and whether this process ends by it."""
    text = _shortened(traceback.format_exc()).encode(errors="replace")
    errors.send_bytes(bytes((fatal,)) + text)


def read_traceback(errors: Connection) -> tuple[bool, str]:
    """Return what `send_traceback` sent: whether it was fatal, and the traceback."""
    message = errors.recv_bytes()
    return bool(message[0]), message[1:].decode(errors="replace")


def run_with_stacks(target: Callable[..., object], stacks: Connection, *args: object) -> None:
    """Run the body of a process; should it crash or be aborted, it says where each thread was.

    Also in the middle of C code, and without Python's help: a handler of signals writes to a pipe.
    """
    if sys.platform != "win32":
        faulthandler.enable(stacks.fileno())
    target(*args)


def read_stacks(stacks: Connection) -> str:
    """Return what `run_with_stacks` wrote so far, without waiting for it."""
    parts = []
    with contextlib.suppress(OSError):
        while stacks.poll() and (part := os.read(stacks.fileno(), 2**16)):
            parts.append(part)
    text = b"".join(parts).decode(errors="replace")
    return _shortened(text.partition("\nExtension modules:")[0].strip())


def _shortened(text: str) -> str:
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def isolate() -> None:
    """Leave signals and rank settings to the learner, and end when the learner does.

    Output that goes away ends neither: what an environment prints is left out then.
    """
    outputs.guard()
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):  # a terminal sends the first two to all
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # what environments start may want them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
    for name in _RANK_VARIABLES:
        os.environ.pop(name, None)
    threading.Thread(target=_follow_parent, name="lrl-follow-parent", daemon=True).start()


def _follow_parent() -> None:
    # PR_SET_PDEATHSIG follows the starting thread, not the process, and not at all under
    # forkserver; the sentinel works with every start method.
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
