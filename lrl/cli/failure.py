"""What the command line says of an error that is no mistake in the settings.

A sentence says what was raised, where in your code, and which file has the traceback. With
`--debug` the traceback itself is shown, also that of a mistake in the settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import tempfile
import traceback
from pathlib import Path

_VARIABLE = "LRL_DEBUG"
_NAME = "error.txt"
_FRAME = re.compile(r'^\s*File "([^"<]+)", line (\d+)', re.MULTILINE)
_LRL = Path(__file__).parents[1]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_IS_FULL = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)


def debug() -> None:
    """Show tracebacks from now on, in this process and all that it starts."""
    os.environ[_VARIABLE] = "1"


def is_debugging() -> bool:
    """Return whether tracebacks are shown; the variable LRL_DEBUG=1 does what `--debug` does."""
    return os.environ.get(_VARIABLE, "") not in ("", "0")


def report_error(error: BaseException, folder: Path | None = None, *, learns: bool = False) -> int:
    """Say in a sentence what an exception was, and where its traceback is; return the exit code.

    Args:
        error: What was raised.
        folder: The run's folder, for the traceback; without one a temporary file takes it.
        learns: Whether a learner was at work, which can do with less memory.
    """
    text = "".join(traceback.format_exception(error))
    said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    is_full = isinstance(error, MemoryError) or _IS_FULL.search(said)
    if place := own_place(text):
        said += f" at {place}"
    elif not is_full:
        where = "".join(f" at {path}:{line}" for path, line in _FRAME.findall(text)[-1:])
        said += f"{where}: lrl did not expect that, and may be at fault itself"
    if is_full and learns:
        said += ": the learner needs less with a smaller replay, batch or network"
    return _tell(said, text, folder)


def report_failure(error: Exception, folder: Path | None = None) -> int:
    """Say in a sentence why lrl ended a run; return the exit code.

    Args:
        error: Its message may hold the traceback of a process, or the stacks of its threads.
        folder: As of `report_error`.
    """
    first, *rest = str(error).splitlines()
    reason = rest.pop() if rest and rest[-1].startswith("(") else ""
    inner = "\n".join(rest).strip()
    if not inner:
        show("".join(traceback.format_exception(error)))
        sys.stderr.write(f"lrl: error: {first} {reason}".rstrip() + "\n")
        return 1
    place = own_place(inner)
    said = [first, _last_words(inner), f"at {place}" if place else "", reason]
    return _tell(" ".join(filter(None, said)), str(error), folder)


def show(text: str) -> bool:
    """Print a traceback if that is asked for; return whether it is."""
    if is_debugging():
        sys.stderr.write(text.rstrip() + "\n")
    return is_debugging()


def own_place(text: str) -> str | None:
    """Return the last place of a traceback that is neither lrl's nor a library's: `file:line`.

    Args:
        text: A traceback, as Python prints it.
    """
    own = [(path, line) for path, line in _FRAME.findall(text) if _is_own(Path(path))]
    return ":".join(own[-1]) if own else None


def _is_own(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(_LRL):
        return False
    return not any(path.is_relative_to(library) for library in _LIBRARIES)


def _last_words(inner: str) -> str:
    """Return the exception's own line of a traceback."""
    ends = inner.rpartition('  File "')[2].splitlines()[1:]
    return next((line for line in ends if line and not line[0].isspace()), "")


def _tell(said: str, text: str, folder: Path | None) -> int:
    """Print a sentence that tells where the traceback is, and itself what no file could take."""
    hint = ""
    if not show(text):
        if path := _write(text, folder):
            hint = f"; the traceback is in {path}, and --debug shows it"
        else:
            sys.stderr.write(text.rstrip() + "\n")
    sys.stderr.write(f"lrl: error: {said}{hint}\n")
    return 1


def _write(text: str, folder: Path | None) -> Path | None:
    """Return the file that the traceback was written to; None where there is no room."""
    if folder is not None and folder.is_dir():
        with contextlib.suppress(OSError):
            (folder / _NAME).write_text(text, encoding="utf-8")
            return folder / _NAME
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(f"-{_NAME}", "lrl-")
        os.close(descriptor)
        Path(name).write_text(text, encoding="utf-8")
        return Path(name)
    return None
