"""What callbacks offer to others, and which of a Trainer's offer it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from lrl.types import ConfigError

Kind = TypeVar("Kind")


class HasParts:
    """Consists of callbacks, which count as the Trainer's own."""

    parts: Sequence[L.Callback]


class SyncsWeights:
    """Carries the learner's weights to the actors."""


class UpdatesPriorities:
    """Hands the learner's priorities to the sampler."""


class EvaluatesInBackground:
    """Has a process that plays evaluation episodes."""


class SavesReplay:
    """Saves the replay with checkpoints, if it is enabled."""

    enabled: bool


class IsPeriodic(ABC):
    """Does something every so many learner steps."""

    @property
    @abstractmethod
    def period(self) -> tuple[str, int]:
        """The setting that says how many, and how many: 0 for never."""


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


def periods_of(trainer: L.Trainer) -> list[tuple[str, int]]:
    """Return what is due every so many learner steps: by which setting, and how many (0: never)."""
    lightnings = [
        (f"{type(part).__name__}.every_n_train_steps", part._every_n_train_steps)
        for part in parts_of(trainer, ModelCheckpoint)  # which has no public name for it
    ]
    return [*(part.period for part in parts_of(trainer, IsPeriodic)), *lightnings]


def check_callbacks(trainer: L.Trainer, num_actors: int, needs_priorities: bool) -> None:
    """Check that something carries weights to the actors and priorities to the sampler.

    Raises:
        ConfigError: One of them is wanted, and no callback does it.
    """
    if num_actors > 0 and not any(parts_of(trainer, SyncsWeights)):
        raise ConfigError(
            f"actors.num_actors is {num_actors} but no callback syncs weights, so the actors would "
            "never improve: add ActorLearnerCallback() to the Trainer's callbacks, or set "
            "actors.num_actors to 0"
        )
    if needs_priorities and not any(parts_of(trainer, UpdatesPriorities)):
        raise ConfigError(
            "replay.sampler needs priorities but no callback hands them on, so all rows would keep "
            "the one they start with: add ActorLearnerCallback() or PriorityUpdate() to the "
            "Trainer's callbacks, or set replay.sampler to UniformSampler"
        )
