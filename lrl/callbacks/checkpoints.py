"""Checkpoints: the best evaluated weights, and the last ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from lrl.evaluator import EvaluatorError
from lrl.interrupt import AT_ONCE
from lrl.types import ConfigError

_log = logging.getLogger(__name__)


def checkpoint_folder(trainer: L.Trainer) -> Path:
    """Return the run's folder of checkpoints; all ranks must call it."""
    return Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints"


class BestCheckpoint(Checkpoint):
    """Keep `best.ckpt`: the weights with the best evaluation so far.

    Only a strictly better score replaces it, a NaN never does. The score is stored in every
    checkpoint, so that a resumed run does not overwrite a better one with a worse.

    Args:
        monitor: Metric to maximise, from the validation loop.
    """

    def __init__(self, monitor: str = "eval/return_mean") -> None:
        if not monitor.startswith("eval/"):
            raise ConfigError(
                f"monitor must be a metric of the evaluation (eval/...), got {monitor!r}"
            )
        self.monitor = monitor
        self.best_model_path = ""
        self.best_model_score = -math.inf
        self.folder: Path | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the run's folder."""
        if stage == "fit":
            self.folder = checkpoint_folder(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, if this evaluation is better than all before."""
        if trainer.state.fn != "fit":
            return
        score = self._score(trainer.callback_metrics)
        if score > self.best_model_score:
            path = self._rise_to(score)
            trainer.save_checkpoint(path, weights_only=False)

    def take(self, trainer: L.Trainer, candidate: Path, metrics: Mapping[str, float]) -> None:
        """Keep a checkpoint that was evaluated aside of training, if it is better than all before.

        Args:
            trainer: Its strategy writes the file.
            candidate: The checkpoint; it is moved.
            metrics: Its evaluation.
        """
        score = self._score(metrics)
        if score > self.best_model_score:
            path = self._rise_to(score)
            try:
                self._update_score(trainer, candidate)
            except Exception as error:  # what other callbacks put there may not load safely
                _log.warning("%s keeps the best score of before: %s", path, error)
            candidate.replace(path)

    def _update_score(self, trainer: L.Trainer, candidate: Path) -> None:
        """Write the score into a checkpoint from before it was known, for runs that go on there."""
        content = torch.load(candidate, map_location="cpu", weights_only=True)
        own = self.state_dict()
        for state in content["callbacks"].values():
            if state.keys() == own.keys():
                state.update(own)
        trainer.strategy.checkpoint_io.save_checkpoint(content, candidate)

    def _score(self, metrics: Mapping[str, float | Tensor]) -> float:
        if self.monitor not in metrics:
            raise ConfigError(
                f"monitor {self.monitor!r} is not logged by the evaluation; it knows "
                f"{sorted(metrics)}"
            )
        return float(metrics[self.monitor])

    def _rise_to(self, score: float) -> str:
        assert self.folder is not None
        self.best_model_score = score
        self.best_model_path = str(self.folder / "best.ckpt")
        return self.best_model_path

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and where its weights are."""
        return {"best_model_score": self.best_model_score, "best_model_path": self.best_model_path}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best score of the run that is resumed."""
        self.best_model_score = state_dict["best_model_score"]
        self.best_model_path = state_dict["best_model_path"]


class LastCheckpoint(Checkpoint):
    """Keep `last.ckpt`: periodically, at the end, and when the run is interrupted.

    On a learner step that ends with an evaluation it waits for it: a checkpoint from before would
    make the resumed run skip that evaluation.

    Args:
        interval_learner_steps: Learner steps between saves; 0 saves at the end only.
        evaluation_is_due: Tells whether the current learner step ends with an evaluation.
    """

    def __init__(
        self,
        interval_learner_steps: int = 10_000,
        evaluation_is_due: Callable[[L.Trainer], bool] = lambda trainer: False,
    ) -> None:
        if interval_learner_steps < 0:
            raise ConfigError(
                "save_interval_learner_steps must be at least 0 (0: at the end only), got "
                f"{interval_learner_steps}"
            )
        self.interval_learner_steps = interval_learner_steps
        self.last_model_path = ""
        self._evaluation_is_due = evaluation_is_due
        self._saved_step = -1
        self._folder: Path | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the run's folder."""
        if stage == "fit":
            self._folder = checkpoint_folder(trainer)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if it is time and no evaluation follows."""
        if self._is_time(trainer) and not self._evaluation_is_due(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if it is time and the evaluation was waited for."""
        if trainer.state.fn == "fit" and self._is_time(trainer):
            self._save(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the final weights."""
        self._save(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save on Ctrl-C, SIGTERM and when evaluation fails; else the state may be wrong."""
        asked_to_stop = isinstance(exception, (KeyboardInterrupt, SIGTERMException, EvaluatorError))
        asked_to_stop &= AT_ONCE not in exception.args  # it came in the middle of something
        if asked_to_stop and trainer.global_step > 0 and trainer.world_size == 1:
            try:
                self._save(trainer)
            except Exception:  # what follows stops the actors
                _log.exception("%s could not be saved", self.last_model_path)

    def _is_time(self, trainer: L.Trainer) -> bool:
        interval, step = self.interval_learner_steps, trainer.global_step
        return interval > 0 and step > 0 and step % interval == 0

    def _save(self, trainer: L.Trainer) -> None:
        if self._folder is not None and self._saved_step != trainer.global_step:
            self.last_model_path = str(self._folder / "last.ckpt")
            trainer.save_checkpoint(self.last_model_path, weights_only=False)
            self._saved_step = trainer.global_step
