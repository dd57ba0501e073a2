"""Evaluation beside training: a process plays the episodes, the learner goes on."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lrl.callbacks.checkpoints import BestCheckpoint, save_checkpoint
from lrl.callbacks.evaluation import PeriodicEvaluation
from lrl.checkpoints.files import SaveError, temporary_beside
from lrl.checkpoints.runs import checkpoint_folder, is_trial
from lrl.evaluation.evaluator import Evaluator, EvaluatorPlan
from lrl.learner.datamodule import datamodule_of
from lrl.loggers.records import log_metrics
from lrl.networks.q_network import vector_size
from lrl.parts.renamed import knows_old_names
from lrl.preflight.callbacks import EvaluatesInBackground
from lrl.preflight.trainer import check_evaluation_schedule
from lrl.types import ConfigError

_log = logging.getLogger(__name__)


@knows_old_names
class BackgroundEvaluation(PeriodicEvaluation, EvaluatesInBackground):
    """Have an evaluator play the validation episodes every so many learner steps.

    Each evaluation begins with a checkpoint, the candidate, which becomes `best.ckpt` if its
    score turns out the best; the score is logged at the learner step of the weights. An evaluation
    that is due while the one before still runs is left out, with a warning; the one of the last
    learner step never is. With several ranks the first one evaluates.

    Lightning's validation loop does not run, so what monitors `eval/` metrics through it is refused
    at setup.

    Args:
        period_learner_steps: Learner steps between evaluations, at least 1.
        best: Keeps the best candidate.
    """

    def __init__(self, period_learner_steps: int, best: BestCheckpoint) -> None:
        super().__init__(period_learner_steps)
        if period_learner_steps == 0:
            raise ConfigError(
                "evaluation is 'background', but eval_period_learner_steps is 0 (never): set the "
                "period, or evaluation to 'inline'"
            )
        self.best = best
        self.seconds = 0.0  # that the last evaluation took
        self._evaluator: Evaluator | None = None
        self._candidate: Path | None = None
        self._asked_step = 0
        self._asked_at = 0.0
        self._skipped_step = -1
        self._is_awaiting = False
        self._is_kept = False  # the candidate, in its file

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Turn Lightning's validation off."""
        if stage != "fit":
            return
        check_evaluation_schedule(trainer, self)
        self._replace(trainer, limit_val_batches=0)
        candidate = temporary_beside(checkpoint_folder(trainer) / "candidate.ckpt")
        self._candidate = None if is_trial(trainer) else candidate

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the evaluator, with what a resumed run may have left out."""
        self._asked_step, self._skipped_step, self._is_awaiting = 0, -1, False
        if trainer.is_global_zero:
            self._start(trainer)
        if self.is_due(trainer):
            self._begin(trainer)

    def _start(self, trainer: L.Trainer) -> None:
        datamodule, module = datamodule_of(trainer), self._module(trainer)
        plan = EvaluatorPlan(
            network=module.network_recipe,
            env=datamodule.evaluation_env,
            seeds=datamodule.val_dataloader().seeds,
            epsilon=datamodule.evaluation.epsilon_for(datamodule.env),
            max_frames=datamodule.evaluation.max_frames_for(datamodule.env),
        )
        self._evaluator = Evaluator(plan, vector_size(module.online), datamodule.actors)
        self._evaluator.start()

    def is_due(self, trainer: L.Trainer) -> bool:
        """Return whether weights of this learner step are to be evaluated."""
        period, step = self.period_learner_steps, trainer.global_step
        return step > self._asked_step and step % period == 0

    def is_last(self, trainer: L.Trainer) -> bool:
        """Return whether `on_train_end` follows, which waits for the score."""
        return trainer.global_step == trainer.max_steps

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Take a result, if one has come; have the weights evaluated, if it is time."""
        self._take_result(trainer)
        if not self.is_due(trainer) or self._skipped_step == trainer.global_step:
            return
        if not trainer.strategy.broadcast(self._is_awaiting):
            self._begin(trainer)
        elif not self.is_last(trainer):
            self._skipped_step = trainer.global_step  # which batches may follow that accumulate
            _log.warning(
                "the evaluation at learner step %d is left out: that of step %d still runs after "
                "%.0f s; raise eval_period_learner_steps or lower evaluation.episodes",
                trainer.global_step, self._asked_step, time.monotonic() - self._asked_at,
            )  # fmt: skip

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait for the evaluation that runs, and evaluate the last weights if they were due."""
        self._wait(trainer)
        if self.is_due(trainer):
            self._begin(trainer)
            self._wait(trainer)
        self.best.best_model_path, self.best.best_model_score = trainer.strategy.broadcast(
            (self.best.best_model_path, self.best.best_model_score)
        )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Stop the evaluator, and let the Trainer validate again.

        After an exception, what the evaluator was at is lost, unless a resumed run begins at its
        step.
        """
        super().teardown(trainer, pl_module, stage)
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None
        self._discard_candidate()

    def _begin(self, trainer: L.Trainer) -> None:
        """Save the candidate and have it evaluated; all ranks call it."""
        self._asked_step, self._asked_at = trainer.global_step, time.monotonic()
        self._is_kept = False
        try:
            if self._candidate is not None:
                save_checkpoint(trainer, self._candidate)
                self._is_kept = True
        except SaveError as error:
            if trainer.is_global_zero:
                _log.error("weights that may prove the best could not be kept: %s", error)
        if self._evaluator is not None:
            self._evaluator.ask(self._module(trainer).online, self._asked_step)
            self._is_awaiting = True

    def _wait(self, trainer: L.Trainer) -> None:
        """Wait for the evaluation that runs; all ranks call it, and none waits in silence."""
        if self._is_awaiting:
            _log.info("waiting for the evaluation of learner step %d", self._asked_step)
        while trainer.strategy.broadcast(self._is_awaiting):
            datamodule_of(trainer).check()
            datamodule_of(trainer).meet()
            self._take_result(trainer)
            time.sleep(0.02)

    def _take_result(self, trainer: L.Trainer) -> None:
        if self._evaluator is None:
            return
        self._evaluator.check()
        if not self._is_awaiting or self._evaluator.is_busy:
            return
        self._is_awaiting = False
        self.seconds = time.monotonic() - self._asked_at
        metrics = self._evaluator.results().metrics()
        trainer.callback_metrics.update(
            {name: torch.tensor(value) for name, value in metrics.items()}  # for the progress bar
        )
        log_metrics(trainer, metrics, self._asked_step)
        if self._candidate is not None and self._is_kept:
            self.best.take(trainer, self._candidate, metrics)
        self._discard_candidate()  # it must not pass for the next, if that cannot be saved

    def _discard_candidate(self) -> None:
        if self._candidate is not None:
            with suppress(OSError):
                self._candidate.unlink(missing_ok=True)

    @staticmethod
    def _module(trainer: L.Trainer) -> Any:
        return trainer.lightning_module
