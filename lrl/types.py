"""What flows through lrl: environment specification, rows and batches.

This module is numpy-only, because actors that ask a central inference server never import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class ConfigError(ValueError):
    """A setting is wrong: the message names it, its value and the fix. The CLI exits with 2."""


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
class EnvSpec:
    """What networks, replay and transport need to know of an environment.

    Attributes:
        observation_shape: Shape of one observation as the network takes it, without the batch.
        observation_dtype: `"uint8"` (networks divide by 255), `"float32"`, or `"bool"` (a byte in
            transport and replay, 0.0 and 1.0 in networks).
        num_actions: Number of discrete actions, numbered from 0.
        frame_stack: Number of frames in an observation along its first axis, newest last;
            1 means that an observation is one frame.
        frame_skip: Emulator frames per environment step (1 where there is no such notion).
        action_masks: Whether the environment says which actions are allowed.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    num_actions: int
    frame_stack: int = 1
    frame_skip: int = 1
    action_masks: bool = False

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of the newest frame alone: what one row stores."""
        return self.observation_shape[1:] if self.frame_stack > 1 else self.observation_shape

    @property
    def frame_bytes(self) -> int:
        """Size of one frame in bytes."""
        return prod(self.frame_shape) * np.dtype(self.observation_dtype).itemsize


@dataclass(frozen=True)
class Rows:
    """Rows of one or several streams, in time order within each stream; all arrays are `[rows]`.

    A STEP row holds the newest frame of the observation, the action taken in it, and what the
    environment answered to that action: reward (already clipped if training clips) and end flags.
    """

    stream: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    frame: npt.NDArray[np.generic]  # [rows, *frame_shape]
    action: npt.NDArray[np.int32]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    policy_version: npt.NDArray[np.int64]
    action_mask: npt.NDArray[np.bool_] | None = None  # [rows, actions]; None allows all

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.kind)

    def check(self, spec: EnvSpec) -> None:
        """Check what no environment of lrl's can give, for rows of other making.

        Raises:
            ValueError: A kind or an action does not exist, or a number is not finite.
        """
        if (self.kind > max(RowKind)).any():
            raise ValueError(f"kind {self.kind.max()} is none of {[kind.name for kind in RowKind]}")
        acted = self.action[self.kind == RowKind.STEP]
        if acted.size and not 0 <= acted.min() <= acted.max() < spec.num_actions:
            wrong = acted.max() if acted.min() >= 0 else acted.min()
            raise ValueError(f"action {wrong} is not one of the {spec.num_actions} actions")
        if not np.isfinite(self.reward).all():
            raise ValueError("reward holds NaN or infinite numbers")
        is_float = np.issubdtype(self.frame.dtype, np.floating)
        if is_float and not np.isfinite(self.frame.astype(np.float64)).all():
            raise ValueError("frame holds NaN or infinite numbers")

    def __getitem__(self, index: slice) -> Rows:
        """Return the rows of a slice, as views."""
        columns = vars(self).items()
        return Rows(**{name: column[index] for name, column in columns if column is not None})


@dataclass(frozen=True)
class Batch:
    """Transitions sampled from the replay buffer, ready for the network.

    `discount` is final: gamma**m for an m-step transition, 0 where the episode terminated, so
    the target is `reward + discount * value(next_observation)` and nothing downstream knows gamma.
    """

    observation: torch.Tensor  # [batch, *observation_shape]
    action: torch.Tensor  # int64 [batch]
    reward: torch.Tensor  # float32 [batch], discounted n-step sum
    discount: torch.Tensor  # float32 [batch]
    next_observation: torch.Tensor  # [batch, *observation_shape], where the value is bootstrapped
    weights: torch.Tensor  # float32 [batch], importance weights (1 with uniform sampling)
    keys: torch.Tensor  # int64 [batch, 2], on the host: stream and row number, for priorities
    action_mask: torch.Tensor | None = None  # bool [batch, actions], True where allowed
    next_action_mask: torch.Tensor | None = None  # the same in `next_observation`; None allows all

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch on a device, but for its keys (Lightning calls this to move batches)."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def split(self, size: int) -> list[Batch]:
        """Return the parts of so many rows each, as views."""
        names, tensors = zip(*((n, t) for n, t in vars(self).items() if t is not None), strict=True)
        parts = zip(*(tensor.split(size) for tensor in tensors), strict=True)
        return [Batch(**dict(zip(names, part, strict=True))) for part in parts]

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, from which copies to a GPU need not wait."""
        # torch copies what is not contiguous through other memory.
        return self._map(lambda tensor: tensor.contiguous().pin_memory())

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Return the batch with a function of all that a GPU needs."""
        columns = {name: column for name, column in vars(self).items() if column is not None}
        keys = columns.pop("keys")
        return Batch(keys=keys, **{name: function(column) for name, column in columns.items()})
