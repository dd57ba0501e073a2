"""The one callback of a run: weight sync, metrics, evaluation and checkpoints in their order."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lrl.callbacks.background_evaluation import BackgroundEvaluation
from lrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lrl.callbacks.evaluation import PeriodicEvaluation
from lrl.callbacks.summary import RunSummary
from lrl.callbacks.throughput import Throughput
from lrl.callbacks.video import EpisodeVideo
from lrl.callbacks.weight_sync import PriorityUpdate, WeightSync
from lrl.interrupt import interrupt
from lrl.learner.stamp import other_protocol
from lrl.types import ConfigError


class ActorLearnerCallback(Checkpoint):
    """Connect the learner with its actors: one line in a YAML or a script.

    Order within a learner step: drain and optimise (dataset and module), sync weights, log,
    evaluate and keep the best, then save `last`. The parts also work alone.

    It is a Lightning `Checkpoint` with `best_model_path`, so the Trainer adds none of its own and
    `ckpt_path="best"` finds the best weights. Where the Trainer has no integer
    `limit_train_batches`, an epoch becomes as long as the evaluation interval (or 1000 steps).

    Args:
        sync_period_learner_steps: Learner steps between two versions of the actors' weights.
        eval_interval_learner_steps: Learner steps between evaluations; 0 turns them off.
        save_interval_learner_steps: Learner steps between saves of `last.ckpt`; 0 saves at the
            end only.
        monitor: Evaluation metric whose maximum is kept as `best.ckpt`.
        evaluation: `inline` stops training for it and suits few cores; `background` plays the
            episodes in a process of its own, which wants a core to itself.
        video_interval_learner_steps: Learner steps between films of the first evaluation episode,
            for which training stops and which TensorBoard shows as `eval/video`; 0 makes none.
    """

    syncs_weights = True
    updates_priorities = True

    def __init__(
        self,
        sync_period_learner_steps: int = 100,
        eval_interval_learner_steps: int = 5000,
        save_interval_learner_steps: int = 10_000,
        monitor: str = "eval/return_mean",
        evaluation: Literal["inline", "background"] = "inline",
        video_interval_learner_steps: int = 0,
    ) -> None:
        self.weight_sync = WeightSync(sync_period_learner_steps)
        self.throughput = Throughput(self.weight_sync)
        if evaluation not in ("inline", "background"):
            raise ConfigError(f"evaluation must be 'inline' or 'background', got {evaluation!r}")
        self.best = BestCheckpoint(monitor)
        if evaluation == "background":
            self.evaluation = BackgroundEvaluation(eval_interval_learner_steps, self.best)
            self.last = LastCheckpoint(save_interval_learner_steps, self.evaluation.is_last)
        else:
            self.evaluation = PeriodicEvaluation(eval_interval_learner_steps)
            self.last = LastCheckpoint(save_interval_learner_steps, self.evaluation.is_due)
        self._compares = True
        self.summary = RunSummary(self.best)
        self.parts: list[L.Callback] = [
            PriorityUpdate(),
            self.weight_sync,
            self.throughput,
            self.evaluation,
            self.best,
            self.last,
            EpisodeVideo(video_interval_learner_steps),
            self.summary,
        ]

    @property
    def evaluates_in_background(self) -> bool:
        """Whether a process of its own plays the evaluation episodes."""
        return isinstance(self.evaluation, BackgroundEvaluation)

    @property
    def best_model_path(self) -> str:
        """Path of the best checkpoint, empty before the first evaluation."""
        return self.best.best_model_path

    @property
    def best_model_score(self) -> float:
        """Score of the best checkpoint."""
        return self.best.best_model_score

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Prepare the parts, and take over Ctrl-C."""
        for part in self.parts:
            part.setup(trainer, pl_module, stage)
        if stage == "fit":
            if not isinstance(trainer.limit_train_batches, int):
                learner_steps = self.evaluation.interval_learner_steps or 1000
                trainer.limit_train_batches = learner_steps * trainer.accumulate_grad_batches
            interrupt.install()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forward to the parts."""
        for part in self.parts:
            part.on_train_start(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forward to the part that times the optimisation."""
        self.throughput.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Forward to the parts, in order."""
        for part in self.parts:
            part.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forward to the parts, in order."""
        for part in self.parts:
            part.on_validation_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait for an evaluation in the background, and save the last checkpoint."""
        self.evaluation.on_train_end(trainer, pl_module)
        self.last.on_train_end(trainer, pl_module)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save what can be saved, stop the actors."""
        for part in self.parts:
            part.on_exception(trainer, pl_module, exception)
        interrupt.uninstall()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give Ctrl-C back and write the summary."""
        interrupt.uninstall()
        for part in self.parts:
            part.teardown(trainer, pl_module, stage)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score."""
        return self.best.state_dict()

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note whether the scores of the run that is resumed compare with this one's."""
        self._compares = not other_protocol(checkpoint, getattr(trainer, "datamodule", None))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best score of the run that is resumed, if it is one to beat."""
        if self._compares:
            self.best.load_state_dict(state_dict)
