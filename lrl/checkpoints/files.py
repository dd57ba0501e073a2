"""Checkpoint files that are whole or not there, and that are verified whenever they are read.

A checkpoint is a zip archive, as torch writes it. Its comment holds the SHA-256 of all that comes
before it: the checksum travels with the file, and whatever else reads such archives reads it too.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from lrl.checkpoints.atomic_files import TEMPORARY, digest_of, replace_file
from lrl.parts.device_copies import on_host
from lrl.types import ConfigError

_END, _END_BYTES = b"PK\5\6", 22
"""How an archive's last record begins, and its size; it ends with the comment's length."""
_MARK = b"lrl sha256 "
_SEAL_BYTES = len(_MARK) + 64
_SEAL_LENGTH = struct.pack("<H", _SEAL_BYTES)
_SIBLINGS = ("last.ckpt", "previous.ckpt", "best.ckpt")
_NODE = platform.node()
_kept: tuple[object, Any] | None = None
"""What the next call of `read_checkpoint` need not read again: what was asked for, the content."""


class CheckpointError(ConfigError):
    """A checkpoint cannot be used: the message names it, what is wrong, and what to use instead."""

    problem = ""
    """What is wrong alone, where the message also says what to use instead."""


class SaveError(OSError):
    """A checkpoint could not be written; the message says why and how much space there is."""


class VerifiedCheckpointIO(TorchCheckpointIO):
    """Lightning's way to files, with whole files, checksums, and no code run from them.

    `use_verified_io` gives it to a Trainer; lrl's callbacks of checkpoints call that. Addresses
    like `s3://` are written as Lightning does.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint (see `write_checkpoint`)."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> Any:
        """Read a checkpoint (see `read_checkpoint`); `weights_only` may be None or True."""
        if weights_only is False:
            raise CheckpointError(
                f"checkpoint {path}: weights_only=False would run code that is in the file, which "
                "lrl never does; leave it out, or give the Trainer a CheckpointIO of your own "
                "(plugins=[...])"
            )
        return read_checkpoint(path, map_location)


def use_verified_io(trainer: L.Trainer) -> None:
    """Have a Trainer write and read checkpoints safely, unless it was given a way of its own."""
    global _kept
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = VerifiedCheckpointIO()
    elif not isinstance(trainer.strategy.checkpoint_io, VerifiedCheckpointIO):
        _kept = None  # nobody would take it


def write_checkpoint(content: Any, path: str | Path) -> None:
    """Write tensors and plain types with their checksum, to a file that is replaced as a whole.

    The bytes go straight to a file beside it, and are never held in memory. Its folder is made if
    it is not there.

    Raises:
        SaveError: The file could not be written, and stays as it was.
    """
    path, needed, content = Path(path), 0, on_host(content)

    def write(file: BinaryIO) -> None:
        nonlocal needed
        sink = _Sink(file)
        torch.save(content, sink)  # pyright: ignore[reportArgumentType]
        needed = sink.num_bytes + _SEAL_BYTES
        if sink.error is not None:
            raise sink.error
        file.seek(-len(_SEAL_LENGTH), os.SEEK_END)
        file.write(_SEAL_LENGTH + _seal(sink.digest))

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write, temporary_beside(path))
    except OSError as error:
        raise SaveError(
            f"checkpoint {path} could not be written: {error.strerror or error}"
            f"{_space(path.parent, needed)}; what was there before is unchanged"
        ) from error


def read_checkpoint(path: str | Path, map_location: Any = "cpu", keep: bool = False) -> Any:
    """Read a checkpoint, once its checksum is verified; no code in it runs.

    A file that Lightning wrote alone has none; the CRC-32 of its parts is verified.

    Args:
        path: A file of this machine.
        map_location: Device for its tensors.
        keep: Whether the next call, if it is of the same, unchanged file, returns this content and
            reads nothing. It is kept until that call, whichever file that is of.

    Raises:
        CheckpointError: It is not there, damaged, or holds more than tensors and plain types.
    """
    if "://" in str(path):
        raise CheckpointError(
            f"checkpoint {path}: only files of this machine are read; download it from where you "
            "trust it, and give the path"
        )
    global _kept
    path, kept, _kept = Path(path), _kept, None
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path}: there is no such file")
    now = path.stat()
    asked = now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size, map_location
    if kept is not None and kept[0] == asked:
        content = kept[1]
    else:
        try:
            content = _read(path, map_location)
        except CheckpointError as error:
            advised = CheckpointError(f"{error}; {_instead_of(path)}")
            advised.problem = str(error)
            raise advised from error.__cause__
    if keep:
        _kept = asked, content
    return content


@contextmanager
def predecessor_kept(path: Path, name: str) -> Iterator[None]:
    """Keep a file that is replaced in this context, under another name in the same folder.

    The file is never away: it gets a second name first (or, where the disk has no such thing, a
    copy). If the context ends with an exception, nothing has changed.
    """
    spare = temporary_beside(path.with_name(name))
    is_held = _hold(path, spare)
    try:
        yield
        if is_held:
            with suppress(OSError):  # then there is none, or an older one
                spare.replace(path.with_name(name))
    finally:
        with suppress(OSError):
            spare.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Return a name in the same folder that no other process gives: it holds host and process."""
    return path.with_name(f"{path.name}.{_NODE}-{os.getpid()}{TEMPORARY}")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of processes of this host that have ended, and no other files."""
    ours = re.compile(rf".+\.ckpt(\.{re.escape(_NODE)}-(\d+){re.escape(TEMPORARY)})+")
    for path in folder.glob(f"*{TEMPORARY}"):
        match = ours.fullmatch(path.name)
        if match is not None and not _is_another_alive(int(match[2])):
            with suppress(OSError):  # another run may have been quicker
                path.unlink()


class _Sink:
    """A file for torch.save, hashed as it is written; after an error it counts on."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        self.error: BaseException | None = None
        self._file = file

    def write(self, data: Any) -> int:
        """Write bytes; an error is kept, since in torch's destructors it would end the process."""
        self.num_bytes += len(data)
        try:
            if self.error is None:
                self._file.write(data)
                self.digest.update(data)
        except BaseException as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Leave it to the end: torch would not let an error through here either."""


def _hold(path: Path, spare: Path) -> bool:
    """Give a file a second name, or else copy it."""
    with suppress(OSError):
        spare.unlink(missing_ok=True)  # never write into what may be another name of a checkpoint
        for hold in (os.link, shutil.copyfile):
            with suppress(OSError):
                hold(path, spare)
                return True
    return False


def _seal(digest: Any) -> bytes:
    return _MARK + digest.hexdigest().encode()


def _read(path: Path, map_location: Any) -> Any:
    is_sealed = False
    try:
        with path.open("rb") as file:
            is_sealed = _verify(file, path)
            file.seek(0)
            return torch.load(file, map_location=map_location, weights_only=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    except Exception as error:  # of many kinds, by what is damaged
        what = "is whole but not loaded" if is_sealed else "is damaged, or no checkpoint"
        raise CheckpointError(f"checkpoint {path} {what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return the kind of an error and the beginning of what it says."""
    text = " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2]
    return f"{type(error).__name__} {text[:200]}".strip()


def _verify(file: BinaryIO, path: Path) -> bool:
    """Return whether a file has a checksum, which is then right."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_BYTES - _SEAL_BYTES))
    tail = file.read()
    if tail[-_END_BYTES:].startswith(_END) and tail.endswith(b"\0\0"):
        with zipfile.ZipFile(file) as archive:  # torch does not look at its CRCs
            part = archive.testzip()
        if part is not None:
            raise CheckpointError(f"checkpoint {path} is damaged: in its part {part}")
        return False
    end, seal = tail[:-_SEAL_BYTES], tail[-_SEAL_BYTES:]
    is_marked = end.startswith(_END) and end.endswith(_SEAL_LENGTH) and seal.startswith(_MARK)
    if not is_marked or len(end) != _END_BYTES:
        raise CheckpointError(
            f"checkpoint {path} is damaged, or no checkpoint: its {size:,} bytes do not end as a "
            "checkpoint does"
        )
    file.seek(0)
    digest = digest_of(file, size - _SEAL_BYTES - len(_SEAL_LENGTH))
    digest.update(b"\0\0")  # the comment's length, before there was one
    if seal != _seal(digest):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its content does not have the SHA-256 that it was "
            "written with"
        )
    return True


def _instead_of(path: Path) -> str:
    """Say which of the files beside a checkpoint that cannot be used can be."""
    for other in (path.with_name(name) for name in _SIBLINGS):
        if other != path and other.is_file():
            with suppress(CheckpointError):
                _read(other, "cpu")
                return f"{other} is whole: use that"
    return "no other checkpoint beside it is whole: use one of another run, or train again"


def _space(folder: Path, needed: int) -> str:
    """Say how many bytes a checkpoint takes, if that is known, and how many there are."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" ({needed:,} bytes needed, {free:,} free)" if needed else f" ({free:,} bytes free)"


def _is_another_alive(pid: int) -> bool:
    """Return whether another process of that number may be running."""
    if pid == os.getpid():
        return False
    if os.name == "nt":  # where asking would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
