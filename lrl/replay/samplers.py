"""Samplers: which of the samplable rows make a batch, and with which weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from lrl.replay.streams import IndexArray
from lrl.replay.transitions import Windows


class NotEnoughRows(RuntimeError):
    """No stored row can be sampled yet."""


class Sampler(ABC):
    """Chooses the keys of a batch. Created from YAML, called by the replay alone."""

    draws_independently: ClassVar[bool] = False
    """Whether a large batch, cut into parts, is as good as batches of their size."""

    def attach(self, windows: Windows) -> None:  # noqa: B027 (optional)
        """Make room for the rows of a buffer; called once, before they are appended."""

    @abstractmethod
    def sample(
        self, windows: Windows, batch_size: int, generator: torch.Generator
    ) -> tuple[IndexArray, npt.NDArray[np.float32]]:
        """Return keys (int64 `[batch, 2]`) of samplable rows and their weights (float32).

        Raises:
            NotEnoughRows: No row is samplable.
        """

    def bytes_needed(self, slots: int) -> int:
        """Return the bytes that are kept beside so many slots for rows."""
        return 0

    def metrics(self) -> dict[str, float]:
        """Return what is worth logging, by the names of docs/metrics.md."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Return, as plain types, what the state of its rows depends on."""
        return {"class": type(self).__name__}

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return what a later session goes on from, as plain types and arrays.

        Args:
            with_rows: Whether `"rows"` in it holds what is kept per row, if anything is; arrays in
                it may be the originals.
        """
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 (optional)
        """Go on from `state`; that of another sampler, without rows, changes nothing."""


class TrackingSampler(Sampler):
    """Keeps something per row (a sum tree, say), and wants priorities from the learner.

    The buffer tells it of every row that begins or ceases to be samplable, also after a replay was
    restored of which its `state` holds no rows, and hands on the learner's priorities.
    """

    minimum_of_ranks: Callable[[float], float] | None = None
    """With several learner ranks: takes this one's number, returns the smallest of all. Each rank
    has to call it equally often."""

    def rows_changed(self, added: IndexArray, removed: IndexArray) -> None:
        """Note the keys that are samplable from now on and those that no longer are.

        Among `removed` may be keys that never were samplable.
        """

    def update_priorities(self, keys: IndexArray, priorities: npt.NDArray[np.float32]) -> None:
        """Set the priorities of keys that were sampled before, of which some may be stale.

        Rows that were overwritten since, or are not samplable any more, must be left alone.
        """


class UniformSampler(Sampler):
    """Every samplable row is equally likely, with replacement, whichever its stream.

    Stored rows are drawn and those that are not samplable rejected. Should almost none be
    samplable, all rows are looked through instead, so a draw always ends.
    """

    draws_independently = True
    max_rounds: ClassVar[int] = 32
    """Rejection rounds before all rows are looked through."""

    def sample(
        self, windows: Windows, batch_size: int, generator: torch.Generator
    ) -> tuple[IndexArray, npt.NDArray[np.float32]]:
        """Draw keys uniformly; all weights are 1."""
        keys = self._draw(windows, batch_size, generator)
        return keys, np.ones(batch_size, np.float32)

    def _draw(self, windows: Windows, batch_size: int, generator: torch.Generator) -> IndexArray:
        streams = windows.streams
        found: list[IndexArray] = []
        missing = batch_size
        for _ in range(self.max_rounds if streams.num_rows else 0):
            keys = windows.draw(missing + missing // 8 + 8, generator)
            found.append(keys[windows.stored_samplable(keys)][:missing])
            missing -= len(found[-1])
            if not missing:
                return np.concatenate(found)
        keys = windows.samplable_keys()
        if not len(keys):
            raise not_enough_rows(windows)
        chosen = torch.randint(len(keys), (missing,), generator=generator).numpy()
        return np.concatenate((*found, keys[chosen]))


def not_enough_rows(windows: Windows) -> NotEnoughRows:
    """Return the exception that says what there is and what is needed."""
    streams = windows.streams
    return NotEnoughRows(
        f"no row can be sampled: {streams.num_rows} rows are stored in {streams.num_streams} "
        f"streams, and {windows.needs}; append more rows first"
    )
