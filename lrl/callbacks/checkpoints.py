"""Checkpoints: the best evaluated weights, and the last ones."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from typing_extensions import override

from lrl.callbacks.evaluation import note_evaluation
from lrl.callbacks.group import TornDownAlways
from lrl.callbacks.signals import SlurmRequeue
from lrl.checkpoints.files import (
    CheckpointError,
    SaveError,
    predecessor_kept,
    read_checkpoint,
    remove_leftovers,
    use_verified_io,
)
from lrl.checkpoints.runs import best_state, checkpoint_folder, find_best, is_trial
from lrl.evaluation.evaluator import EvaluatorError
from lrl.learner.datamodule import ReplayDataModule, datamodule_of
from lrl.learner.dqn import DQN
from lrl.parts.renamed import knows_old_names
from lrl.parts.settings import check_count
from lrl.preflight.callbacks import IsPeriodic, parts_of
from lrl.processes.interrupt import AT_ONCE
from lrl.types import ConfigError

DEFAULT_MONITOR = "eval/return_mean"
_log = logging.getLogger(__name__)
_ANYWHERE = ("", -math.inf)  # not looked for: it is where the state says


class _CheckpointInFolder(Checkpoint):
    """Knows the run's folder, where a checkpoint is safe."""

    folder: Path | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the folder of a run that trains."""
        use_verified_io(trainer)
        if stage == "fit":
            self.folder = None if is_trial(trainer) else checkpoint_folder(trainer)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Clear away what a killed run left there; by now `FolderClaim` says whose it is."""
        if trainer.is_global_zero and self.folder is not None:
            remove_leftovers(self.folder)


class BestCheckpoint(_CheckpointInFolder):
    """Keep `best.ckpt`: the weights with the best evaluation so far.

    Only a strictly better score replaces it, a NaN never does. The score is stored in every
    checkpoint, so that a resumed run does not overwrite a better one with a worse.

    Args:
        monitor: Metric to maximise, from the validation loop.
    """

    def __init__(self, monitor: str = DEFAULT_MONITOR) -> None:
        if not monitor.startswith("eval/"):
            raise ConfigError(
                f"monitor must be a metric of the evaluation (eval/...), got {monitor!r}"
            )
        self.monitor = monitor
        self.best_model_path = ""
        self.best_model_score = -math.inf
        self._compares = True
        self._found: tuple[Path | str, float] | None = _ANYWHERE

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Begin anew in a folder of its own."""
        before = self.folder
        super().setup(trainer, pl_module, stage)
        if self.folder != before:
            self.best_model_score, self.best_model_path = -math.inf, ""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, if this evaluation is better than all before."""
        if trainer.state.fn != "fit":
            return
        score = self._score(trainer.callback_metrics)
        if score > self.best_model_score and self.folder is not None:
            with self._risen_to(score) as path:
                save_checkpoint(trainer, path)

    def take(self, trainer: L.Trainer, candidate: Path, metrics: Mapping[str, float]) -> None:
        """Keep a checkpoint that was evaluated beside training, if it is the best: it is moved."""
        score = self._score(metrics)
        if score > self.best_model_score:
            with self._risen_to(score) as path:
                try:
                    self._update_score(trainer, candidate)
                except Exception as error:  # what other callbacks put there may not load safely
                    _log.warning("%s keeps the best score of before: %s", path, error)
                candidate.replace(path)

    def _update_score(self, trainer: L.Trainer, candidate: Path) -> None:
        """Write the score into a checkpoint from before it was known, for runs that go on there."""
        content = read_checkpoint(candidate)
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

    @contextmanager
    def _risen_to(self, score: float) -> Iterator[Path]:
        """Take a score over, which the file that is then written holds; not if that fails."""
        assert self.folder is not None
        before, path = self.state_dict(), self.folder / "best.ckpt"
        self.best_model_score, self.best_model_path = score, str(path)
        try:
            yield path
        except OSError as error:
            self._take_over(before)
            _log.error("the best weights so far, of score %.6g, are not kept: %s", score, error)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score, of which metric it is, and where its weights are."""
        return {
            "best_model_score": self.best_model_score,
            "best_model_path": self.best_model_path,
            "best_model_monitor": self.monitor,
        }

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Look for the best of the run that is resumed, if its scores compare with this one's."""
        monitor = best_state(checkpoint).get("best_model_monitor", self.monitor)
        self._compares = not (isinstance(pl_module, DQN) and pl_module.measured_otherwise)
        if trainer.state.fn == "fit" and monitor != self.monitor:
            self._compares = False
            _log.warning(
                "the best score of the checkpoint is one of %s, and this run's monitor is %s: the "
                "best from now on are kept", monitor, self.monitor,
            )  # fmt: skip
        self._found = _ANYWHERE
        if trainer.state.fn != "fit" or not self._compares or not trainer.is_global_zero:
            return
        named, self._found = best_state(checkpoint), None
        try:
            self._found = find_best(Path(str(trainer.ckpt_path)), checkpoint)
        except CheckpointError as error:
            _log.debug("%s", error)
        if self._found is None and named.get("best_model_path"):
            _log.warning(
                "the best weights so far, of score %.6g, are gone or damaged: %s. The best from "
                "now on are kept", named["best_model_score"], named["best_model_path"],
            )  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best score of the run that is resumed, if it is one to beat."""
        if not self._compares:
            return
        self._take_over(state_dict)
        if self._found is not _ANYWHERE:
            path, self.best_model_score = self._found or ("", -math.inf)
            self.best_model_path = str(path)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Have all ranks compare with the score that the first one has found."""
        self._take_over(trainer.strategy.broadcast(self.state_dict()))

    def _take_over(self, state: dict[str, Any]) -> None:
        self.best_model_score = state["best_model_score"]
        self.best_model_path = state["best_model_path"]


@knows_old_names
class LastCheckpoint(_CheckpointInFolder, IsPeriodic):
    """Keep `last.ckpt`: periodically, at the end, and when the run is interrupted.

    The one before it stays as `previous.ckpt`. Where saving fails, for want of space perhaps, the
    error is logged, the files stay as they are, and training goes on to the next save: ending it
    would throw away what may still be saved. Only if the save at the end fails, the run does.

    On a learner step that ends with an evaluation it waits for it: a checkpoint from before would
    make the resumed run skip that evaluation.

    Args:
        period_learner_steps: Learner steps between saves; 0 saves at the end only.
        evaluation_is_due: Tells whether the current learner step ends with an evaluation.
        beside: Makes the context in which the file is written, and what belongs to it is noted.
    """

    def __init__(
        self,
        period_learner_steps: int = 10_000,
        evaluation_is_due: Callable[[L.Trainer], bool] = lambda trainer: False,
        beside: Callable[[L.Trainer], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        check_count("save_period_learner_steps", period_learner_steps, 0, " (0: at the end only)")
        self.period_learner_steps = period_learner_steps
        self.last_model_path = ""
        self._evaluation_is_due = evaluation_is_due
        self._beside = beside
        self._saved_step = self._tried_step = -1
        self._failures = 0

    @property
    @override
    def period(self) -> tuple[str, int]:
        return "actor_learner.save_period_learner_steps", self.period_learner_steps

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Begin anew: another run may have been before."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._refuse_another_last(trainer)
            self.last_model_path, self._saved_step, self._failures = "", -1, 0

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note where a run that goes on begins: there it was saved."""
        self._tried_step = trainer.global_step

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Clear away what a killed run left here, and where the one that is resumed lies."""
        super().on_fit_start(trainer, pl_module)
        if trainer.is_global_zero and trainer.ckpt_path is not None:
            remove_leftovers(Path(trainer.ckpt_path).parent)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if it is time and no evaluation follows."""
        if self._tried_step == trainer.global_step:  # while gradients are accumulated
            return
        if self._is_time(trainer) and not self._evaluation_is_due(trainer):
            self._tried_step = trainer.global_step
            self._try_to_save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if it is time and the evaluation was waited for."""
        if trainer.state.fn == "fit" and self._is_time(trainer):
            self._try_to_save(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the final weights.

        Raises:
            SaveError: They cannot be saved.
        """
        try:
            self._save(trainer)
        except SaveError as error:
            raise SaveError(f"the final weights are lost: {error}; {self._kept()}") from error

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save on Ctrl-C, SIGTERM and when evaluation fails; else the state may be wrong.

        Several ranks save if they have agreed to stop.
        """
        validating = trainer.state.fn == "fit" and trainer.validating
        is_sound = validating or isinstance(
            exception, (KeyboardInterrupt, SIGTERMException, EvaluatorError)
        )
        is_sound &= AT_ONCE not in exception.args  # it came in the middle of something
        # A job that SLURM queues again goes on with `last`, always.
        is_queued_again = any(part.is_asked for part in parts_of(trainer, SlurmRequeue))
        is_begun = trainer.global_step > 0 or (is_queued_again and trainer.world_size == 1)
        if is_sound and is_begun and (trainer.world_size == 1 or _stopped_together(trainer)):
            if validating:
                note_evaluation(trainer, is_played=False)
            try:
                self._save(trainer)
            except SaveError as error:
                _log.error("the weights of this moment are lost: %s; %s", error, self._kept())
            except Exception:  # what follows stops the actors
                _log.exception("last.ckpt could not be saved; %s", self._kept())
                if trainer.world_size > 1:  # the others may wait elsewhere, and end with this one
                    datamodule_of(trainer).ranks.stopped_together = False

    def _refuse_another_last(self, trainer: L.Trainer) -> None:
        if self.folder is None:
            return
        for other in parts_of(trainer, ModelCheckpoint):
            is_here = Path(other.dirpath or self.folder).absolute() == self.folder.absolute()
            if other.save_last and other.CHECKPOINT_NAME_LAST == "last" and is_here:
                raise ConfigError(
                    f"{type(other).__name__}.save_last is {other.save_last}, but lrl writes "
                    "last.ckpt in the same folder: leave it out, or give it a dirpath of its own"
                )

    def _is_time(self, trainer: L.Trainer) -> bool:
        period, step = self.period_learner_steps, trainer.global_step
        return period > 0 and step > 0 and step % period == 0

    def _try_to_save(self, trainer: L.Trainer) -> None:
        try:
            self._save(trainer)
            self._failures = 0
        except SaveError as error:
            self._failures += 1
            if trainer.is_global_zero:
                _log.error(
                    "%s (failed saves in a row: %d; %s). Training goes on and tries again in %d "
                    "learner steps",
                    error, self._failures, self._kept(), self.period_learner_steps,
                )  # fmt: skip

    def _save(self, trainer: L.Trainer) -> None:
        if self.folder is None or self._saved_step == trainer.global_step:
            return
        path = self.folder / "last.ckpt"
        keep = predecessor_kept(path, "previous.ckpt") if trainer.is_global_zero else nullcontext()
        with keep, self._beside(trainer):
            save_checkpoint(trainer, path)
        self._saved_step, self.last_model_path = trainer.global_step, str(path)

    def _kept(self) -> str:
        if self._saved_step < 0:
            return "this run has kept none yet"
        return f"the last one kept is of learner step {self._saved_step}"


def _stopped_together(trainer: L.Trainer) -> bool:
    data = getattr(trainer, "datamodule", None)
    return isinstance(data, ReplayDataModule) and data.ranks.stopped_together


try:
    import fcntl
except ImportError:  # Windows has no locks of this kind
    fcntl = None


def save_checkpoint(trainer: L.Trainer, path: Path) -> None:
    """Write a checkpoint; all ranks must call it.

    Raises:
        SaveError: It could not be written; all ranks raise it, so that they can go on together.
    """
    error = ""
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except OSError as caught:  # of the one rank that writes
        error = str(caught)
        trainer.strategy.barrier("Trainer.save_checkpoint")  # the others wait there for this one
    error = trainer.strategy.broadcast(error)
    if error:
        raise SaveError(error)


class FolderClaim(TornDownAlways):
    """Claim the folder of a run that trains, until the run ends, or its process does."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._own: Path | None = None  # folder, whose files are this run's

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Claim it, unless that was done."""
        if stage == "fit":
            self.take(trainer)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look for what an earlier run has left there, unless that was done."""
        self.check_unused(trainer, trainer.ckpt_path)

    def take(self, trainer: L.Trainer) -> None:
        """Claim it, or refuse to train where each of two runs would replace the other's files.

        Raises:
            ConfigError: Another run has it.
        """
        folder = checkpoint_folder(trainer).parent
        is_taken = self._descriptor >= 0
        if fcntl is None or is_taken or is_trial(trainer) or not trainer.is_global_zero:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._drop()
            raise ConfigError(
                f"another run trains in {folder} and keeps its checkpoints there: give the "
                "Trainer another default_root_dir, or a logger, which makes a folder for each run"
            ) from None
        except OSError:  # a disk without locks
            self._drop()

    def check_unused(self, trainer: L.Trainer, checkpoint: str | Path | None) -> None:
        """Refuse a folder in which a run would replace the checkpoints of an earlier one.

        Args:
            trainer: Of the run.
            checkpoint: From which it goes on, if it does.

        Raises:
            ConfigError: It would.
        """
        folder = checkpoint_folder(trainer).parent
        if not trainer.is_global_zero or is_trial(trainer) or folder == self._own:
            return
        place = folder / "checkpoints"
        goes_on = checkpoint and Path(checkpoint).resolve().parent == place.resolve()
        lost = [name for name in ("best.ckpt", "last.ckpt") if (place / name).is_file()]
        if lost and not goes_on:
            raise ConfigError(
                f"{place} has {' and '.join(lost)} of an earlier run, which this one would "
                "replace: give the Trainer another default_root_dir, or its logger another "
                "version, or move them away"
            )
        self._own = folder

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
