"""Standard output and error that may go away: what cannot be written is left out."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

_NAMES = {1: ("stdout", "standard output"), 2: ("stderr", "standard error")}
_lost: dict[int, OSError] = {}
_tells = False


def guard() -> None:
    """Let nothing that is printed fail from now on, in this process; idempotent.

    A pipe that nobody reads any more, a terminal that was closed or a disk that is full would
    otherwise end a training run, or an actor whose environment prints, by an OSError. A stream that
    was closed from the start becomes one that shows nothing: files would get its number, and what
    is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, _) in _NAMES.items():
        stream: Any = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # no test's, and no notebook's
            guarded = _guarded(stream, number)
            setattr(sys, name, guarded)
            setattr(sys, f"__{name}__", guarded)


def tell() -> None:
    """Say from now on, once and in the stream that still works, if one of them goes away.

    Who reads the beginning of a help text only need not be told.
    """
    global _tells
    _tells = True
    for number in _lost:
        _warn(number)


class _Output(io.FileIO):
    """A stream's descriptor, which takes all it is given."""

    def write(self, data: Any) -> int:
        """Write what can be written, and say that it was all."""
        rest = memoryview(data).cast("B")
        length = rest.nbytes
        try:
            while rest:
                written = super().write(rest)
                if written is None:  # full, and made non-blocking by another process that has it
                    os.set_blocking(self.fileno(), True)
                rest = rest[written or 0 :]
        except OSError as error:
            self._lose(error)
        return length

    def _lose(self, error: OSError) -> None:
        number = self.fileno()
        if number not in _lost:
            _lost[number] = error
            if _tells:
                _warn(number)


def _guarded(stream: Any, number: int) -> Any:
    if stream is None:
        return io.TextIOWrapper(_Output(number, "wb", closefd=False), write_through=True)
    buffer = stream.buffer
    if type(getattr(buffer, "raw", buffer)) is not io.FileIO or buffer.fileno() != number:
        return stream  # guarded before, or a console of Windows
    with contextlib.suppress(OSError):
        stream.flush()
    raw: Any = _Output(number, "wb", closefd=False)
    raw.name = stream.name
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _warn(number: int) -> None:
    text = f"lrl: warning: {_NAMES[number][1]} cannot be written ({_lost[number].strerror}): "
    with contextlib.suppress(OSError):
        os.write(3 - number, f"{text}what it would show is left out\n".encode())
