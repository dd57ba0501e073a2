"""What flows through lrl: environment specification, rows and batches.

This room is numpy-only, because actors that ask a central inference server never import torch.
"""

from lrl.types.batches import AnyBatch, Batch, SequenceBatch
from lrl.types.errors import ConfigError, first_line
from lrl.types.leaves import (
    Memory,
    Observation,
    leaves_from,
    leaves_of,
    map_leaves,
    named,
    whole_of,
)
from lrl.types.rows import RowKind, Rows
from lrl.types.spec import ActionSpec, Column, EnvSpec

__all__ = [
    "ActionSpec",
    "AnyBatch",
    "Batch",
    "Column",
    "ConfigError",
    "EnvSpec",
    "Memory",
    "Observation",
    "RowKind",
    "Rows",
    "SequenceBatch",
    "first_line",
    "leaves_from",
    "leaves_of",
    "map_leaves",
    "named",
    "whole_of",
]
