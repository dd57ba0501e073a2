"""How a command of the command line ended, and what it says of that."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lrl.callbacks import ActorLearnerCallback
from lrl.cli.failure import report_error
from lrl.preflight.callbacks import parts_of
from lrl.processes import outputs
from lrl.processes.ending import StoppedError, ending


class Outcome(L.Callback):
    """Remember how far a command came, what it left, and why the Trainer ended early.

    On its own the Trainer exits with 1 on Ctrl-C and with 0 on SIGTERM.
    """

    def __init__(self) -> None:
        self.exception: BaseException | None = None
        self.began = False
        self.trains = False
        self.learned = False  # from a batch at least
        self.folder: Path | None = None  # made for this run
        self.log_dir: Path | None = None  # where a run that trains has its files
        self.learns = False  # the command trains
        self.saved: Path | None = None  # where the checkpoint is to go on with, if there is one
        self.known: list[str] = []  # the names of all settings

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Note that all settings were read and all objects built, and where the run's files go."""
        self.began = True
        if stage == "fit" and not getattr(trainer, "fast_dev_run", 0):
            self.log_dir = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks must ask
        outputs.tell()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that signals are the Trainer's from now on."""
        self.trains = True
        ending.check()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note that the folder has something to hold."""
        self.learned = True

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Note the exception, and where a checkpoint may be."""
        self.exception = exception
        folder = callback_of(trainer).last.folder
        self.saved = folder / "last.ckpt" if folder is not None else None

    @contextlib.contextmanager
    def tidied(self) -> Iterator[None]:
        """Remove the folder of a run that ends inside before it has learned or saved anything.

        Raises:
            StoppedError: A signal came before training; an import may have made anything of that.
        """
        try:
            yield
        except BaseException as error:
            if ending.number is None or self.trains:
                raise
            self.exception = StoppedError()
            raise self.exception from error
        finally:
            with ending.held():
                self._discard_folder()

    def _discard_folder(self) -> None:
        if self.folder is None or self.learned:
            return
        if not any(self.folder.glob("checkpoints/*.ckpt")):
            shutil.rmtree(self.folder, ignore_errors=True)

    def on_lost_rank(self) -> str:
        """Say what it means that another rank cannot be reached, and what to do."""
        if not self.began:
            return (
                "the ranks did not find each other: MASTER_ADDR and MASTER_PORT have to name the "
                "first one's machine and a free port of it, the same in all"
            )
        is_saved = self.saved is not None and self.saved.is_file()
        how = f"go on with --ckpt_path {self.saved}" if is_saved else "nothing was saved yet"
        return f"another rank ended or was killed, and may have printed why; {how}"

    def exit_code(self) -> int:
        """Say what stopped the run; an exit that its environment asked for is not one of ours."""
        error = self.exception
        # The first of several ranks says it.
        is_told = self.trains and getattr(rank_zero_only, "rank", 0) != 0
        if isinstance(error, (KeyboardInterrupt, SIGTERMException, StoppedError)):
            is_ctrl_c = isinstance(error, KeyboardInterrupt)
            number = signal.SIGINT if is_ctrl_c else signal.SIGTERM
            return ending.report(number, is_told=is_told, then=self._way_on())
        if isinstance(error, SystemExit) and not self.began:
            raise error
        if error is not None:
            return self.report(error)
        return 0

    def _way_on(self) -> str:
        if not self.learned or self.log_dir is None or self.saved is None:
            return ""
        config, saved = quote(f"{self.log_dir}/config.yaml"), quote(str(self.saved))
        command = f"lrl fit --config {config} --ckpt_path {saved}"
        return f"go on with: {command}" if self.saved.is_file() else ""

    def report(self, error: BaseException) -> int:
        """Say what was raised, with the traceback among the run's files; return the exit code."""
        return report_error(error, self.log_dir, learns=self.learns)


def callback_of(trainer: L.Trainer) -> ActorLearnerCallback:
    """Return the callback of a command line's Trainer."""
    return next(parts_of(trainer, ActorLearnerCallback))
