"""The one callback of a run: weight sync, metrics, evaluation and checkpoints in their order."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lrl.callbacks.background_evaluation import BackgroundEvaluation
from lrl.callbacks.checkpoints import DEFAULT_MONITOR, BestCheckpoint, FolderClaim, LastCheckpoint
from lrl.callbacks.evaluation import DEFAULT_EVAL_PERIOD, PeriodicEvaluation, batches_in
from lrl.callbacks.feedback import DEFAULT_SYNC_PERIOD, PriorityUpdate, WeightSync
from lrl.callbacks.group import CallbackGroup
from lrl.callbacks.guard import NonFiniteGuard
from lrl.callbacks.metrics import Throughput
from lrl.callbacks.progress import introduction, replace_defaults
from lrl.callbacks.replay_checkpoint import ReplayCheckpoint
from lrl.callbacks.signals import RanksEnd, SigintHold, SigtermWatch, SlurmRequeue
from lrl.callbacks.summary import RunSummary
from lrl.diagnosis.watch import RunDiagnosis
from lrl.loggers.charts import ChartLayout
from lrl.loggers.histograms import Histograms
from lrl.loggers.records import RunFiles
from lrl.parts.renamed import knows_old_names
from lrl.types import ConfigError
from lrl.video.tensorboard import EpisodeVideo


@knows_old_names
class ActorLearnerCallback(CallbackGroup):
    """Connect the learner with its actors: one line in a YAML or a script.

    Order within a learner step: drain and optimise (dataset and module), sync weights, log,
    evaluate and keep the best, then save `last`. `parts` has all of it in the one order that holds
    for every hook, also when a run ends. The parts also work alone.

    It is a Lightning `Checkpoint` with `best_model_path`, so the Trainer adds none of its own and
    `ckpt_path="best"` finds the best weights. Where the Trainer has no integer
    `limit_train_batches`, an epoch becomes as long as the evaluation period (or 1000 steps).
    Lightning's own bar gives way to `RLProgressBar`, and its table of layers to three lines of
    lrl's; a subclass of them stays.

    Args:
        sync_period_learner_steps: Learner steps between two versions of the actors' weights; to be
            left out in synchronous mode, which acts with the newest.
        eval_period_learner_steps: Learner steps between evaluations; 0 turns them off.
        save_period_learner_steps: Learner steps between saves of `last.ckpt`; 0 saves at the
            end only.
        monitor: Evaluation metric whose maximum is kept as `best.ckpt`.
        evaluation: `inline` stops training for it and suits few cores; `background` plays the
            episodes in a process of its own, which wants a core to itself.
        video_period_learner_steps: Learner steps between films of the first evaluation episode,
            for which training stops and which TensorBoard shows as `eval/video`; 0 makes none.
        checkpoint_replay: Whether the replay is saved with `last.ckpt`, in the background, so that
            a run that goes on from there need not fill it again; it takes its size on the disk.
        histogram_period_learner_steps: Learner steps between histograms of values and TD errors, a
            multiple of the Trainer's `log_every_n_steps`, which TensorBoard shows as
            `distribution/q` and `distribution/td_error`; 0 makes none.
    """

    def __init__(
        self,
        sync_period_learner_steps: int = DEFAULT_SYNC_PERIOD,
        eval_period_learner_steps: int = DEFAULT_EVAL_PERIOD,
        save_period_learner_steps: int = 10_000,
        monitor: str = DEFAULT_MONITOR,
        evaluation: Literal["inline", "background"] = "inline",
        video_period_learner_steps: int = 0,
        checkpoint_replay: bool = False,
        histogram_period_learner_steps: int = 0,
    ) -> None:
        self.guard = NonFiniteGuard()
        self.weight_sync = WeightSync(sync_period_learner_steps)
        self.video = EpisodeVideo(video_period_learner_steps)
        self.throughput = Throughput(self.weight_sync, self.video)
        if eval_period_learner_steps == 0 and monitor != DEFAULT_MONITOR:
            raise ConfigError(
                f"monitor is {monitor!r}, but eval_period_learner_steps is 0 (never), so that "
                "there is no best: set the period, or leave monitor out"
            )
        self.best = BestCheckpoint(monitor)
        self.replay = ReplayCheckpoint(checkpoint_replay)
        self._evaluate(evaluation, eval_period_learner_steps, save_period_learner_steps)
        self.diagnosis = RunDiagnosis()
        self.summary = RunSummary(self.best, self.throughput, self.diagnosis)
        self.requeue = SlurmRequeue()
        self.claim = FolderClaim()
        parts = (
            SigtermWatch(),  # before what a second signal must not disturb
            self.guard,
            PriorityUpdate(),
            self.weight_sync,
            self.throughput,
            self.evaluation,
            self.best,
            self.last,
            self.video,
            ChartLayout(),
            Histograms(histogram_period_learner_steps),
            self.diagnosis,
            self.summary,
            self.replay,  # its wait comes after everything else is saved
            self.requeue,  # when everything is saved
            RunFiles(self.best),  # a server may take its time
            RanksEnd(),
            self.claim,  # until nothing more is written
            _Beginning(eval_period_learner_steps or 1000),  # after what may refuse the run
            SigintHold(),
        )
        super().__init__(parts)

    def _evaluate(self, where: str, period: int, save_period: int) -> None:
        """Make the evaluation that was asked for, and what saves after it."""
        if where not in ("inline", "background"):
            raise ConfigError(f"evaluation must be 'inline' or 'background', got {where!r}")
        if where == "background":
            self.evaluation = BackgroundEvaluation(period, self.best)
            is_due = self.evaluation.is_last
        else:
            self.evaluation = PeriodicEvaluation(period)
            is_due = self.evaluation.is_due
        self.last = LastCheckpoint(save_period, is_due, self.replay.beside)

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

    def state_dict(self) -> dict[str, Any]:
        """Return the best score, the only state of a part, as `BestCheckpoint` alone has it."""
        return self.best.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best.load_state_dict(state_dict)


class _Beginning(L.Callback):
    """Replace what Lightning chose where the user did not, and say what is trained."""

    def __init__(self, epoch_learner_steps: int) -> None:
        self._epoch_learner_steps = epoch_learner_steps

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(trainer.limit_train_batches, int):
            batches = batches_in(trainer, pl_module, self._epoch_learner_steps)
            trainer.limit_train_batches = batches
        replace_defaults(trainer, pl_module, stage)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        rank_zero_info(introduction(trainer, pl_module))
