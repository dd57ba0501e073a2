"""Files that are whole or not there: written aside, brought to the disk, then put in place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from lrl.types import ConfigError

TEMPORARY = ".tmp"
"""How the names of files end that are being written."""
_BLOCK_BYTES = 2**20


def replace_file(
    path: Path, write: Callable[[BinaryIO], object], temporary: Path | None = None
) -> None:
    """Write a file anew: whenever the machine stops, its old or its new content is there.

    `write` writes the new content to `temporary`, in the same folder, which then takes the place.

    Raises:
        OSError: It could not be written, for want of space perhaps; the old content is there,
            unless the disk failed at the last moment, when the new one is.
    """
    temporary = temporary or path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            write(file)
            sync_file(file)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # it may be what fills the disk
        raise
    sync_folder(path.parent)


def check_place(option: str, path: Path) -> None:
    """Check, before the work for it is done, that a file can be written there.

    Raises:
        ConfigError: There is no folder for it, or it is one itself.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option} {str(path)!r} is a folder: name a file in it")


def write_asked(option: str, path: Path, text: str) -> None:
    """Write a file that an option asked for, or to the device that it names.

    Raises:
        ConfigError: It cannot be written, for want of space perhaps.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text)
        else:
            replace_file(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error}") from error


def sync_file(file: BinaryIO) -> None:
    """Wait until what was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system has a way to do so."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which some network disks say
            raise
    finally:
        os.close(descriptor)


def digest_of(file: BinaryIO, num_bytes: int) -> Any:
    """Return the SHA-256 of a file's next bytes, to which others can be added."""
    digest = hashlib.sha256()
    while num_bytes > 0 and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        digest.update(block)
        num_bytes -= len(block)
    return digest
