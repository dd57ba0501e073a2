"""What goes to TensorBoard every so many learner steps."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from lrl.parts.settings import check_count
from lrl.preflight.callbacks import IsPeriodic
from lrl.types import ConfigError


class TensorBoardOutput(L.Callback, IsPeriodic):
    """Show something in TensorBoard every so many learner steps; a subclass says what.

    Args:
        period_learner_steps: Learner steps between two of them; 0 makes none.
    """

    setting: str
    """Name of the period among the arguments of `ActorLearnerCallback`."""
    shown: str
    """What is shown, in words."""

    def __init__(self, period_learner_steps: int = 0) -> None:
        check_count(self.setting, period_learner_steps, 0, " (0: never)")
        self.period_learner_steps = period_learner_steps
        self._shown_step = 0
        self._is_shown = False

    @property
    @override
    def period(self) -> tuple[str, int]:
        return f"actor_learner.{self.setting}", self.period_learner_steps

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._is_shown = self.period_learner_steps > 0 and not getattr(trainer, "fast_dev_run", 0)
        if stage != "fit" or not self._is_shown:  # a trial has no loggers
            return
        try:
            if not any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers):
                raise ConfigError(
                    f"{self.shown} go to TensorBoard and the Trainer has no TensorBoardLogger: "
                    "add one"
                )
            self.check(trainer, pl_module)
        except ConfigError as error:
            raise ConfigError(
                f"{self.setting} is {self.period_learner_steps}, but {error} (0 makes no "
                f"{self.shown})"
            ) from error

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._shown_step = trainer.global_step

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        period, step = self.period_learner_steps, trainer.global_step
        if self._is_shown and step % period == 0 and step != self._shown_step:
            self._shown_step = step
            if trainer.is_global_zero:
                self.show(trainer, pl_module)

    @abstractmethod
    def check(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a run in which there will be nothing to show.

        Raises:
            ConfigError: There will be nothing; the name and the value of the setting come before.
        """

    @abstractmethod
    def show(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write it, at this learner step, on rank 0."""
