"""What callbacks offer to others, and which of a Trainer's offer it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from lrl.types import AnyBatch, ConfigError

_log = logging.getLogger(__name__)

Kind = TypeVar("Kind")


class HasParts:
    """Consists of callbacks, which count as the Trainer's own."""

    parts: Sequence[L.Callback]


class SyncsWeights:
    """Carries the learner's weights to the actors."""

    asked_period: int = 0
    """Learner steps between two versions that were asked for."""
    default_period: int = 0
    """How many they are if nobody asks."""


class UpdatesPriorities:
    """Hands the learner's priorities to the sampler."""


class EvaluatesInBackground:
    """Has a process that plays evaluation episodes."""

    best: Any = None
    """The callback that gets the scores, though Lightning does not."""


class SavesReplay:
    """Saves the replay with checkpoints, if it is enabled."""

    enabled: bool


class GuardsLosses(ABC):
    """Ends a run whose losses, gradients or weights are not finite; a `DQN` shows them to it."""

    @abstractmethod
    def remember(self, batch: AnyBatch, row_loss: Tensor, loss: Tensor) -> None:
        """Remember a batch until `check`, with its loss, and that of each row or sequence in it."""

    @abstractmethod
    def check(self, learner_step: int, gradients: Sequence[Tensor], norm: Tensor | None) -> None:
        """Look at what was remembered, and at the gradients, before this learner step is made.

        Of a step that is repeated as a whole there are none, and it was made already. Their norm
        is None where nobody else needed it.
        """

    @abstractmethod
    def check_pending(self, learner_step: int) -> None:
        """Look at all that was not looked at yet; waits for a GPU."""

    @abstractmethod
    def check_weights(self, network: nn.Module, learner_step: int) -> None:
        """Look at weights that are to be saved: a step with finite gradients may ruin them."""


class WatchesMetrics(ABC):
    """Is shown every row of metrics that is logged, on rank 0."""

    @abstractmethod
    def watch(self, learner_step: int, metrics: Mapping[str, float]) -> None:
        """Take note of a row; it is not changed later."""


class WritesFiles:
    """Writes files of the run, which go to servers of loggers when it ends."""

    written: Sequence[Path] = ()
    """Those that it has written so far, on rank 0."""


class IsPeriodic(ABC):
    """Does something every so many learner steps."""

    @property
    @abstractmethod
    def period(self) -> tuple[str, int]:
        """The setting that says how many, and how many: 0 for never."""


class Evaluates(IsPeriodic):
    """Says when evaluations come, in place of the Trainer."""


@runtime_checkable
class Monitors(Protocol):
    """Waits for a metric, as Lightning's `EarlyStopping` and `ModelCheckpoint` do."""

    monitor: str | None


def callbacks_of(trainer: L.Trainer) -> list[L.Callback]:
    """Return a Trainer's callbacks."""
    return getattr(trainer, "callbacks", [])


def parts_of(trainer: L.Trainer, kind: type[Kind]) -> Iterator[Kind]:
    """Yield a Trainer's callbacks of a kind, and the parts of its callbacks, in their order."""
    return _of_kind(callbacks_of(trainer), kind)


def _of_kind(callbacks: Sequence[L.Callback], kind: type[Kind]) -> Iterator[Kind]:
    for callback in callbacks:
        if isinstance(callback, kind):
            yield callback
        if isinstance(callback, HasParts):
            yield from _of_kind(callback.parts, kind)


def evaluates_in_background(trainer: L.Trainer) -> bool:
    """Return whether a callback has a process that plays evaluation episodes."""
    return any(parts_of(trainer, EvaluatesInBackground))


def saves_replay(trainer: L.Trainer) -> bool:
    """Return whether a callback saves the replay with its checkpoints."""
    return any(part.enabled for part in parts_of(trainer, SavesReplay))


def periods_of(trainer: L.Trainer, *, takes_weights: bool) -> list[tuple[str, int]]:
    """Return what is due every so many learner steps: by which setting, and how many (0: never).

    Args:
        trainer: Has the callbacks.
        takes_weights: Whether anybody does.
    """
    lightnings = [
        (f"{type(part).__name__}.every_n_train_steps", part._every_n_train_steps)
        for part in parts_of(trainer, ModelCheckpoint)  # which has no public name for it
    ]
    parts = parts_of(trainer, IsPeriodic)
    due = [part.period for part in parts if takes_weights or not isinstance(part, SyncsWeights)]
    return [*due, *lightnings]


def check_callbacks(trainer: L.Trainer, takes_weights: bool, needs_priorities: bool) -> None:
    """Check that something carries weights to the actors and priorities to the sampler.

    A run where nobody looks at losses and gradients is warned of it.

    Raises:
        ConfigError: One of them is wanted, and no callback does it.
    """
    if takes_weights and not any(parts_of(trainer, SyncsWeights)):
        raise ConfigError(
            "no callback sends weights to the actors, so they would never improve: add "
            "ActorLearnerCallback() to the Trainer's callbacks, or set actors.num_actors to 0"
        )
    if needs_priorities and not any(parts_of(trainer, UpdatesPriorities)):
        raise ConfigError(
            "replay.sampler needs priorities but no callback hands them on, so all rows would keep "
            "the one they start with: add ActorLearnerCallback() or PriorityUpdate() to the "
            "Trainer's callbacks, or set replay.sampler to UniformSampler"
        )
    if not any(parts_of(trainer, GuardsLosses)):
        rank_zero_only(_log.warning)(
            "no callback looks at losses and gradients, so a run that diverges goes on, and saves "
            "weights that are NaN: add ActorLearnerCallback() or NonFiniteGuard() to the Trainer's "
            "callbacks"
        )
