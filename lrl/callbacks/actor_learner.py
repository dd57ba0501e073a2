"""The one callback of a run: weight sync, metrics, evaluation and checkpoints in their order."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lrl.callbacks.background_evaluation import BackgroundEvaluation
from lrl.callbacks.checkpoints import DEFAULT_MONITOR, BestCheckpoint, FolderClaim, LastCheckpoint
from lrl.callbacks.evaluation import DEFAULT_EVAL_INTERVAL, PeriodicEvaluation, batches_in
from lrl.callbacks.logging import let_loggers_fail
from lrl.callbacks.metrics import Throughput
from lrl.callbacks.progress import introduction, replace_defaults
from lrl.callbacks.replay_checkpoint import ReplayCheckpoint
from lrl.callbacks.requeue import SlurmRequeue
from lrl.callbacks.summary import RunSummary
from lrl.callbacks.video import EpisodeVideo
from lrl.callbacks.weight_sync import DEFAULT_SYNC_PERIOD, PriorityUpdate, WeightSync
from lrl.checkpoints.stamp import other_protocol
from lrl.preflight.ranks import end_ranks_that_wait
from lrl.processes.interrupt import interrupt
from lrl.types import ConfigError


class ActorLearnerCallback(Checkpoint):
    """Connect the learner with its actors: one line in a YAML or a script.

    Order within a learner step: drain and optimise (dataset and module), sync weights, log,
    evaluate and keep the best, then save `last`. The parts also work alone.

    It is a Lightning `Checkpoint` with `best_model_path`, so the Trainer adds none of its own and
    `ckpt_path="best"` finds the best weights. Where the Trainer has no integer
    `limit_train_batches`, an epoch becomes as long as the evaluation interval (or 1000 steps).
    Lightning's own bar gives way to `RLProgressBar`, and its table of layers to three lines of
    lrl's; a subclass of them stays.

    Args:
        sync_period_learner_steps: Learner steps between two versions of the actors' weights; to be
            left out in synchronous mode, which acts with the newest.
        eval_interval_learner_steps: Learner steps between evaluations; 0 turns them off.
        save_interval_learner_steps: Learner steps between saves of `last.ckpt`; 0 saves at the
            end only.
        monitor: Evaluation metric whose maximum is kept as `best.ckpt`.
        evaluation: `inline` stops training for it and suits few cores; `background` plays the
            episodes in a process of its own, which wants a core to itself.
        video_interval_learner_steps: Learner steps between films of the first evaluation episode,
            for which training stops and which TensorBoard shows as `eval/video`; 0 makes none.
        checkpoint_replay: Whether the replay is saved with `last.ckpt`, in the background, so that
            a run that goes on from there need not fill it again; it takes its size on the disk.
    """

    syncs_weights = True
    updates_priorities = True

    def __init__(
        self,
        sync_period_learner_steps: int = DEFAULT_SYNC_PERIOD,
        eval_interval_learner_steps: int = DEFAULT_EVAL_INTERVAL,
        save_interval_learner_steps: int = 10_000,
        monitor: str = DEFAULT_MONITOR,
        evaluation: Literal["inline", "background"] = "inline",
        video_interval_learner_steps: int = 0,
        checkpoint_replay: bool = False,
    ) -> None:
        self.weight_sync = WeightSync(sync_period_learner_steps)
        self.video = EpisodeVideo(video_interval_learner_steps)
        self.throughput = Throughput(self.weight_sync, self.video)
        if evaluation not in ("inline", "background"):
            raise ConfigError(f"evaluation must be 'inline' or 'background', got {evaluation!r}")
        if eval_interval_learner_steps == 0 and monitor != DEFAULT_MONITOR:
            raise ConfigError(
                f"monitor is {monitor!r}, but eval_interval_learner_steps is 0 (never), so that "
                "there is no best: set the interval, or leave monitor out"
            )
        self.best = BestCheckpoint(monitor)
        self.replay = ReplayCheckpoint(checkpoint_replay)
        self.saves_replay = checkpoint_replay
        interval = save_interval_learner_steps
        if evaluation == "background":
            self.evaluation = BackgroundEvaluation(eval_interval_learner_steps, self.best)
            self.last = LastCheckpoint(interval, self.evaluation.is_last, self.replay.beside)
        else:
            self.evaluation = PeriodicEvaluation(eval_interval_learner_steps)
            self.last = LastCheckpoint(interval, self.evaluation.is_due, self.replay.beside)
        self._compares, self._resumed = True, ""
        self.summary = RunSummary(self.best, self.throughput)
        self.requeue = SlurmRequeue()
        self._claim = FolderClaim()
        self.parts: list[L.Callback] = [
            PriorityUpdate(),
            self.weight_sync,
            self.throughput,
            self.evaluation,
            self.best,
            self.last,
            self.video,
            self.summary,
        ]

    @property
    def evaluates_in_background(self) -> bool:
        """Whether a process of its own plays the evaluation episodes."""
        return isinstance(self.evaluation, BackgroundEvaluation)

    @property
    def periods_learner_steps(self) -> dict[str, int]:
        """All periods of the parts in learner steps, by setting."""
        return {
            f"actor_learner.{name}": value
            for name, value in (
                ("sync_period_learner_steps", self.weight_sync.period_learner_steps),
                ("eval_interval_learner_steps", self.evaluation.interval_learner_steps),
                ("save_interval_learner_steps", self.last.interval_learner_steps),
                ("video_interval_learner_steps", self.video.interval_learner_steps),
            )
        }

    @property
    def best_model_path(self) -> str:
        """Path of the best checkpoint, empty before the first evaluation."""
        return self.best.best_model_path

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        """Take over what a spawned rank saved (`ddp_spawn`)."""
        self.best.best_model_path = path

    @property
    def best_model_score(self) -> float:
        """Score of the best checkpoint."""
        return self.best.best_model_score

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Prepare the parts, and take over Ctrl-C."""
        if stage == "fit":
            self._claim.make(trainer)
        for part in self.parts:
            part.setup(trainer, pl_module, stage)
        if stage == "fit":
            if not isinstance(trainer.limit_train_batches, int):
                learner_steps = self.evaluation.interval_learner_steps or 1000
                trainer.limit_train_batches = batches_in(trainer, pl_module, learner_steps)
            replace_defaults(trainer, pl_module, stage)
            interrupt.install()
            let_loggers_fail(trainer)
            self.requeue.setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say what is trained."""
        rank_zero_info(introduction(trainer, pl_module))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the replay, then forward to the parts."""
        interrupt.watch_sigterm(SIGTERMException)
        self.replay.on_train_start(trainer, pl_module)
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

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forward to the part that times the evaluation."""
        self.throughput.on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forward to the parts, in order."""
        for part in self.parts:
            part.on_validation_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait for an evaluation in the background, and save the last checkpoint."""
        interrupt.release_sigterm()
        self.evaluation.on_train_end(trainer, pl_module)
        self.last.on_train_end(trainer, pl_module)
        self.replay.on_train_end(trainer, pl_module)
        self.summary.on_train_end(trainer, pl_module)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save what can be saved, stop the actors."""
        interrupt.release_sigterm()
        end_ranks_that_wait(trainer)
        self.last.saves_untrained = self.requeue.is_asked  # the job goes on with `last`, always
        for part in self.parts:
            part.on_exception(trainer, pl_module, exception)
        self.replay.on_exception(trainer, pl_module, exception)
        self.requeue.on_exception(trainer, pl_module, exception)
        self._claim.drop()
        interrupt.uninstall()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give Ctrl-C back and write the summary."""
        interrupt.uninstall()
        self.requeue.teardown(trainer, pl_module, stage)
        for part in self.parts:
            part.teardown(trainer, pl_module, stage)
        self.replay.teardown(trainer, pl_module, stage)
        self._claim.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the best score."""
        return self.best.state_dict()

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note whether the scores of the run that is resumed compare with this one's."""
        self._compares = not other_protocol(checkpoint, getattr(trainer, "datamodule", None))
        self._resumed = str(trainer.ckpt_path or "")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best score of the run that is resumed, if it is one to beat."""
        if self._compares:
            self.best.load_state_dict(state_dict)
            self.best.find_moved(self._resumed)
