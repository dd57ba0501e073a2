"""When to evaluate, and the rows that evaluation writes."""

from __future__ import annotations

from typing import Any

import lightning as L
from typing_extensions import override

from lrl.callbacks.group import TornDownAlways
from lrl.loggers.records import log_metrics
from lrl.parts.renamed import knows_old_names
from lrl.parts.settings import check_count
from lrl.preflight.callbacks import Evaluates
from lrl.preflight.trainer import check_evaluation_schedule
from lrl.types import ConfigError

DEFAULT_EVAL_PERIOD = 500


@knows_old_names
class PeriodicEvaluation(TornDownAlways, Evaluates):
    """Run Lightning's validation loop every so many learner steps.

    Args:
        period_learner_steps: Learner steps between evaluations; 0 turns them off.
    """

    def __init__(self, period_learner_steps: int = DEFAULT_EVAL_PERIOD) -> None:
        check_count("eval_period_learner_steps", period_learner_steps, 0, " (0: never)")
        self.period_learner_steps = period_learner_steps
        self._replaced: dict[str, Any] = {}

    @property
    @override
    def period(self) -> tuple[str, int]:
        return "actor_learner.eval_period_learner_steps", self.period_learner_steps

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the Trainer's schedule; an untrained network plays no sanity episodes."""
        if stage != "fit":
            return
        check_evaluation_schedule(trainer, self)
        if self.period_learner_steps == 0:
            self._replace(trainer, limit_val_batches=0)
            return
        batches = batches_in(trainer, pl_module, self.period_learner_steps)
        self._replace(trainer, val_check_interval=batches, check_val_every_n_epoch=None)
        for callback in trainer.early_stopping_callbacks:
            # Set up before this schedule was, it would look for a score at the end of every epoch.
            if callback.monitor.startswith("eval/"):
                callback._check_on_train_epoch_end = False

    @override
    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Check that a run goes on with as many batches for each learner step as it had."""
        loops = checkpoint.get("loops", {}).get("fit_loop", {})
        progress = loops.get("epoch_loop.batch_progress", {}).get("total", {})
        batches, steps = progress.get("processed", 0), checkpoint["global_step"]
        here = trainer.accumulate_grad_batches
        counts = self.period_learner_steps > 0 and pl_module.automatic_optimization
        if trainer.state.fn != "fit" or not (counts and batches and steps):
            return
        if not here * steps <= batches < here * (steps + 1):  # it may have been interrupted
            there = batches // steps
            raise ConfigError(
                f"trainer.accumulate_grad_batches is {here}, but the checkpoint's run had {there}, "
                f"by which its evaluations are counted: set it to {there}"
            )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the Trainer its own schedule back."""
        for name, value in self._replaced.items():
            setattr(trainer, name, value)
        self._replaced = {}

    def is_due(self, trainer: L.Trainer) -> bool:
        """Return whether this learner step ends with an evaluation."""
        period = self.period_learner_steps
        evaluates = period > 0 and trainer.enable_validation
        return evaluates and trainer.global_step % period == 0

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the evaluation at the learner step it belongs to."""
        if trainer.state.fn == "fit":
            note_evaluation(trainer, is_played=True)
            metrics = {
                name: float(value)
                for name, value in trainer.callback_metrics.items()
                if name.startswith("eval/")
            }
            log_metrics(trainer, metrics)

    def _replace(self, trainer: L.Trainer, **settings: Any) -> None:
        settings["num_sanity_val_steps"] = 0
        self._replaced = {name: getattr(trainer, name) for name in settings}
        for name, value in settings.items():
            setattr(trainer, name, value)


def batches_in(trainer: L.Trainer, pl_module: L.LightningModule, learner_steps: int) -> int:
    """Return the batches, as the Trainer counts them, of so many learner steps."""
    updates_per_step: int = getattr(pl_module, "updates_per_step", 1)
    return max(1, learner_steps * trainer.accumulate_grad_batches // updates_per_step)


def note_evaluation(trainer: L.Trainer, *, is_played: bool) -> None:
    """Note for checkpoints whether this learner step's evaluation was played.

    Lightning counts an evaluation that was interrupted as begun after its first batch only, which
    comes when all episodes are over. A resumed run would leave it out.
    """
    total: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total
    total.processed = total.completed
    total.ready = total.started = total.completed + (not is_played)
