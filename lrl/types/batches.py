"""Batches of transitions and of sequences, as the learner takes them: tensors by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lrl.types.leaves import (
    Memory,
    Observation,
    columns_of,
    has_leaves,
    leaves_from,
    map_leaves,
)
from lrl.types.rows import RowKind

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self


class AnyBatch:
    """What batches of transitions and of sequences have in common: tensors by name."""

    keys: torch.Tensor
    _on_host: ClassVar[frozenset[str]] = frozenset({"keys"})  # wherever the others go

    def columns(self) -> dict[str, torch.Tensor]:
        """Return the tensors that there are, by field, or by field and leaf."""
        return columns_of(vars(self))

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device, but for what stays on the host."""
        return self.sent(lambda columns: {n: tensor.to(device) for n, tensor in columns.items()})

    def sent(self, function: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Self:
        """Return the batch with what a function makes of the columns that a device needs."""
        columns = self.columns()
        wanted = {n: c for n, c in columns.items() if n not in self._on_host}
        names = dict.fromkeys(name.partition(".")[0] for name in wanted)
        found = function(wanted)
        return type(self)(**{**vars(self), **{name: leaves_from(name, found) for name in names}})

    def split(self, size: int) -> list[Self]:
        """Return the parts of so many each, as views."""
        count = -(-len(self.keys) // size)
        parts = {n: _split(v, size, count) for n, v in vars(self).items() if v is not None}
        rows = zip(*parts.values(), strict=True)
        nothing = dict.fromkeys(vars(self))
        return [type(self)(**nothing | dict(zip(parts, row, strict=True))) for row in rows]


@dataclass(frozen=True)
class Batch(AnyBatch):
    """Transitions, ready for the network.

    `discount` is final: gamma**m for an m-step transition, 0 where the episode terminated, so
    the target is `reward + discount * value(next_observation)` and nothing downstream knows gamma.
    Where rewards are whole returns, every discount is 0 and there is no next observation.
    """

    observation: Observation  # [batch, *observation_shape], one tensor or one for each leaf
    action: torch.Tensor  # int64 [batch], or [batch, branches]
    reward: torch.Tensor  # float32 [batch], discounted n-step sum
    discount: torch.Tensor  # float32 [batch]
    next_observation: Observation  # the same, where the value is bootstrapped; None without
    weights: torch.Tensor  # float32 [batch], importance weights (1 with uniform sampling)
    keys: torch.Tensor  # int64 [batch, 2], on the host: stream and row number, for priorities
    action_mask: torch.Tensor | None = None  # bool [batch, actions], True where allowed
    next_action_mask: torch.Tensor | None = None  # the same in `next_observation`; None allows all
    memory: Memory | None = None  # remembered at `observation`
    next_memory: Memory | None = None  # and at `next_observation`


@dataclass(frozen=True)
class SequenceBatch(AnyBatch):
    """Windows of streams: rows as they followed each other, and the transitions among them.

    A window has `burn_in` rows from which only a memory is gathered, then `length` rows that may
    each start a transition, then those in which the last transitions bootstrap. Behind a STEP
    comes a STEP or the BOUNDARY of its episode, whose observation is the next one; what comes
    behind a BOUNDARY is of another episode. PREFIX rows have no observation of their own. No row
    is lost within a window. As in `Batch`, `discount` is final, so that nothing downstream knows
    gamma or n.
    """

    kind: torch.Tensor  # uint8 [batch, time], of `RowKind`; on the host
    frame: Observation  # [batch, stack - 1 + time, *shape], one tensor or one for each leaf
    action: torch.Tensor  # int64 [batch, length], or [batch, length, branches]
    reward: torch.Tensor  # float32 [batch, length], discounted n-step sum
    discount: torch.Tensor  # float32 [batch, length]
    next_row: torch.Tensor  # int64 [batch, length], row of the window where it bootstraps
    learns: torch.Tensor  # bool [batch, length], whether there is such a transition
    weights: torch.Tensor  # float32 [batch], importance weights
    keys: torch.Tensor  # int64 [batch, 2], on the host: stream and number of the first row
    burn_in: int = 0  # rows before the first transition
    eta: float = 0.9  # share of the largest in a sequence's priority, beside the mean
    action_mask: torch.Tensor | None = None  # bool [batch, time, actions], True where allowed
    memory: Memory | None = None  # [batch, ...], remembered at the first row
    _on_host: ClassVar[frozenset[str]] = frozenset({"keys", "kind"})

    @property
    def observation(self) -> Observation:
        """Observations `[batch, time, *observation_shape]`; those of PREFIX rows mean nothing.

        Views: a stack shares its frames with its neighbours.
        """
        return map_leaves(self._stacked, self.frame)

    @property
    def begins(self) -> torch.Tensor:
        """Rows before which nothing is remembered, bool `[batch, time]`, on the host.

        The first row is never one: its memory is given.
        """
        ends = (self.kind == RowKind.BOUNDARY) | (self.kind == RowKind.PREFIX)
        begins = ends.roll(1, dims=1)
        begins[:, 0] = False
        return begins

    def _stacked(self, frames: torch.Tensor) -> torch.Tensor:
        stack = frames.shape[1] - self.kind.shape[1] + 1
        return frames if stack == 1 else frames.unfold(1, stack, 1).movedim(-1, 2)


def _split(value: Any, size: int, count: int) -> list[Any]:
    """Return the `count` parts of so many rows each of a tensor, or of one for each leaf."""
    if isinstance(value, (int, float)):
        return [value] * count
    if not has_leaves(value):
        return value.split(size)
    parts = zip(*(leaf.split(size) for leaf in value.values()), strict=True)
    return [dict(zip(value, part, strict=True)) for part in parts]
