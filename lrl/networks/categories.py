"""Categories in networks: as one-hot numbers, or looked up in an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn
from typing_extensions import override

from lrl.networks.encoders import Encoder
from lrl.parts.recipe import Recipe
from lrl.types import Column, ConfigError, Observation, leaves_of, whole_of

_MANY = 1000
"""Categories from which a run says that one-hot numbers cost much."""


def build_encoder(recipe: Recipe, columns: Mapping[str, Column]) -> Encoder:
    """Build the encoder of observations that have these columns.

    An encoder that takes shapes of numbers gets categories as one-hot numbers.
    """
    if recipe.find().takes_columns:
        return recipe(columns)
    shapes = {name: _numbers(column).stacked_shape for name, column in columns.items()}
    encoder: Encoder = recipe(whole_of(shapes))
    has_categories = any(column.categories for column in columns.values())
    return OneHot(columns, encoder) if has_categories else encoder


def _numbers(column: Column) -> Column:
    """Return the column of one-hot numbers in place of categories; another column as it is."""
    if not column.categories:
        return column
    return Column("float32", (sum(column.categories),), column.stack)


class OneHot(Encoder):
    """An encoder that gets categories as one-hot numbers, 0 and 1; other leaves as they are.

    Several categories of a leaf stand side by side: `[2, 3]` of `MultiDiscrete([3, 5])` is
    `[0, 0, 1, 0, 0, 0, 1, 0]`.

    Args:
        columns: The observation's columns.
        encoder: What gets the numbers.
    """

    takes_columns = True

    def __init__(self, columns: Mapping[str, Column], encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_features = encoder.num_features
        found = {name: column for name, column in columns.items() if column.categories}
        self._names = list(found)
        self._numbers = nn.ModuleList(_Numbered(column) for column in found.values())
        total = sum(sum(column.categories) for column in found.values())
        costly = (
            f"{total} categories as one-hot numbers (an EmbeddingEncoder looks them up at less "
            "cost)"
        )
        self.choice = "; ".join(filter(None, [encoder.choice, costly if total >= _MANY else ""]))

    @override
    def encode(self, observation: Observation) -> Tensor:
        leaves = dict(leaves_of(observation))
        for name, numbered in zip(self._names, self._numbers, strict=True):
            index = numbered(leaves[name])
            zeros = index.new_zeros((*index.shape[:-1], numbered.total), dtype=torch.float32)
            leaves[name] = zeros.scatter_(-1, index, 1.0)
        return self.encoder(whole_of(leaves))


class EmbeddingEncoder(Encoder):
    """Look categories up in a table of learnt vectors, one table for each of them.

    For a Discrete or MultiDiscrete observation, or a leaf of one in a `MultiEncoder`. With many
    categories it is cheaper than one-hot numbers before a layer.

    Args:
        columns: The observation's column.
        size: Numbers of each vector; there are as many vectors as categories in the observation.
    """

    takes_columns = True

    def __init__(self, columns: Mapping[str, Column], size: int = 16) -> None:
        super().__init__()
        column = columns.get("", Column("float32"))
        if not column.categories:
            given = f"{column.dtype} numbers {column.stacked_shape}"
            raise ConfigError(
                "encoder: EmbeddingEncoder takes categories, of Discrete or MultiDiscrete "
                f"observations, got {given if '' in columns else f'the leaves {list(columns)}'}: "
                "use MLPEncoder for numbers, and MultiEncoder, whose leaves may have this one, for "
                "leaves"
            )
        if size < 1:
            raise ConfigError(f"encoder.size must be at least 1, got {size}")
        self._numbered = _Numbered(column)
        self.table = nn.Embedding(self._numbered.total, size)
        self.num_features = size * len(column.categories) * column.stack

    @override
    def encode(self, observation: Observation) -> Tensor:
        return self.table(self._numbered(observation)).flatten(1)


class _Numbered(nn.Module):
    """Number the categories of a leaf one after the other, from 0 to `total` - 1."""

    first: Tensor

    def __init__(self, column: Column) -> None:
        super().__init__()
        first = [0, *accumulate(column.categories)]
        self.total = first.pop()
        self._leading = 1 + (column.stack > 1)
        self.register_buffer("first", torch.tensor(first), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """Return numbers of categories `[batch, (stack,) categories]`."""
        return leaf.reshape(*leaf.shape[: self._leading], -1).long() + self.first
