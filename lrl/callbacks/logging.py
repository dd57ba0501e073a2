"""One way to write to loggers: at the learner step, to every logger, never ending the run."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger, TensorBoardLogger

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 60.0
_paused_until: WeakKeyDictionary[Logger, float] = WeakKeyDictionary()
"""Loggers that failed, and when they are tried again."""


@rank_zero_only
def log_metrics(
    trainer: L.Trainer, metrics: Mapping[str, float], learner_step: int | None = None
) -> None:
    """Write metrics at a learner step, now's by default.

    A logger that fails is left alone for a minute, which is said.

    Args:
        trainer: Has the loggers.
        metrics: Values by name.
        learner_step: The step they belong to.
    """
    step = trainer.global_step if learner_step is None else learner_step
    for logger in trainer.loggers:
        if time.monotonic() < _paused_until.get(logger, 0.0):
            continue
        with _reporting_failures(logger):
            logger.log_metrics(dict(metrics), step=step)
            logger.save()  # 0.4 ms; CSVLogger alone would lose up to 100 rows of a killed run


@rank_zero_only
def log_configuration(trainer: L.Trainer, configuration: Mapping[str, Any]) -> None:
    """Write the run's settings; a logger that fails is reported and skipped."""
    for logger in trainer.loggers:
        with _reporting_failures(logger):
            logger.log_hyperparams(dict(configuration))


def let_loggers_fail(trainer: L.Trainer) -> None:
    """Keep Lightning's last word to a logger from ending a run that trained to its end."""
    for logger in trainer.loggers:
        if "finalize" not in vars(logger):
            logger.finalize = functools.partial(_finalize, logger, logger.finalize)


def _finalize(logger: Logger, finalize: Callable[[str], None], status: str) -> None:
    with _reporting_failures(logger):
        finalize(status)


@contextlib.contextmanager
def _reporting_failures(logger: Logger) -> Iterator[None]:
    try:
        yield
    except Exception as caught:
        error = caught.__cause__ or caught  # Lightning calls all of TensorBoard's a ValueError
        _paused_until[logger] = time.monotonic() + _PAUSE_SECONDS
        if isinstance(logger, TensorBoardLogger):
            # Its writer's thread has ended and would raise this error for ever: begin another file.
            logger._experiment = None
        _log.error(
            "%s could not log: %s: %s; it is left alone for %.0f s",
            type(logger).__name__, type(error).__name__, error, _PAUSE_SECONDS,
            exc_info=not isinstance(error, OSError),
        )  # fmt: skip
