"""One way to write metrics: at the learner step, to every logger, never ending the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger

_log = logging.getLogger(__name__)


@rank_zero_only
def log_metrics(trainer: L.Trainer, metrics: Mapping[str, float]) -> None:
    """Write metrics at `global_step`; a logger that fails is reported and skipped."""
    for logger in trainer.loggers:
        _log_to(logger, metrics, trainer.global_step)


def _log_to(logger: Logger, metrics: Mapping[str, float], step: int) -> None:
    try:
        logger.log_metrics(dict(metrics), step=step)
        logger.save()  # 0.4 ms; CSVLogger alone would lose up to 100 rows of a killed run
    except Exception:
        _log.exception("%s could not log; training goes on", type(logger).__name__)
