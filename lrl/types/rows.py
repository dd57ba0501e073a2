"""Rows of streams, as actors make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.types.leaves import Memory, Observation, columns_of, leaves_from, map_leaves
from lrl.types.spec import Column


class RowKind(IntEnum):
    """What a row of a stream is (docs/architecture.md, "Streams")."""

    STEP = 0
    """An observation with the action taken in it; the only kind that starts a transition."""
    BOUNDARY = 1
    """The final observation after an episode's end: no action was taken in it."""
    PREFIX = 2
    """An earlier frame of the first stack of an episode."""
    GAP = 3
    """Rows were lost here, or the actor was restarted: nothing may be joined across it."""


@dataclass(frozen=True)
class Rows:
    """Rows of one or several streams, in time order within each stream; all arrays are `[rows]`.

    A STEP row holds the newest frame of the observation, the action taken in it, and what the
    environment answered to that action: reward (already clipped if training clips) and end flags.
    """

    stream: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    frame: Observation  # [rows, *shape], one array or one for each leaf
    action: npt.NDArray[np.int32]  # or [rows, branches]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    policy_version: npt.NDArray[np.int64]
    action_mask: npt.NDArray[np.bool_] | None = None  # [rows, actions]; None allows all
    memory: Memory | None = None  # remembered before it acted
    value: npt.NDArray[np.float32] | None = None  # of the best allowed action, as it acted

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.kind)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that there are, by the names of `EnvSpec.row_columns`."""
        return columns_of(vars(self))

    def complete(self, expected: Mapping[str, Column]) -> dict[str, npt.NDArray[Any]]:
        """Return at least the columns that are expected, those that may be missing filled in.

        Memory and value may be missing where no policy was asked, in PREFIX and GAP rows.

        Raises:
            ValueError: One is missing that may not, or has another type or shape.
        """
        columns, count = self.columns(), len(self.kind)
        for name, column in expected.items():
            array = columns.get(name)
            if array is None:
                is_of_policy = name == "value" or name.startswith("memory")
                was_asked = is_of_policy and (self.kind <= RowKind.BOUNDARY).any()
                if column.missing is None or was_asked:
                    raise ValueError(
                        f"rows.{name} is missing, expected {column.dtype}{[count, *column.shape]}"
                    )
                columns[name] = column.filled(count)
            elif array.dtype != column.type or array.shape != (count, *column.shape):
                raise ValueError(
                    f"rows.{name} is {array.dtype}{list(array.shape)}, expected "
                    f"{column.dtype}{[count, *column.shape]}, as the environment's specification "
                    "says"
                )
        return columns

    @classmethod
    def of(cls, columns: Mapping[str, npt.NDArray[Any]]) -> Rows:
        """Return the rows that have these columns."""
        names = dict.fromkeys(name.partition(".")[0] for name in columns)
        return cls(**{name: leaves_from(name, columns) for name in names})

    def __getitem__(self, index: slice) -> Rows:
        """Return the rows of a slice, as views."""
        return Rows(**{n: map_leaves(itemgetter(index), v) for n, v in vars(self).items()})
