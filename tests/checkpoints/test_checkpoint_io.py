"""Checkpoint files: whole or unchanged when written, verified when read."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import numpy as np
import pytest
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from benchmark.chaos.checkpoints import some_checkpoint
from lrl.checkpoints import atomic_files, files
from lrl.checkpoints.files import (
    CheckpointError,
    SaveError,
    VerifiedCheckpointIO,
    read_checkpoint,
    use_verified_io,
    write_checkpoint,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small checkpoint of learner step 7."""
    write_checkpoint(some_checkpoint(7, 1024), tmp_path / "some.ckpt")
    return tmp_path / "some.ckpt"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read_and_torch_reads_it_too(path: Path):
    expected = some_checkpoint(7, 1024)
    for content in (read_checkpoint(path), torch.load(path, weights_only=True)):
        assert content.keys() == expected.keys()
        assert content["global_step"] == 7
        for name, tensor in expected["state_dict"].items():
            assert torch.equal(content["state_dict"][name], tensor)
    assert names(path.parent) == ["some.ckpt"]


def test_the_checksum_is_the_comment_of_a_proper_archive(path: Path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        mark, method, digest = archive.comment.decode().split()
    assert (mark, method) == ("lrl", "sha256")
    plain = path.with_name("plain.ckpt")
    plain.write_bytes(path.read_bytes()[: -2 - len(archive.comment)] + b"\0\0")
    digest_of = subprocess.run(["sha256sum", plain], capture_output=True, text=True, check=True)
    assert digest_of.stdout.split()[0] == digest


def test_what_is_kept_is_taken_by_the_next_read_alone(path: Path, tmp_path: Path):
    kept = read_checkpoint(path, keep=True)
    assert read_checkpoint(path) is kept
    assert read_checkpoint(path) is not kept
    kept = read_checkpoint(path, keep=True)
    write_checkpoint({"a": 1}, tmp_path / "other.ckpt")
    assert read_checkpoint(tmp_path / "other.ckpt") == {"a": 1}
    assert read_checkpoint(path) is not kept
    kept = read_checkpoint(path, keep=True)
    assert read_checkpoint(path, "meta") is not kept
    assert VerifiedCheckpointIO().load_checkpoint(path) is not kept


def test_what_is_kept_of_a_file_that_changed_is_not_taken(path: Path):
    read_checkpoint(path, keep=True)
    write_checkpoint(some_checkpoint(8, 1024), path)
    assert read_checkpoint(path)["global_step"] == 8
    read_checkpoint(path, keep=True)
    os.truncate(path, 700)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


def test_nothing_is_kept_for_a_trainer_with_a_way_of_its_own(path: Path):
    read_checkpoint(path, keep=True)
    use_verified_io(L.Trainer(logger=False, accelerator="cpu", plugins=[AsyncCheckpointIO()]))
    assert files._kept is None


def test_every_byte_is_covered(path: Path):
    """Each byte of the end, where archive, length, mark and checksum meet, and some others."""
    content = path.read_bytes()
    for index in [*range(0, len(content), 97), *range(len(content) - 120, len(content))]:
        for change in (1, 0x80):
            damaged = bytearray(content)
            damaged[index] ^= change
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"some\.ckpt is damaged"):
                read_checkpoint(path)


@pytest.mark.parametrize("remaining", [0, 1, 21, 22, 75, 97, 500, -1, -75, -77, -97])
def test_a_truncated_file_is_damaged(path: Path, remaining: int):
    path.write_bytes(path.read_bytes()[:remaining])
    with pytest.raises(
        CheckpointError, match=r"damaged, or no checkpoint: its .* bytes do not end"
    ):
        read_checkpoint(path)


def test_a_file_of_lightnings_is_read_without_a_checksum(tmp_path: Path):
    path = tmp_path / "plain.ckpt"
    TorchCheckpointIO().save_checkpoint(some_checkpoint(3, 1024), path)
    assert read_checkpoint(path)["global_step"] == 3
    content = path.read_bytes()
    path.write_bytes(content[:-90] + bytes(60) + content[-30:])  # in the archive's directory
    with pytest.raises(CheckpointError, match=r"plain\.ckpt is damaged, or no checkpoint: "):
        read_checkpoint(path)
    numbers = content.index(torch.full((64,), 3.0).numpy().tobytes())
    path.write_bytes(content[:numbers] + b"\1" + content[numbers + 1 :])
    with pytest.raises(CheckpointError, match=r"plain\.ckpt is damaged: in its part .*/data/0"):
        read_checkpoint(path)


def test_what_could_run_code_is_not_read_and_said_to_be_whole(tmp_path: Path):
    path = tmp_path / "odd.ckpt"
    write_checkpoint({"score": np.float64(3.0)}, path)
    with pytest.raises(CheckpointError, match=r"is whole but not loaded: .*Unsupported .* numpy"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("https://nowhere.test/last.ckpt", "only files of this machine are read"),
        ("s3://bucket/last.ckpt", "only files of this machine are read"),
        ("nowhere.ckpt", "there is no such file"),
        (".", "there is no such file"),
    ],
)
def test_only_files_of_this_machine_are_read(where: str, message: str):
    with pytest.raises(CheckpointError, match=rf"checkpoint {where}: {message}"):
        VerifiedCheckpointIO().load_checkpoint(where)


def test_a_file_that_may_not_be_read_says_so(path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, mode: str) -> BinaryIO:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"some\.ckpt cannot be read: .* Permission denied"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("whole", "advice"),
    [
        (["previous", "best"], r"previous\.ckpt is whole: use that"),
        (["best"], r"best\.ckpt is whole: use that"),
        ([], "no other checkpoint beside it is whole: use one of another run"),
    ],
)
def test_what_to_use_instead_is_said(tmp_path: Path, whole: list[str], advice: str):
    for name in ("last", "previous", "best"):
        file = tmp_path / f"{name}.ckpt"
        write_checkpoint(some_checkpoint(1, 64), file)
        if name not in whole:
            os.truncate(file, 100)
    with pytest.raises(CheckpointError, match=advice):
        read_checkpoint(tmp_path / "last.ckpt")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Failing:
    """A file that takes so many bytes and no more."""

    def __init__(self, file: BinaryIO, room: int, error: BaseException) -> None:
        self.file, self.room, self.error = file, room, error

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise self.error
        return self.file.write(data)


@pytest.fixture
def fail_after(monkeypatch: pytest.MonkeyPatch):
    """Let torch's writes fail after so many bytes."""
    sink = files._Sink

    def use(room: int, error: BaseException) -> None:
        def make(file: Any) -> Any:
            return sink(Failing(file, room, error))  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(files, "_Sink", make)

    return use


@pytest.mark.parametrize("room", [0, 100, 2000])
def test_a_full_disk_changes_nothing_and_says_what_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch, fail_after, room: int
):
    before, content = path.read_bytes(), some_checkpoint(8, 1024)
    fail_after(room, FULL)
    with pytest.raises(SaveError, match="No space left on device") as caught:
        write_checkpoint(content, path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert names(path.parent) == ["some.ckpt"]
    write_checkpoint(content, path)
    needed = path.stat().st_size
    assert f"({needed:,} bytes needed, " in str(caught.value)
    assert " free); what was there before is unchanged" in str(caught.value)


@pytest.mark.parametrize("where", ["writing", "syncing"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(errno.EIO, "bad disk"), SaveError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_whatever_ends_a_write_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, fail_after, where: str, error: Any, raised: Any
):
    def fail(*_: Any) -> None:
        raise error

    before = path.read_bytes()
    if where == "writing":
        fail_after(100, error)
    else:
        monkeypatch.setattr(atomic_files, "sync_file", fail)
    with pytest.raises(raised):
        write_checkpoint(some_checkpoint(8, 1024), path)
    assert path.read_bytes() == before
    assert names(path.parent) == ["some.ckpt"]


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path):
    write_checkpoint({"a": 1}, tmp_path / "gone" / "a.ckpt")
    assert read_checkpoint(tmp_path / "gone" / "a.ckpt") == {"a": 1}


def test_a_folder_that_cannot_be_made_is_an_error_with_a_reason(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="could not be written: Not a directory"):
        write_checkpoint({"a": 1}, tmp_path / "file" / "checkpoints" / "a.ckpt")


def test_the_bytes_are_never_held_in_memory(tmp_path: Path):
    """Python's part of the memory; Lightning's buffer of the whole file would be seen in it."""
    content = some_checkpoint(1, 2**24)
    tracemalloc.start()
    try:
        write_checkpoint(content, tmp_path / "large.ckpt")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert (tmp_path / "large.ckpt").stat().st_size > 2**24


def test_the_order_is_write_sync_replace_sync_folder(tmp_path: Path, monkeypatch):
    calls: list[str] = []

    def spy(owner: Any, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a: calls.append(name) or original(*a))

    for owner, name in ((os, "fsync"), (Path, "replace"), (atomic_files, "sync_folder")):
        spy(owner, name)
    write_checkpoint({"a": 1}, tmp_path / "a.ckpt")
    assert calls == ["fsync", "replace", "sync_folder", "fsync"]


def test_a_disk_that_cannot_sync_folders_is_no_error(tmp_path: Path, monkeypatch):
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    write_checkpoint({"a": 1}, tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt") == {"a": 1}


def test_unsafe_loading_is_refused(path: Path):
    with pytest.raises(CheckpointError, match="weights_only=False would run code"):
        VerifiedCheckpointIO().load_checkpoint(path, weights_only=False)
    assert VerifiedCheckpointIO().load_checkpoint(path, weights_only=True)["global_step"] == 7
