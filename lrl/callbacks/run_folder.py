"""The folder of a run's checkpoints: where it is, whose it is, and how files get there."""

from __future__ import annotations

import os
from pathlib import Path

import lightning as L

from lrl.checkpoint_io import SaveError, remove_leftovers, use_verified_io
from lrl.types import ConfigError

try:
    import fcntl
except ImportError:  # Windows has no locks of this kind
    fcntl = None


def checkpoint_folder(trainer: L.Trainer) -> Path:
    """Return the run's folder of checkpoints; all ranks must call it."""
    folder = str(trainer.log_dir or trainer.default_root_dir)
    if "://" in folder:
        raise ConfigError(
            f"the run's folder is {folder}, but checkpoints are kept on a disk: give the Trainer's "
            "logger a save_dir, or the Trainer a default_root_dir, that is a path of this machine"
        )
    return Path(folder) / "checkpoints"


def save_checkpoint(trainer: L.Trainer, path: Path) -> None:
    """Write a checkpoint; all ranks must call it.

    Raises:
        SaveError: It could not be written; all ranks raise it, so that they can go on together.
    """
    error = ""
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except OSError as caught:  # of the one rank that writes
        error = str(caught)
        trainer.strategy.barrier("Trainer.save_checkpoint")  # the others wait there for this one
    error = trainer.strategy.broadcast(error)
    if error:
        raise SaveError(error)


def prepare_folder(trainer: L.Trainer, stage: str) -> Path | None:
    """Make checkpoints safe; return the folder of a run that trains."""
    use_verified_io(trainer)
    if stage != "fit":
        return None
    folder = checkpoint_folder(trainer)
    if trainer.is_global_zero:
        remove_leftovers(folder)
    return folder


class FolderClaim:
    """The claim of one run to a folder, which ends with its process at the latest."""

    def __init__(self) -> None:
        self._descriptor = -1

    def make(self, trainer: L.Trainer) -> None:
        """Claim the folder of a run that trains; all ranks must call it.

        Raises:
            ConfigError: Another run trains there: each would replace the checkpoints, and delete
                the replay, of the other.
        """
        folder = checkpoint_folder(trainer).parent
        if fcntl is None or not trainer.is_global_zero or self._descriptor >= 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.drop()
            raise ConfigError(
                f"another run trains in {folder} and keeps its checkpoints there: give the "
                "Trainer another default_root_dir, or a logger, which makes a folder for each run"
            ) from None
        except OSError:  # a disk without locks
            self.drop()

    def drop(self) -> None:
        """Let others have the folder; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
