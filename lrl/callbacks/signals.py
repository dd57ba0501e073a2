"""How a run answers signals: Ctrl-C, SIGTERM, and SLURM's, after which the job is queued again."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import threading
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lrl.callbacks.group import TornDownAlways
from lrl.learner.datamodule import ReplayDataModule
from lrl.processes.interrupt import interrupt
from lrl.ranks.meeting import end_ranks_that_wait, leave_ranks_at_exit
from lrl.ranks.watch import rank_watch, started_ranks

_log = logging.getLogger(__name__)


class SigtermWatch(L.Callback):
    """Answer a second SIGTERM at once while a run trains, but disturb nothing that follows.

    It comes before all parts that save or wait. Of several ranks the first SIGTERM is noted until
    they meet: Lightning's handler would have them talk in the middle of whatever they do, and its
    loop asks the device for the answer at each batch.
    """

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.world_size > 1:
            connector: Any = trainer._signal_connector  # takes SIGTERM over after this hook
            connector._sigterm_notifier_fn = functools.partial(_note_sigterm, trainer)
            loop: Any = trainer.fit_loop.epoch_loop
            loop._broadcast_sigterm_tensor = _ask_nobody

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        interrupt.watch_sigterm(SIGTERMException, raises=trainer.is_global_zero)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        interrupt.release_sigterm()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give SIGTERM back, and see to it that ranks which wait for this one end with it."""
        interrupt.release_sigterm()
        end_ranks_that_wait(trainer)


def _note_sigterm(trainer: L.Trainer, signum: int, frame: object) -> None:
    """Note a SIGTERM, and tell the ranks that this one started, which may wait for their actors."""
    if not interrupt.terminated:
        interrupt.terminated = True
        for process in started_ranks(trainer):
            process.send_signal(signum)


def _ask_nobody() -> None:
    """Take the place of a question that the ranks ask when they meet."""


def _meet_at_the_end(trainer: L.Trainer) -> bool:
    """Wait for the other ranks if all stopped together; return whether they did."""
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, ReplayDataModule) or not data.ranks.stopped_together:
        return False
    data.ranks.maximum(0)
    return True


class RanksEnd(L.Callback):
    """Let ranks that stop together end together; it comes after all parts that save."""

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Wait for each other: Lightning kills the others where one ends, or is interrupted."""
        if _meet_at_the_end(trainer):
            leave_ranks_at_exit()
            rank_watch.see_off()


class SigintHold(TornDownAlways):
    """Let the first Ctrl-C of a run wait for a safe place.

    It comes after all parts that save: they hold it off to their end.
    """

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            interrupt.install()

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        interrupt.uninstall()


class SlurmRequeue(TornDownAlways):
    """Answer SLURM's signal like SIGTERM, and then have the job queued again.

    Lightning answers it at once, wherever training happens to be, with a checkpoint in the current
    folder that any later run in there would start from. Here the run ends between two learner
    steps: `last.ckpt` is saved, actors stop, the exit code is 143, and `scontrol requeue` is
    called unless the Trainer has `SLURMEnvironment(auto_requeue=False)`. The job goes on with
    `lrl fit ... ${SLURM_RESTART_COUNT:+--ckpt_path last}`, which SLURM sets when it starts again; a
    run that had not learned yet is saved, too, unless it has several ranks.

    Attributes:
        is_asked: Whether the signal came.
    """

    def __init__(self) -> None:
        self._environment: SLURMEnvironment | None = None
        self._before: Any = None
        self.is_asked = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take over the signal, before Lightning does."""
        connector = getattr(trainer, "_accelerator_connector", None)
        environment = getattr(connector, "cluster_environment", None)
        is_main = threading.current_thread() is threading.main_thread()
        if stage == "fit" and is_main and isinstance(environment, SLURMEnvironment):
            self._environment, self.is_asked = environment, False
            self._before = signal.signal(self._signal(), self._handle)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Have the job queued again, once all ranks have saved."""
        if self._environment is not None:
            _meet_at_the_end(trainer)
            if self.is_asked and self._environment.auto_requeue and trainer.is_global_zero:
                _requeue()
            self.is_asked = False
        super().on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signal back."""
        if self._before is not None:
            signal.signal(self._signal(), self._before)
            self._before = None

    def _signal(self) -> signal.Signals:
        assert self._environment is not None
        return self._environment.requeue_signal or signal.SIGUSR1

    def _handle(self, signum: int, frame: object) -> None:
        self.is_asked = True
        os.kill(os.getpid(), signal.SIGTERM)


def _requeue() -> None:
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        _log.error("the job could not be queued again: %s", error)
    else:
        _log.info("job %s is queued again", job)
