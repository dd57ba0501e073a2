"""The folder of checkpoints: predecessors, what killed runs left, and who writes there."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.fabric.plugins.io import TorchCheckpointIO

from lrl.checkpoints.files import (
    SaveError,
    VerifiedCheckpointIO,
    predecessor_kept,
    read_checkpoint,
    remove_leftovers,
    temporary_beside,
    use_verified_io,
    write_checkpoint,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save(path: Path, learner_step: int) -> None:
    with predecessor_kept(path, "previous.ckpt"):
        write_checkpoint({"global_step": learner_step}, path)


def steps(folder: Path) -> dict[str, int]:
    return {name: read_checkpoint(folder / name)["global_step"] for name in names(folder)}


@pytest.mark.parametrize("has_links", [True, False])
def test_the_one_before_is_kept(tmp_path: Path, monkeypatch, has_links: bool):
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    last = tmp_path / "last.ckpt"
    save(last, 1)
    assert steps(tmp_path) == {"last.ckpt": 1}
    save(last, 2)
    save(last, 3)
    assert steps(tmp_path) == {"last.ckpt": 3, "previous.ckpt": 2}


def test_a_failed_write_changes_neither(tmp_path: Path):
    last = tmp_path / "last.ckpt"
    save(last, 1)
    save(last, 2)
    with pytest.raises(SaveError), predecessor_kept(last, "previous.ckpt"):
        raise SaveError("no space")
    assert steps(tmp_path) == {"last.ckpt": 2, "previous.ckpt": 1}


# --- Leftovers ------------------------------------------------------------------------------


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_only_own_files_of_ended_processes_are_removed(tmp_path: Path):
    node, dead = platform.node(), dead_process()
    own = temporary_beside(temporary_beside(tmp_path / "candidate.ckpt"))
    left = [
        f"last.ckpt.{node}-{dead}.tmp",
        f"candidate.ckpt.{node}-{dead}.tmp",
        f"candidate.ckpt.{node}-{dead}.tmp.{node}-{dead}.tmp",
        own.name,  # an earlier process had the same number
    ]
    others = [
        f"last.ckpt.{node}-1.tmp",  # alive, and somebody else's
        f"last.ckpt.another-host-{dead}.tmp",
        f"last.ckpt.another-{node}-{dead}.tmp",
        f"last.ckpt.another.{node}-{dead}.tmp",
        f"notes.{node}-{dead}.tmp",
        f"last.ckpt.{node}-{dead}",
        "last.ckpt.tmp",
        "last.ckpt",
    ]
    for name in [*left, *others]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(others)
    remove_leftovers(tmp_path / "nowhere")


# --- Trainers -------------------------------------------------------------------------------


class OwnIO(TorchCheckpointIO):
    """A user's."""


@pytest.mark.parametrize(("plugins", "expected"), [([], VerifiedCheckpointIO), ([OwnIO()], OwnIO)])
def test_a_trainer_gets_it_unless_it_has_its_own(plugins: list[Any], expected: type):
    trainer = L.Trainer(accelerator="cpu", logger=False, plugins=plugins)
    for _ in range(2):
        use_verified_io(trainer)
        assert type(trainer.strategy.checkpoint_io) is expected


def test_addresses_are_lightnings_to_write(monkeypatch: pytest.MonkeyPatch):
    written: list[Any] = []
    monkeypatch.setattr(
        TorchCheckpointIO, "save_checkpoint", lambda self, *args: written.append(args)
    )
    VerifiedCheckpointIO().save_checkpoint({}, "memory://bucket/a.ckpt")
    assert written == [({}, "memory://bucket/a.ckpt", None)]
