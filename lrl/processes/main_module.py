"""The script that starts processes: each of them imports it anew, as far as it is a file."""

from __future__ import annotations

import ast
import contextlib
import io
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FrameType, FunctionType

from lrl.types import ConfigError

MAIN_GUARD = "put the script's work under `if __name__ == '__main__':`"
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Match)
_starting = threading.Lock()


def check_main_guard() -> None:
    """End a script that would start its work again in each process that imports it.

    That is certain, before any process is started, where the script's work stands outside of every
    `if`; whatever else comes this far while it is imported ends without a word, and the process
    that started it says why.

    Raises:
        SystemExit: The script has no guard; a script that trains has nobody to catch an error, and
            a traceback would hide the sentence.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)
    path = _imported_path()
    frame = _running_in_main()
    if path is None or frame is None:
        return
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        if not _is_conditional(ast.parse(path.read_bytes()), frame.f_lineno):
            raise SystemExit(
                f"lrl: error: line {frame.f_lineno} of {path.name} starts processes, and each of "
                f"them imports {path.name} and would come to that line again: {MAIN_GUARD}"
            )


@contextlib.contextmanager
def without_missing_main() -> Iterator[None]:
    """Let processes start that could not import the main module: it came from standard input.

    Its `__file__` is then "<stdin>", which they would look for.
    """
    with _starting:  # several threads start processes
        main = sys.modules["__main__"]
        named = getattr(main, "__file__", None)
        if named is None or Path(named).exists():
            yield
            return
        del main.__file__
        try:
            yield
        finally:
            main.__file__ = named


def check_parts(*parts: object) -> None:
    """Check that the processes to which the user's own parts are sent can find them.

    Functions, classes and class paths in them are looked up there, and what a notebook, standard
    input or `python -c` defines is nowhere to be found: that raises `ConfigError`.
    """
    if _imported_path() is not None:
        return
    search = _Search(io.BytesIO())
    with contextlib.suppress(Exception):  # the start of a process says better what is wrong
        search.dump(parts)
    if search.found:
        raise ConfigError(
            f"{', '.join(sorted(search.found))} is defined in a notebook, on standard input or "
            "with python -c, where actors and other processes cannot import it: put it into a "
            "module (a .py file beside it) and import that, or set actors.num_actors to 0"
        )


class _Search(ForkingPickler):
    """Finds what is looked up in the main module; made anew for each search."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: set[str] = set()

    def persistent_id(self, obj: object) -> None:
        """Note an object that is pickled by its name, or the name of one."""
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            self.found.add(obj.__qualname__)
        elif isinstance(obj, str) and obj.startswith(("__main__.", "__main__:")):
            self.found.add(obj[len("__main__.") :])


def _imported_path() -> Path | None:
    """Return the file that started processes run as their `__main__`, if there is one."""
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", "")
    if name.rpartition(".")[2] == "__main__":  # `python -m package` or `python folder`
        return None
    path = Path(getattr(main, "__file__", None) or "<none>")
    return path if path.is_file() and path.stem != "ipython" else None


def _running_in_main() -> FrameType | None:
    """Return the frame of the main module's own code, if the caller was called by it."""
    frame, own = sys._getframe(), vars(sys.modules["__main__"])
    while frame is not None:
        if frame.f_globals is own and frame.f_code.co_name == "<module>":
            return frame
        frame = frame.f_back
    return None


def _is_conditional(tree: ast.Module, line: int) -> bool:
    """Return whether a line of a module runs under some condition, as a guarded one does."""
    return any(
        isinstance(node, _CONDITIONS) and node.lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )
