"""Prioritised samplers: rows that surprised the learner are drawn more often."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from lrl.parts.settings import check_positive
from lrl.replay.samplers import TrackingSampler, not_enough_rows
from lrl.replay.streams import IndexArray
from lrl.replay.sum_tree import SumTree
from lrl.replay.transitions import Windows
from lrl.schedules import Constant, Linear, Schedule, ends_of
from lrl.types import ConfigError


class WeightedSampler(TrackingSampler):
    """Draws rows in proportion to weights that depend on their priorities.

    One object serves one buffer. Every samplable row has a leaf of a sum tree, every other row a
    leaf of 0. A row starts with the highest priority ever seen (1 before there is any higher).
    Draws are stratified: one from each of `batch_size` equal parts of the sum.

    The importance weight (N P)^-beta, divided by its maximum, is (smallest P / P)^beta: neither
    the number of rows N nor the sum of leaves is in it. With several learner ranks, the maximum is
    that of all ranks' weights, so that their gradients can be averaged.

    Args:
        alpha: Exponent of the priorities, 0 to 1; 0 is uniform.
        beta: Exponent of the importance weights, from 0 to 1, or a schedule of batches drawn.
        weight_normalisation: Where the largest importance weight becomes 1: in each `"batch"`, or
            over all rows of the `"buffer"`.

    Raises:
        ConfigError: A setting is out of range.
    """

    def __init__(
        self,
        alpha: float,
        beta: float | Schedule,
        weight_normalisation: Literal["batch", "buffer"],
    ) -> None:
        name = type(self).__name__
        if not 0.0 <= alpha <= 1.0:
            raise ConfigError(f"{name}.alpha must be between 0 (uniform) and 1, got {alpha}")
        for end in ends_of(beta):
            if not 0.0 <= end <= 1.0:
                raise ConfigError(
                    f"{name}.beta must stay between 0 and 1, got {end} at one of its ends"
                )
        if weight_normalisation not in ("batch", "buffer"):
            raise ConfigError(
                f"{name}.weight_normalisation must be 'batch' or 'buffer', got "
                f"{weight_normalisation!r}"
            )
        self.alpha = alpha
        self.beta = beta if isinstance(beta, Schedule) else Constant(beta)
        self.weight_normalisation = weight_normalisation
        self._batches = 0
        self._priority_max = 1.0

    @abstractmethod
    def _weigh(
        self, slots: IndexArray, priorities: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the weights, above 0, of the rows in `slots`, which have these priorities now."""

    def attach(self, windows: Windows) -> None:
        """Make room for the rows of a buffer; called once, before they are appended."""
        if hasattr(self, "_tree"):
            raise ValueError("this sampler serves another buffer: build one for each")
        self._streams = windows.streams
        self._tree = SumTree(
            self._streams.num_slots, track_minimum=self.weight_normalisation == "buffer"
        )

    def bytes_needed(self, slots: int) -> int:
        """Return the bytes of the sum tree."""
        return SumTree.bytes_needed(slots)

    def sample(
        self, windows: Windows, batch_size: int, generator: torch.Generator
    ) -> tuple[IndexArray, npt.NDArray[np.float32]]:
        """Draw keys, with replacement, and their importance weights."""
        total = self._tree.total
        if not total:
            raise not_enough_rows(windows)
        parts = torch.rand(batch_size, generator=generator, dtype=torch.float64).numpy()
        parts += np.arange(batch_size)
        slots = self._tree.find(parts * (total / batch_size))
        weights = self._tree.get(slots)
        smallest = weights.min() if self.weight_normalisation == "batch" else self._tree.minimum
        if self.minimum_of_ranks is not None:
            smallest = self.minimum_of_ranks(smallest / total) * total
        importance = (smallest / weights) ** self.beta(self._batches)
        self._batches += 1
        return self._streams.keys_in(slots), importance.astype(np.float32)

    def rows_changed(self, added: IndexArray, removed: IndexArray) -> None:
        """Give new rows the highest priority, and take the others out."""
        slots = self._slots(np.concatenate((removed, added)))  # a new row may lie in an old slot
        weights = np.zeros(len(slots))
        priorities = np.full(len(added), self._priority_max)
        weights[len(removed) :] = self._weigh(slots[len(removed) :], priorities)
        self._tree.set(slots, weights)

    def update_priorities(self, keys: IndexArray, priorities: npt.NDArray[np.float32]) -> None:
        """Set priorities, as they are given; those of rows that are gone are dropped.

        Raises:
            ValueError: A priority is negative, NaN or infinite.
        """
        if not len(keys):
            return
        highest = float(priorities.max())
        if not (priorities.min() >= 0 and highest < np.inf):  # NaN fails
            raise ValueError(_reproach(keys, priorities))
        self._priority_max = max(self._priority_max, highest)
        slots = self._slots(keys)
        current = self._streams.stored(keys)
        current &= self._tree.get(slots) > 0
        slots = slots[current]
        self._tree.set(slots, self._weigh(slots, priorities[current].astype(np.float64)))

    def metrics(self) -> dict[str, float]:
        """Return the highest priority seen and the exponent of the next importance weights."""
        return {
            "replay/priority_max": self._priority_max,
            "replay/beta": float(self.beta(self._batches)),
        }

    def settings(self) -> dict[str, Any]:
        """Return what a row's weight depends on beside its priority."""
        return {**super().settings(), "alpha": float(self.alpha)}

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return batches drawn and the highest priority seen; of the rows their weights."""
        state: dict[str, Any] = {"batches": self._batches, "priority_max": self._priority_max}
        return {**state, "rows": {"leaves": self._tree.leaves}} if with_rows else state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`; that of a uniform sampler changes nothing."""
        self._batches = state.get("batches", self._batches)
        self._priority_max = state.get("priority_max", self._priority_max)
        if rows := state.get("rows"):
            self._tree.set(np.arange(len(rows["leaves"])), rows["leaves"])

    def _slots(self, keys: IndexArray) -> IndexArray:
        return self._streams.slots(keys[:, 0], keys[:, 1:]).reshape(-1)


class PrioritizedSampler(WeightedSampler):
    """Proportional prioritisation: a row is drawn in proportion to (priority + epsilon)^alpha.

    Reference: Schaul et al. 2016, "Prioritized Experience Replay",
    https://arxiv.org/abs/1511.05952, section 3.3. The default alpha and the ends of beta are
    those of Hessel et al. 2018, "Rainbow", https://arxiv.org/abs/1710.02298, table 1.

    Args:
        alpha: Exponent of the priorities, 0 to 1; 0 is uniform.
        beta: Exponent of the importance weights, from 0 to 1, or a schedule of batches drawn. It
            has a horizon of its own, which follows no other setting.
        epsilon: Added to every priority, so that every row can be drawn.
        weight_normalisation: Where the largest importance weight becomes 1: in each `"batch"`, or
            over all rows of the `"buffer"`.

    Raises:
        ConfigError: A setting is out of range.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float | Schedule = Linear(0.4, 1.0, 500_000),  # noqa: B008 (frozen)
        epsilon: float = 1e-6,
        weight_normalisation: Literal["batch", "buffer"] = "batch",
    ) -> None:
        super().__init__(alpha, beta, weight_normalisation)
        reason = " (rows whose priority is 0 could never be drawn again)"
        check_positive("PrioritizedSampler.epsilon", epsilon, reason)
        self.epsilon = epsilon

    def settings(self) -> dict[str, Any]:
        """Return what a row's weight depends on beside its priority."""
        return {**super().settings(), "epsilon": float(self.epsilon)}

    def _weigh(
        self, slots: IndexArray, priorities: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        return (priorities + self.epsilon) ** self.alpha


class RankSampler(WeightedSampler):
    """Rank-based prioritisation: the row with the r-th highest priority has weight r^-alpha.

    Rows with the same priority share the best of their ranks. All rows are ranked once in
    `sort_period_batches` batches, which takes 0.15 s for a million rows. In between, a
    row whose priority changes is ranked among the priorities of that moment.

    Reference: Schaul et al. 2016, "Prioritized Experience Replay",
    https://arxiv.org/abs/1511.05952, section 3.3. The default alpha and the ends of beta are
    those of its experiments, section 4.

    Args:
        alpha: Exponent of the ranks, 0 to 1; 0 is uniform.
        beta: Exponent of the importance weights, from 0 to 1, or a schedule of batches drawn. It
            has a horizon of its own, which follows no other setting.
        sort_period_batches: Batches drawn until all rows are ranked again.
        weight_normalisation: Where the largest importance weight becomes 1: in each `"batch"`, or
            over all rows of the `"buffer"`.

    Raises:
        ConfigError: A setting is out of range.
    """

    def __init__(
        self,
        alpha: float = 0.7,
        beta: float | Schedule = Linear(0.5, 1.0, 500_000),  # noqa: B008 (frozen)
        sort_period_batches: int = 1000,
        weight_normalisation: Literal["batch", "buffer"] = "batch",
    ) -> None:
        super().__init__(alpha, beta, weight_normalisation)
        if sort_period_batches < 1:
            raise ConfigError(
                f"RankSampler.sort_period_batches must be at least 1, got {sort_period_batches}"
            )
        self.sort_period_batches = sort_period_batches
        self._next_sort = 0  # in batches drawn
        self._ranking = np.empty(0)

    def attach(self, windows: Windows) -> None:
        """Make room for the rows of a buffer; called once, before they are appended."""
        super().attach(windows)
        self._priorities = np.zeros(windows.streams.num_slots)

    def bytes_needed(self, slots: int) -> int:
        """Return the bytes of the sum tree, of priorities and of those that are ranked."""
        return super().bytes_needed(slots) + 2 * 8 * slots

    def sample(
        self, windows: Windows, batch_size: int, generator: torch.Generator
    ) -> tuple[IndexArray, npt.NDArray[np.float32]]:
        """Draw keys, with replacement, and their importance weights."""
        if self._batches >= self._next_sort and self._tree.total:
            self._next_sort = self._batches + self.sort_period_batches
            self._sort()
        return super().sample(windows, batch_size, generator)

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return also priorities, and among which priorities rows are ranked until when."""
        state = super().state(with_rows)
        if with_rows:
            state["rows"] |= {
                "priorities": self._priorities,
                "ranking": self._ranking,
                "next_sort": self._next_sort,
            }
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`; without rows all are ranked before the next batch."""
        super().restore(state)
        if rows := state.get("rows"):
            self._priorities[:] = rows["priorities"]
            self._ranking, self._next_sort = rows["ranking"], rows["next_sort"]

    def _sort(self) -> None:
        slots = self._tree.positive()
        slots = slots[self._priorities[slots].argsort()]
        self._ranking = self._priorities[slots]
        self._tree.set(slots, self._weigh(slots, self._ranking))

    def _weigh(
        self, slots: IndexArray, priorities: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        self._priorities[slots] = priorities
        higher = len(self._ranking) - self._ranking.searchsorted(priorities, side="right")
        return (higher.astype(np.float64) + 1.0) ** -self.alpha


def _reproach(keys: IndexArray, priorities: npt.NDArray[np.float32]) -> str:
    """Say which priority is wrong, and why."""
    wrong = int((~((priorities >= 0) & (priorities < np.inf))).argmax())
    cause = (
        "it is negative, but absolute TD errors and losses are not"
        if priorities[wrong] < 0
        else "the loss has diverged; lower the learning rate or clip gradients"
    )
    return f"the priority of row {tuple(keys[wrong].tolist())} is {priorities[wrong]}: {cause}"
