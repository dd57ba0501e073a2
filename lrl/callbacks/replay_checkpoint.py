"""The replay beside the last checkpoint, saved with it."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator

import lightning as L
from typing_extensions import override

from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.runs import checkpoint_folder, is_trial
from lrl.checkpoints.saved_replay import replay_folder
from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.preflight.callbacks import SavesReplay
from lrl.processes.interrupt import AT_ONCE

_log = logging.getLogger(__name__)


class ReplayCheckpoint(L.Callback, SavesReplay):
    """Save each rank's replay with `last.ckpt`, in the background.

    Args:
        enabled: Whether this run does.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self._saver: ReplaySaver | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make room, and say if the checkpoint that is gone on from has no replay."""
        if not self.enabled or is_trial(trainer):
            return
        data, dataset = datamodule_of(trainer), dataset_of(trainer)
        folder = replay_folder(checkpoint_folder(trainer), trainer.global_rank)
        self._saver = ReplaySaver(folder, dataset.stored, data.replay_settings())
        if trainer.ckpt_path is not None and not dataset.replay_to_restore:
            _log.warning("no replay was saved with %s: it is filled again", trainer.ckpt_path)

    @contextlib.contextmanager
    def beside(self, trainer: L.Trainer) -> Iterator[None]:
        """Save the replay of this moment with the checkpoint that is written in the context.

        All ranks must enter it. If the checkpoint cannot be written, the replay is not either.
        """
        if self._saver is None:
            yield
            return
        dataset = dataset_of(trainer)
        datamodule_of(trainer).restore_replay()  # the run may end before its first batch
        saved_id = trainer.strategy.broadcast(secrets.token_hex(8))
        self._saver.take(trainer.global_step, saved_id, dataset.state(with_rows=True))
        dataset.saved_replay = saved_id
        try:
            yield
            self._saver.start()
        except BaseException:
            if not self._saver.is_writing:
                self._saver.discard()
            raise
        finally:
            dataset.saved_replay = ""

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._finish()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Wait until the last save is written, unless the run has to end at once."""
        if AT_ONCE not in exception.args:
            self._finish()

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._saver is not None:
            self._saver.finish()
