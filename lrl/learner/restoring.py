"""Giving a dataset the replay back that was saved beside the checkpoint a run goes on from."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L

from lrl.checkpoints.saved_replay import SavedReplayError, load_replay, replay_beside
from lrl.learner.dataset import ReplayDataset
from lrl.pools.pool import ActorPool

_log = logging.getLogger(__name__)


def restore_replay(
    trainer: L.Trainer,
    dataset: ReplayDataset,
    pool: ActorPool | None,
    settings: dict[str, Any],
) -> None:
    """Give this rank's replay back if the checkpoint that was loaded names one; once.

    One that cannot be restored is left out with a warning, and filled to its minimum again.

    Args:
        trainer: Has loaded the checkpoint.
        dataset: What learns from the replay.
        pool: A pool of the user's own, if there is one.
        settings: Those beside the replay's own with which its rows are made.
    """
    path, name, dataset.replay_to_restore = trainer.ckpt_path, dataset.replay_to_restore, ""
    if not name:
        return
    started = time.monotonic()
    try:
        folder = replay_beside(Path(str(path)), trainer.global_rank)
        state = load_replay(folder, dataset.stored, settings, trainer.global_step, name)
        _check_source(dataset, pool, state["source"])
    except (SavedReplayError, OSError) as error:
        _log.warning(
            "the replay saved with %s is left out, and filled to its minimum again: %s", path, error
        )
        return
    dataset.restore(state)
    _log.info(
        "the replay saved with %s is restored: %d rows in %.1f s",
        path,
        dataset.stored.streams.num_rows,
        time.monotonic() - started,
    )


def _check_source(
    dataset: ReplayDataset, pool: ActorPool | None, source: Mapping[str, Any]
) -> None:
    """Check that a finite pool goes on behind the rows that are restored, or clear them."""
    if pool is None or not pool.is_finite:
        return
    name = type(pool).__name__
    if not source.get("actor") or source.get("pool") != name:
        dataset.stored.streams.clear()
        raise SavedReplayError(
            f"data.pool {name} brings all rows, and those of {source.get('pool') or 'actors'} "
            "would be learnt from beside them"
        )
