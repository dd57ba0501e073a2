"""Weights to the actors, priorities to the replay: what flows back from the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch import Tensor
from typing_extensions import override

from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.parts.device_copies import HostCopy
from lrl.parts.settings import check_count
from lrl.preflight.callbacks import (
    GuardsLosses,
    IsPeriodic,
    SyncsWeights,
    UpdatesPriorities,
    parts_of,
)
from lrl.types import ConfigError

DEFAULT_SYNC_PERIOD = 10
_LAG_STEPS = 2  # by which a loss that is not finite is found first


class WeightSync(L.Callback, SyncsWeights, IsPeriodic):
    """Publish the online network to the actors.

    The newest version wins: an actor takes it before its next step, and no backlog can form.

    Args:
        period_learner_steps: Learner steps between two versions; without actors in the background
            (synchronous mode) it has to be left out, since acting takes the network itself.
    """

    default_period = DEFAULT_SYNC_PERIOD

    def __init__(self, period_learner_steps: int = DEFAULT_SYNC_PERIOD) -> None:
        without = " (actors without weights learn nothing)"
        check_count("sync_period_learner_steps", period_learner_steps, 1, without)
        self.asked_period = period_learner_steps
        self.policy_version = 0
        self._is_wanted = True

    @property
    def period_learner_steps(self) -> int:
        """Learner steps between two versions; 0 in synchronous mode, once that is known."""
        return self.asked_period if self._is_wanted else 0

    @property
    @override
    def period(self) -> tuple[str, int]:
        return "actor_learner.sync_period_learner_steps", self.period_learner_steps

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find out whether there is anybody to give weights to."""
        if stage == "fit":
            self._is_wanted = datamodule_of(trainer).takes_weights

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the version that actors start with."""
        self.policy_version = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Publish when the period has passed."""
        step = trainer.global_step
        if not self._is_wanted:
            self.policy_version = step
        elif step % self.period_learner_steps == 0 and step != self.policy_version:
            module: Any = pl_module
            datamodule_of(trainer).publish(module.online, step)
            self.policy_version = step


class PriorityUpdate(L.Callback, UpdatesPriorities):
    """Hand the priorities of every batch to the sampler.

    Uniform sampling ignores them, and an index on the device has them already. Those of a learner
    on a GPU come two steps later, when nobody has to wait for them; the last ones are not in a
    replay that is saved.
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[Tensor, HostCopy]] = deque()
        self._guards: tuple[GuardsLosses, ...] = ()
        self.lag_batches = 0
        """Batches by which priorities of a learner on a CPU come late: tests raise it."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget what came too late in another run."""
        self._coming.clear()
        self._guards = tuple(parts_of(trainer, GuardsLosses))

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Pass on the keys and priorities that `training_step` returned."""
        experience = dataset_of(trainer).experience
        if not experience.needs_priorities:
            return
        if not isinstance(outputs, Mapping) or not {"keys", "priorities"} <= outputs.keys():
            raise ConfigError(
                "replay.sampler needs priorities: training_step must return a dict with 'loss', "
                "'keys' (batch.keys) and 'priorities' ([batch], at least 0)"
            )
        lag = self.lag_batches
        if outputs["priorities"].is_cuda:
            lag = _LAG_STEPS * trainer.accumulate_grad_batches
        else:
            for guard in self._guards:  # it has more to say of a NaN than the sampler
                guard.check_pending(trainer.global_step + 1)
        self._coming.append((outputs["keys"], HostCopy.of(outputs["priorities"])))
        while len(self._coming) > lag:
            keys, priorities = self._coming.popleft()
            experience.learnt(keys, priorities.get())
