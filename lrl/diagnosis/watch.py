"""The diagnosis of a run while it goes on: each finding is said once, as a warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
from typing_extensions import override

from lrl.diagnosis.findings import findings_of
from lrl.diagnosis.history import History, Settings
from lrl.diagnosis.signs import Finding
from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.networks import CategoricalHead
from lrl.preflight.callbacks import WatchesMetrics
from lrl.schedules import ends_of

_log = logging.getLogger(__name__)

_LOOKS = 20  # in a run


class RunDiagnosis(L.Callback, WatchesMetrics):
    """Look at the metrics of a run from time to time, and say why it does not learn.

    It looks at rows that are logged anyway, on rank 0. Where no number of learner steps is planned
    (`trainer.max_steps` -1) it says nothing before the run has ended.
    """

    def __init__(self) -> None:
        self._history: History | None = None
        self._said: set[str] = set()
        self._next_look = 0

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._history = History(settings_of(trainer))
        self._said, self._next_look = set(), 0

    @override
    def watch(self, learner_step: int, metrics: Mapping[str, float]) -> None:
        if self._history is None:
            return
        self._history.add(metrics)
        planned = self._history.settings.max_learner_steps
        if planned and self._next_look <= learner_step < planned:
            self._next_look = learner_step + planned // _LOOKS
            for finding in self.findings():
                if finding.name not in self._said:
                    self._said.add(finding.name)
                    _log.warning(
                        "this run may not learn (learner step %d, %s): %s",
                        learner_step, finding.name, finding.sentence,
                    )  # fmt: skip

    def findings(self) -> list[Finding]:
        """Return what is found now; nothing where the diagnosis itself fails, which is said."""
        if self._history is None:
            return []
        try:
            return findings_of(self._history)
        except Exception:
            _log.exception("this run is not diagnosed any more; training goes on")
            self._history = None
            return []


def settings_of(trainer: L.Trainer) -> Settings:
    """Return the settings of a run that goes on; see `Settings.of_config`."""
    module: Any = trainer.lightning_module
    data, experience = datamodule_of(trainer), dataset_of(trainer).experience
    head, rule = module.online.head, module.bootstrap
    rescales = isinstance(head, CategoricalHead) or getattr(head, "value_rescaling", None)
    gamma, n_step = getattr(experience, "gamma", None), getattr(experience, "n_step", 1)
    if not data.has_own_experience:  # of schedules, what lets values be largest
        gamma, n_step = max(ends_of(data.replay.gamma)), round(min(ends_of(data.replay.n_step)))
    return Settings(
        max_learner_steps=trainer.max_steps if trainer.max_steps > 0 else None,
        gamma=gamma,
        n_step=n_step,
        samples_per_batch=experience.samples_per_batch,
        gives_returns=experience.gives_returns,
        adds_bonus=rule.adds_bonus,
        rescales=rescales is not None and rescales is not False,
        is_synchronous=data.num_actors == 0,
        is_slowed=data.rate.max_learner_steps_per_second is not None,
        has_own_pool=data.has_own_pool,
        takes_weights=data.takes_weights or not data.has_own_pool,
    )
