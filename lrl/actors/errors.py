"""Errors of child processes on their way to the learner, through a pipe. Standard library only."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from lrl.transport import LearnerGone

_TRACEBACK_CHARACTERS = 6000  # fits into a pipe that nobody reads before this process has ended


@contextlib.contextmanager
def errors_sent_to(errors: Connection) -> Iterator[None]:
    """Send the traceback of what is raised inside to the learner, and exit with 1."""
    try:
        yield
    except LearnerGone:
        os._exit(1)
    except BaseException:  # SystemExit from an environment must reach the learner too
        send_traceback(errors, fatal=True)
        raise SystemExit(1) from None


def send_traceback(errors: Connection, fatal: bool) -> None:
    """Send the traceback of the exception that is being handled.

    Args:
        errors: The pipe to the learner.
        fatal: Whether this process ends by it.
    """
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
