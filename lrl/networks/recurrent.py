"""Recurrent cores: what a network remembers from step to step, between encoder and head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from lrl.parts.device_copies import to_device
from lrl.types import Column, ConfigError, Memory, map_leaves

_MOST_PADDED = 2.0  # times as many rows as there are: more take longer than step by step


class RecurrentCore(nn.Module, ABC):
    """Turn features and a memory into features and the memory after them.

    Subclasses take `num_features` of the encoder first; other arguments come from the
    configuration. They set `num_features` and `memory`, and have `forward` for one step; the
    others may be replaced by something faster. Every row of experience holds the memory before it,
    so that the learner goes on from where the policy was: from single rows without a gradient
    through the memory, or along sequences of rows (`data.replay.sequences`).

    Reference: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning" (R2D2), https://openreview.net/forum?id=r1lyTjAqYX: the stored state.

    Attributes:
        num_features: Size of the features that the head gets.
        memory: A column for each value that is remembered, by name; all zeros where an episode
            begins.
    """

    num_features: int
    memory: Mapping[str, Column]

    @abstractmethod
    def forward(self, features: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, Memory]:
        """Return the features `[batch, num_features]`, and what is remembered from now on.

        Args:
            features: What the encoder says of the observations.
            memory: What was remembered before them, `[batch, ...]` for each column.
        """

    def unroll(self, features: Tensor, memory: Mapping[str, Tensor], begins: Tensor) -> Tensor:
        """Return the features of every row of sequences, `[batch, time, num_features]`.

        Gradients go through what is remembered.

        Args:
            features: What the encoder says of the rows, `[batch, time, features]`.
            memory: What was remembered before the first row, `[batch, ...]` for each column.
            begins: Rows before which nothing is remembered, bool `[batch, time]`, on the host.
        """
        return torch.stack(self._steps(features, memory, begins)[0], dim=1)

    def memory_after(
        self, features: Tensor, memory: Mapping[str, Tensor], begins: Tensor
    ) -> Memory:
        """Return what is remembered behind the last row of sequences; see `unroll`."""
        return self._steps(features, memory, begins)[1]

    def _steps(
        self, features: Tensor, memory: Memory, begins: Tensor
    ) -> tuple[list[Tensor], Memory]:
        """Go through the rows one by one; return what was found at each, and the last memory."""
        remembers, found = to_device(~begins, features.device), list[Tensor]()
        may_forget = begins.any(dim=0).tolist()
        for step, forgets in enumerate(may_forget):
            if forgets:
                old = remembers[:, step]
                memory = map_leaves(lambda value, old=old: value * _beside(old, value), memory)
            out, memory = self(features[:, step], memory)
            found.append(out)
        return found, memory


class _FusedCore(RecurrentCore):
    """A core whose cell torch can also unroll in one call, if no memory is reset on the way."""

    cell: nn.RNNCellBase

    @abstractmethod
    def _fused(self, features: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the features of all rows and the last memory; nothing is reset."""

    @override
    def unroll(self, features: Tensor, memory: Mapping[str, Tensor], begins: Tensor) -> Tensor:
        if not begins.any():
            return self._fused(features, memory)[0]
        pieces, old = _Pieces.of(begins), to_device(~begins[:, 0], features.device)
        if pieces.number * pieces.longest > _MOST_PADDED * begins.numel():
            return super().unroll(features, memory, begins)
        rows = to_device(pieces.rows, features.device)
        firsts = to_device(pieces.firsts, features.device)
        padded = features.new_zeros(pieces.number * pieces.longest, features.shape[2])
        padded = padded.index_copy(0, rows, features.flatten(0, 1))
        start = map_leaves(
            lambda value: value.new_zeros(pieces.number, *value.shape[1:]).index_copy(
                0, firsts, value * _beside(old, value)
            ),
            memory,
        )
        out, _ = self._fused(padded.view(pieces.number, pieces.longest, -1), start)
        return out.flatten(0, 1).index_select(0, rows).view(*begins.shape, -1)

    @override
    def memory_after(
        self, features: Tensor, memory: Mapping[str, Tensor], begins: Tensor
    ) -> Memory:
        if begins.any() or not begins.shape[1]:
            return super().memory_after(features, memory, begins)
        return self._fused(features, memory)[1]

    def _weights(self) -> list[Tensor]:
        cell = self.cell
        return [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]


class _Pieces(NamedTuple):
    """Sequences cut where episodes begin, one piece below the other, all as long as the longest."""

    number: int
    longest: int
    rows: Tensor
    """Place of each row of the sequences, `[batch * time]`."""
    firsts: Tensor
    """Piece with which each sequence begins, `[batch]`."""

    @classmethod
    def of(cls, begins: Tensor) -> _Pieces:
        cut = begins.clone()
        cut[:, 0] = True
        starts = cut.flatten().nonzero().squeeze(1)
        piece = cut.flatten().cumsum(0) - 1
        offset = torch.arange(cut.numel()) - starts[piece]
        longest = int(offset.max()) + 1
        firsts = piece.view_as(cut)[:, 0]
        return cls(len(starts), longest, piece * longest + offset, firsts)


class GRUCore(_FusedCore):
    """A gated recurrent unit (Cho et al. 2014, https://arxiv.org/abs/1406.1078).

    Args:
        num_features: Size of the encoder's features.
        hidden_size: Units, the number of features.
    """

    def __init__(self, num_features: int, hidden_size: int = 128) -> None:
        super().__init__()
        self.cell = nn.GRUCell(num_features, _checked(hidden_size))
        self.num_features = hidden_size
        self.memory = {"hidden": Column("float32", (hidden_size,))}

    @override
    def forward(self, features: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, Memory]:
        hidden = self.cell(features, memory["hidden"])
        return hidden, {"hidden": hidden}

    @override
    def _fused(self, features: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        start = memory["hidden"][None]
        out, last = torch.gru(
            features, start, self._weights(), True, 1, 0.0, self.training, False, True
        )
        return out, {"hidden": last[0]}


class LSTMCore(_FusedCore):
    """Long short-term memory with forget gates (Gers et al. 2000).

    Args:
        num_features: Size of the encoder's features.
        hidden_size: Units, the number of features.
        forget_bias: Initial bias of the forget gates. At 0 half of the memory is lost at each step,
            and gradients with it: raise it where something has to be remembered for long
            (Jozefowicz et al. 2015 take 1).
    """

    def __init__(self, num_features: int, hidden_size: int = 128, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(num_features, _checked(hidden_size))
        gates = slice(hidden_size, 2 * hidden_size)  # torch keeps input, forget, cell, output
        with torch.no_grad():
            self.cell.bias_ih[gates] = forget_bias
            self.cell.bias_hh[gates] = 0.0
        self.num_features = hidden_size
        self.memory = {name: Column("float32", (hidden_size,)) for name in ("hidden", "cell")}

    @override
    def forward(self, features: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, Memory]:
        hidden, cell = self.cell(features, (memory["hidden"], memory["cell"]))
        return hidden, {"hidden": hidden, "cell": cell}

    @override
    def _fused(self, features: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        start = [memory["hidden"][None], memory["cell"][None]]
        out, hidden, cell = torch.lstm(
            features, start, self._weights(), True, 1, 0.0, self.training, False, True
        )
        return out, {"hidden": hidden[0], "cell": cell[0]}


def _checked(hidden_size: int) -> int:
    if hidden_size < 1:
        raise ConfigError(f"core.hidden_size must be at least 1, got {hidden_size}")
    return hidden_size


def _beside(rows: Tensor, value: Tensor) -> Tensor:
    """Return one number for each row, to be multiplied with values of any shape."""
    return rows.view(-1, *[1] * (value.ndim - 1))
