"""A block of shared memory that has no name, so that nothing can be left behind."""

from __future__ import annotations

import os
import sys
import weakref
from multiprocessing.context import assert_spawning
from multiprocessing.heap import Arena

import numpy as np
import numpy.typing as npt

from lrl.processes.memory import available_bytes, format_bytes
from lrl.types import ConfigError


class SharedBlock:
    """Zeroed shared memory, private to the user and freed with the last process that maps it.

    Created by the learner; pickled to child processes only while they are started (spawn or
    forkserver). On Linux it is a memfd: without a name, and not limited by `/dev/shm`. All pages
    are reserved at once, so that memory running out is an error here and no SIGBUS later.

    Args:
        nbytes: Size in bytes.
        advice: Which setting makes the block smaller, for the error message.

    Raises:
        ConfigError: There is not enough memory.
    """

    def __init__(self, nbytes: int, advice: str = "ask for less shared memory") -> None:
        free = available_bytes()
        if free is not None and nbytes > free:
            raise ConfigError(_too_large(nbytes, free, advice))
        self.nbytes = nbytes
        self._arena: Arena | None = _create(nbytes, advice)

    def array(
        self, dtype: npt.DTypeLike, shape: int | tuple[int, ...], offset: int = 0
    ) -> npt.NDArray[np.generic]:
        """Return a view of the block. It stays valid after `close`, which frees memory later."""
        if self._arena is None:
            raise ValueError("the shared memory is closed")
        return np.ndarray(shape, dtype, buffer=self._arena.buffer, offset=offset)

    def close(self) -> None:
        """Let go of the memory; it is freed with its last view. Idempotent."""
        self._arena = None

    def __getstate__(self) -> tuple[int, Arena | None]:
        assert_spawning(self)
        return self.nbytes, self._arena

    def __setstate__(self, state: tuple[int, Arena | None]) -> None:
        self.nbytes, self._arena = state
        if self._arena is not None and sys.platform != "win32":
            weakref.finalize(self._arena, os.close, self._arena.fd)


def _create(nbytes: int, advice: str) -> Arena:
    try:
        if sys.platform == "linux" and hasattr(os, "memfd_create"):
            fd = os.memfd_create("lrl")
            try:
                os.posix_fallocate(fd, 0, nbytes)
                arena = Arena(nbytes, fd)
            except BaseException:
                os.close(fd)
                raise
            weakref.finalize(arena, os.close, fd)
            return arena
        return Arena(nbytes)
    except OSError as error:
        raise ConfigError(_too_large(nbytes, available_bytes(), advice)) from error


def _too_large(nbytes: int, free: int | None, advice: str) -> str:
    available = "less is" if free is None else f"{format_bytes(free)} are"
    return f"{format_bytes(nbytes)} of shared memory are needed, {available} free: {advice}"
