"""Distributions of values and TD errors, as histograms in TensorBoard."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from typing_extensions import override

from lrl.learner.dqn import DQN
from lrl.loggers.records import tell_loggers
from lrl.loggers.tensorboard import TensorBoardOutput
from lrl.parts.device_copies import on_host
from lrl.types import ConfigError

VALUES, ERRORS = "distribution/q", "distribution/td_error"


class Histograms(TensorBoardOutput):
    """Write histograms of values and TD errors every so many learner steps.

    `distribution/q` is of the values that the online network predicts for the actions of a batch,
    `distribution/td_error` of its targets minus them: of batches that are logged anyway, which are
    read then.

    Args:
        period_learner_steps: Learner steps between histograms; 0 makes none.
    """

    setting = "histogram_period_learner_steps"
    shown = "histograms"

    @override
    def check(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if is_overridden("measure", pl_module, DQN):
            raise ConfigError(
                f"{type(pl_module).__name__}.measure replaces DQN's, which keeps what histograms "
                "show: leave it out"
            )
        logged = getattr(trainer, "log_every_n_steps", 0)
        if logged < 1 or self.period_learner_steps % logged:
            raise ConfigError(
                "histograms are of the batches that are logged: it must be a multiple of "
                f"trainer.log_every_n_steps, {logged}"
            )

    @override
    def show(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module: Any = pl_module
        prediction, target, learns = on_host(list(module.measured))
        if learns is not None:
            prediction, target = prediction[learns], target[learns]
        found = {VALUES: prediction.float(), ERRORS: (target - prediction).float()}

        def write(logger: Any) -> None:
            for tag, values in found.items():
                logger.experiment.add_histogram(tag, values, trainer.global_step)

        tell_loggers(trainer, write, TensorBoardLogger)
