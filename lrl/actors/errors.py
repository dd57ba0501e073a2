"""Errors of child processes on their way to the learner, through a pipe. Standard library only."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
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


def _shortened(text: str) -> str:
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"
