"""What a run tells its loggers: rows of metrics, its settings, its name, its files and its end.

Whatever fails there is reported and ends nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lrl.loggers.csv_rows import keep_whole
from lrl.preflight.callbacks import WatchesMetrics, WritesFiles, parts_of
from lrl.processes.interrupt import AT_ONCE

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 60.0
_paused_until: WeakKeyDictionary[Logger, float] = WeakKeyDictionary()
"""Loggers that failed, and when they are tried again."""


@rank_zero_only
def log_metrics(
    trainer: L.Trainer, metrics: Mapping[str, float], learner_step: int | None = None
) -> None:
    """Write metrics at a learner step, now's by default."""
    step = trainer.global_step if learner_step is None else learner_step
    for watcher in parts_of(trainer, WatchesMetrics):
        watcher.watch(step, metrics)

    def write(logger: Logger) -> None:
        if isinstance(logger, CSVLogger):
            keep_whole(logger.experiment)
        logger.log_metrics(dict(metrics), step=step)
        logger.save()  # 0.4 ms; CSVLogger alone would lose up to 100 rows of a killed run

    tell_loggers(trainer, write)


@rank_zero_only
def log_configuration(trainer: L.Trainer, configuration: Mapping[str, Any]) -> None:
    """Write the run's settings."""
    tell_loggers(trainer, lambda logger: logger.log_hyperparams(dict(configuration)))


def tell_loggers(
    trainer: L.Trainer, write: Callable[[Any], object], kind: type[Logger] = Logger
) -> None:
    """Write something to each logger of a kind that has not failed of late; call it on rank 0.

    One that fails is reported, and left alone for a minute.
    """
    for logger in trainer.loggers:
        is_willing = time.monotonic() >= _paused_until.get(logger, 0.0)
        if isinstance(logger, kind) and is_willing:
            with _reporting_failures(logger):
                write(logger)


def name_run(logger: Logger, name: str) -> None:
    """Give a run that W&B or MLflow is about to begin a name, unless the user did.

    A run that goes on under its id keeps the name it has.
    """
    own: dict[str, Any] = vars(logger)
    if isinstance(logger, MLFlowLogger):
        own["_run_name"] = own["_run_name"] or name
    elif isinstance(logger, WandbLogger) and not {"WANDB_NAME", "WANDB_RUN_ID"} & os.environ.keys():
        settings = own["_wandb_init"]
        if not settings["id"]:
            settings["name"] = settings["name"] or name


class KeepsBest(Protocol):
    """Knows the path of the best checkpoint, empty if there is none."""

    best_model_path: str


class RunFiles(L.Callback):
    """Give MLflow and W&B what a run has written, `config.yaml` and `summary.json`, when it ends.

    Files of others may lie beside them. `best.ckpt` goes with them if the logger has `log_model`.
    Its place is after all parts that save.

    Args:
        best: What knows where the best checkpoint is.
    """

    def __init__(self, best: KeepsBest) -> None:
        self._best = best

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            for logger in trainer.loggers:
                if "finalize" not in vars(logger):
                    logger.finalize = functools.partial(_finalize, logger, logger.finalize)

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._hand_over(trainer)

    @override
    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if trainer.state.fn == "fit" and AT_ONCE not in exception.args:
            self._hand_over(trainer)

    @rank_zero_only
    def _hand_over(self, trainer: L.Trainer) -> None:
        files = [path for part in parts_of(trainer, WritesFiles) for path in part.written]

        def write(logger: Logger) -> None:
            best = [Path(self._best.best_model_path)] if vars(logger).get("_log_model") else []
            _give(logger, [path for path in (*files, *best) if path.is_file()])

        tell_loggers(trainer, write)


def _give(logger: Logger, files: Sequence[Path]) -> None:
    if isinstance(logger, MLFlowLogger) and logger.run_id:
        for path in files:
            logger.experiment.log_artifact(logger.run_id, str(path))
    elif isinstance(logger, WandbLogger) and files:
        import wandb

        artifact = wandb.Artifact(f"files-{logger.experiment.id}", type="run-files")
        for path in files:
            artifact.add_file(str(path))
        logger.experiment.log_artifact(artifact)


def _finalize(logger: Logger, finalize: Callable[[str], None], status: str) -> None:
    """Keep Lightning's last word to a logger from ending a run that trained to its end."""
    # Lightning calls all that was stopped "failed", while it handles the exception.
    is_stopped = isinstance(sys.exc_info()[1], (KeyboardInterrupt, SIGTERMException))
    if is_stopped and isinstance(logger, MLFlowLogger):
        status = "KILLED"
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
