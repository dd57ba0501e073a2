"""Recurrent cores: what a network remembers from step to step, between encoder and head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from lrl.types import Column, ConfigError, Memory


class RecurrentCore(nn.Module, ABC):
    """Turn features and a memory into features and the memory after them.

    Subclasses take `num_features` of the encoder first; other arguments come from the
    configuration. They set `num_features` and `memory`. Every row of experience holds the memory
    before it, so that the learner goes on from where the policy was: it learns from single steps,
    and no gradient goes through a memory (the stored state of Kapturowski et al. 2019, "R2D2",
    without its sequences).

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


class GRUCore(RecurrentCore):
    """A gated recurrent unit (Cho et al. 2014, https://arxiv.org/abs/1406.1078).

    Args:
        num_features: Size of the encoder's features.
        hidden_size: Units, the number of features.
    """

    def __init__(self, num_features: int, hidden_size: int = 128) -> None:
        super().__init__()
        if hidden_size < 1:
            raise ConfigError(f"core.hidden_size must be at least 1, got {hidden_size}")
        self.cell = nn.GRUCell(num_features, hidden_size)
        self.num_features = hidden_size
        self.memory = {"hidden": Column("float32", (hidden_size,))}

    @override
    def forward(self, features: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, Memory]:
        hidden = self.cell(features, memory["hidden"])
        return hidden, {"hidden": hidden}
