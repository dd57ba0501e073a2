"""What is learnt from: rows come in, batches go out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lrl.replay.streams import Streams
from lrl.types import AnyBatch, Rows


class Experience(ABC):
    """Takes rows and gives batches; knows no process, and lives in the learner's.

    Owned by the dataset. Subclass it to learn without a replay: `add`, `can_draw`, `draw`, `state`
    and `restore` are enough (examples/own_experience.py).

    Attributes:
        batch_size: Transitions in a batch, or sequences.
        env_steps: STEP rows that came in over the whole run, earlier sessions included.
        needs_priorities: Whether `learnt` wants to be called.
        is_prioritised: Whether some rows are drawn more often than others.
        draws_independently: Whether several batches may be drawn at once before any is learnt from.
        sets_pace: Whether it says by itself when to act and when to learn (`has_room`, `can_draw`):
            then there is no ratio of both.
        needs_values: Whether it learns from the values that the policy saw: rows then hold them.
        gives_returns: Whether the rewards of its batches are whole returns (`NoBootstrap`).
    """

    batch_size: int
    env_steps: int = 0
    needs_priorities: bool = False
    is_prioritised: bool = False
    draws_independently: bool = True
    sets_pace: bool = False
    needs_values: bool = False
    gives_returns: bool = False

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Take rows, copying them: any mix of streams, in time order within each stream."""

    @abstractmethod
    def can_draw(self) -> bool:
        """Tell whether there is a batch to learn from."""

    @abstractmethod
    def draw(self, batches: int) -> Sequence[AnyBatch]:
        """Return batches, newly allocated: as many as are asked for, or as there are."""

    @abstractmethod
    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return what a later session goes on from, as nested plain types, tensors and arrays.

        Args:
            with_rows: Whether it goes with saved rows; else it goes into a checkpoint.
        """

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, before the first batch."""

    def has_room(self) -> bool:
        """Tell whether rows should come while there are batches; without any they always may."""
        return True

    def anneal(self, learner_step: int) -> None:  # noqa: B027 (nothing to do for most)
        """Change what changes with learner steps; called before each draw."""

    def learnt(self, keys: Tensor, priorities: Tensor) -> None:  # noqa: B027
        """Take the new priorities of rows.

        Args:
            keys: `Batch.keys`, joined.
            priorities: At least 0, `[rows]`.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics by the names of docs/metrics.md."""
        return {}

    @property
    def samples_per_batch(self) -> int:
        """What a batch counts for the rate limiter: its transitions."""
        return self.batch_size

    @property
    def fill(self) -> float:
        """Share of its room that holds rows."""
        return 0.0


class StoredExperience(Experience):
    """Experience whose rows lie in streams: `actor_learner.checkpoint_replay` can save it.

    Attributes:
        streams: The rows.
    """

    streams: Streams

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what must be the same where saved rows are restored."""

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take."""
        return self.streams.nbytes
