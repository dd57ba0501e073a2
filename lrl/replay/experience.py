"""What is learnt from: rows come in, batches go out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from lrl.replay.buffer import ReplayBuffer
from lrl.types import Batch, Rows


class Experience(ABC):
    """Takes rows and gives batches; knows no process, and lives in the learner's.

    Owned by the dataset. Subclass it to learn without a replay: `add`, `can_draw`, `draw`, `state`
    and `restore` are enough (examples/own_experience.py).

    Attributes:
        batch_size: Transitions in a batch.
        env_steps: STEP rows that came in over the whole run, earlier sessions included.
        needs_priorities: Whether `learnt` wants to be called.
        draws_independently: Whether several batches may be drawn at once before any is learnt from.
    """

    batch_size: int
    env_steps: int = 0
    needs_priorities: bool = False
    draws_independently: bool = True

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Take rows, copying them: any mix of streams, in time order within each stream."""

    @abstractmethod
    def can_draw(self) -> bool:
        """Tell whether there is a batch to learn from."""

    @abstractmethod
    def draw(self, batches: int) -> list[Batch]:
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
    def fill(self) -> float:
        """Share of its room that holds rows."""
        return 0.0


class Replay(Experience):
    """Batches drawn from a replay buffer.

    Args:
        buffer: The stored rows, of this rank.
        batch_size: Transitions in a batch.
        pin_memory: Whether batches go to page-locked memory, for a learner on a GPU.
        rank: Learner process it belongs to: a checkpoint holds the generator of rank 0, from which
            the others' follow.
    """

    def __init__(
        self, buffer: ReplayBuffer, batch_size: int, pin_memory: bool = False, rank: int = 0
    ) -> None:
        self.buffer = buffer
        self.batch_size = batch_size
        self.needs_priorities = buffer.needs_priorities
        self.draws_independently = buffer.draws_independently
        self._pin_memory = pin_memory
        self._rank = rank

    @property
    def env_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """STEP rows that came in over the whole run."""
        return self.buffer.env_steps_inserted

    def add(self, rows: Rows) -> None:
        """Append rows to their streams."""
        self.buffer.append(rows)

    def can_draw(self) -> bool:
        """Tell whether one row can be sampled: it draws with replacement."""
        return self.buffer.can_sample()

    def draw(self, batches: int) -> list[Batch]:
        """Sample all batches together, which costs less than one by one."""
        rows = self.buffer.sample(batches * self.batch_size)
        if self._pin_memory:
            rows = rows.pin_memory()
        return rows.split(self.batch_size) if batches > 1 else [rows]

    def anneal(self, learner_step: int) -> None:
        """Set n-step and discount; a longer window may take rows out."""
        self.buffer.anneal(learner_step)

    def learnt(self, keys: Tensor, priorities: Tensor) -> None:
        """Hand priorities to the sampler; those of rows that were overwritten are dropped."""
        self.buffer.update_priorities(keys, priorities)

    def metrics(self) -> dict[str, float]:
        """Return its size and the sampler's metrics."""
        return {"replay/size": float(len(self.buffer)), **self.buffer.metrics()}

    @property
    def fill(self) -> float:
        """Share of the capacity that holds rows of any kind."""
        return self.buffer.fill

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return the buffer's state."""
        return self.buffer.state(with_rows)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of its own; other ranks draw otherwise from one of a checkpoint."""
        if "counts" not in state:
            state = {**state, "generator": _of_rank(self._rank, state["generator"])}
        self.buffer.restore(state)


def _of_rank(rank: int, generator_state: Tensor) -> Tensor:
    """Return rank 0's generator state as it is, and other states for the other ranks."""
    if rank == 0:
        return generator_state
    generator = torch.Generator()
    generator.set_state(generator_state)
    seeds = torch.randint(2**62, (rank,), generator=generator)
    return torch.Generator().manual_seed(int(seeds[-1])).get_state()
