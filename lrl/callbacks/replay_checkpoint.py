"""The replay beside the last checkpoint: saved with it, and restored on resume."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
from typing_extensions import override

from lrl.callbacks.checkpoints import checkpoint_folder
from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.saved_replay import SavedReplayError, load_replay
from lrl.checkpoints.stamp import trained_in
from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.preflight.callbacks import SavesReplay
from lrl.processes.interrupt import AT_ONCE

_log = logging.getLogger(__name__)


class ReplayRestore(L.Callback):
    """Give a checkpoint that names a replay its replay back, on each rank.

    It comes before actors start and before all that count. A replay that cannot be restored is left
    out with a warning, and filled to its minimum as without one.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the replay, whether or not this run saves its own."""
        dataset, path = dataset_of(trainer), trainer.ckpt_path
        if path is None or not dataset.replay_to_restore:
            return
        started = time.monotonic()
        try:
            state = load_replay(
                _rank_folder(Path(path).parent, trainer),
                dataset.replay,
                _settings(trainer),
                trainer.global_step,
                dataset.replay_to_restore,
            )
        except (SavedReplayError, OSError) as error:
            _log.warning(
                "the replay saved with %s is left out, and filled to its minimum again: %s",
                path,
                error,
            )
            return
        dataset.restore(state)
        _log.info(
            "the replay saved with %s is restored: %d rows in %.1f s",
            path,
            dataset.replay.streams.num_rows,
            time.monotonic() - started,
        )


class ReplayCheckpoint(L.Callback, SavesReplay):
    """Save each rank's replay with `last.ckpt`, in the background.

    Args:
        enabled: Whether this run does.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self._saver: ReplaySaver | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin with the replay that was restored, if there was one."""
        if not self.enabled:
            return
        folder, dataset = _rank_folder(checkpoint_folder(trainer), trainer), dataset_of(trainer)
        self._saver = ReplaySaver(folder, dataset.replay, _settings(trainer))
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
        saved_id = trainer.strategy.broadcast(secrets.token_hex(8))
        self._saver.take(trainer.global_step, saved_id, dataset.state(with_rows=True))
        dataset.saved_replay = saved_id
        try:
            yield
        except BaseException:
            self._saver.discard()
            raise
        finally:
            dataset.saved_replay = ""
        self._saver.start()

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


def _rank_folder(checkpoints: Path, trainer: L.Trainer) -> Path:
    return checkpoints / "replay" / f"rank-{trainer.global_rank}"


def _settings(trainer: L.Trainer) -> dict[str, Any]:
    """Return the settings, beside the replay's own, with which its rows were made."""
    stamp = datamodule_of(trainer).stamp()
    return {"env": trained_in(stamp), "ranks": trainer.world_size}
