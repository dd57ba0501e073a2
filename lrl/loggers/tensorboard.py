"""What TensorBoard shows: a page of charts on one look, and distributions of values and errors."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from typing_extensions import override

from lrl.learner.dqn import DQN
from lrl.loggers.records import tell_loggers
from lrl.parts.device_copies import on_host
from lrl.preflight.callbacks import IsPeriodic
from lrl.types import ConfigError

LAYOUT: dict[str, dict[str, list[str]]] = {
    "learning": {
        "loss": ["train/loss"],
        "values": ["train/q_mean", "train/target_mean", "rollout/start_value_mean"],
        "error": ["train/td_error_mean", "train/target_minus_q_mean"],
        "gradient norm": ["train/grad_norm"],
        "dead units": ["train/dead_units"],
    },
    "acting": {
        "return of training episodes": ["rollout/return_mean"],
        "length of training episodes": ["rollout/length_mean"],
        "exploration": ["train/epsilon", "train/greedy_fraction"],
        "env steps per second": ["speed/env_steps_per_second"],
        "waiting": ["speed/learner_wait_fraction", "speed/actor_wait_fraction"],
    },
    "replay": {
        "size": ["replay/size"],
        "samples per insert": ["speed/samples_per_insert"],
        "distinct rows of a batch": ["train/distinct_rows"],
        "highest priority": ["replay/priority_max"],
        "rewards": ["train/reward_mean", "train/reward_abs_max"],
    },
    "sync": {
        "age of the policies": ["sync/policy_lag_mean"],
        "fill of the rings": ["transport/queue_fill"],
        "restarts of actors": ["count/actor_restarts"],
    },
    "evaluation": {
        "return": ["eval/return_mean", "eval/return_min", "eval/return_max"],
        "length": ["eval/length_mean"],
        "timeouts": ["eval/timeouts"],
    },
}
"""Categories of TensorBoard's custom scalars, their charts, and the metrics in each."""
VALUES, ERRORS = "distribution/q", "distribution/td_error"


class TensorBoardPages(L.Callback, IsPeriodic):
    """Lay out charts when training begins, and write histograms every so many learner steps.

    Charts are for TensorBoard's loggers, where the Trainer has any. `distribution/q` and
    `distribution/td_error` are of the values that the online network predicts for the actions of a
    batch, and of its targets minus them: of batches that are logged anyway, which are read then.

    Args:
        histogram_period_learner_steps: Learner steps between histograms; 0 writes none.
    """

    def __init__(self, histogram_period_learner_steps: int = 0) -> None:
        if histogram_period_learner_steps < 0:
            raise ConfigError(
                "histogram_period_learner_steps must be at least 0 (0: never), got "
                f"{histogram_period_learner_steps}"
            )
        self.histogram_period_learner_steps = histogram_period_learner_steps
        self._written_step = 0

    @property
    @override
    def period(self) -> tuple[str, int]:
        return "actor_learner.histogram_period_learner_steps", self.histogram_period_learner_steps

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse histograms that nobody could see, or that no logged batch is there for."""
        period = self.histogram_period_learner_steps
        if stage != "fit" or period == 0:
            return
        setting = f"histogram_period_learner_steps is {period}"
        if not tensorboards_of(trainer):
            raise ConfigError(
                f"{setting}, but histograms go to TensorBoard and the Trainer has no "
                "TensorBoardLogger: add one, or set it to 0"
            )
        if is_overridden("measure", pl_module, DQN):
            raise ConfigError(
                f"{setting}, but {type(pl_module).__name__}.measure replaces DQN's, which keeps "
                "what histograms show: leave it out, or set the period to 0"
            )
        logged = getattr(trainer, "log_every_n_steps", 0)
        if logged < 1 or period % logged:
            raise ConfigError(
                f"{setting}, which is no multiple of trainer.log_every_n_steps, {logged}, and "
                "histograms are of the batches that are logged: set it to a multiple, or to 0"
            )

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._written_step = trainer.global_step
        _lay_out(trainer)

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        period, step = self.histogram_period_learner_steps, trainer.global_step
        if period > 0 and step % period == 0 and step != self._written_step:
            self._written_step = step
            _write_histograms(trainer, pl_module)


def tensorboards_of(trainer: L.Trainer) -> list[Any]:
    """Return the Trainer's TensorBoard loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


@rank_zero_only
def _lay_out(trainer: L.Trainer) -> None:
    layout = {
        category: {
            chart: ["Multiline", [f"^{tag}$" for tag in tags]] for chart, tags in charts.items()
        }
        for category, charts in LAYOUT.items()
    }

    def write(logger: Any) -> None:
        logger.experiment.add_custom_scalars(layout)
        logger.experiment.flush()  # now, since a writer that fails later loses what it holds

    tell_loggers(trainer, write, TensorBoardLogger)


@rank_zero_only
def _write_histograms(trainer: L.Trainer, module: Any) -> None:
    prediction, target, learns = on_host(list(module.measured))
    if learns is not None:
        prediction, target = prediction[learns], target[learns]
    found = {VALUES: prediction.float(), ERRORS: (target - prediction).float()}

    def write(logger: Any) -> None:
        for tag, values in found.items():
            logger.experiment.add_histogram(tag, values, trainer.global_step)

    tell_loggers(trainer, write, TensorBoardLogger)
