"""Whole episodes, as other libraries exchange them: to rows of a stream, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lrl.replay.streams import (
    BOUNDARY_FLAGS,
    GAP_FLAGS,
    PREFIX_FLAGS,
    TERMINATED,
    TRUNCATED,
    Streams,
)
from lrl.types import Column, EnvSpec, Observation, RowKind, Rows, leaves_from


class RecordedEpisode(NamedTuple):
    """The steps of an episode, or of a part of one, and the observation after each.

    Observations are what networks take: with a stack of frames, all of them.
    """

    observation: Observation  # [steps + 1, *observation_shape], one array or one for each leaf
    action: npt.NDArray[np.int32]  # [steps], or [steps, branches], numbered from 0
    reward: npt.NDArray[np.floating]  # [steps]
    terminated: npt.NDArray[np.bool_]  # [steps]
    truncated: npt.NDArray[np.bool_]  # [steps]
    action_mask: npt.NDArray[np.bool_] | None = None  # [steps + 1, actions]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.action)


def num_rows(episodes: int, steps: int, spec: EnvSpec) -> int:
    """Return the rows that `rows_of` makes of so many episodes with so many steps in all."""
    return steps + episodes * spec.frame_stack


def rows_of(episode: RecordedEpisode, spec: EnvSpec) -> Rows:
    """Return an episode as rows of stream 0: PREFIX rows of its first stack, STEPs, a BOUNDARY.

    Raises:
        ValueError: Frames of a stack are not those of the observation before, one further.
    """
    steps, prefix = len(episode), spec.frame_stack - 1
    count = prefix + steps + 1

    def placed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column = np.zeros((count, *values.shape[1:]), values.dtype)
        column[prefix : prefix + steps] = values
        return column

    mask = episode.action_mask
    if mask is not None:
        mask = np.concatenate((np.ones((prefix, mask.shape[1]), np.bool_), mask))
        for branch in spec.action.split(mask[-1:]):
            branch |= ~branch.any()  # no action is chosen in a final observation
    frames = spec.frame_columns()
    observations = dict(zip(frames, _leaves(episode.observation, spec), strict=True))
    kind = np.full(count, RowKind.STEP, np.uint8)
    kind[:prefix], kind[-1] = RowKind.PREFIX, RowKind.BOUNDARY
    return Rows(
        stream=np.zeros(count, np.int32),
        kind=kind,
        frame=leaves_from(
            "frame", {n: _frames(observations[n], c, prefix, n) for n, c in frames.items()}
        ),
        action=placed(episode.action.astype(np.int32)),
        reward=placed(episode.reward.astype(np.float32)),
        terminated=placed(episode.terminated),
        truncated=placed(episode.truncated),
        policy_version=np.zeros(count, np.int64),
        action_mask=mask,
    )


def episodes_of(streams: Streams, spec: EnvSpec) -> Iterator[RecordedEpisode]:
    """Return what streams hold as episodes, oldest first, stream after stream.

    Where rows are missing, at the beginning, at the end or in the middle, a part of an episode is
    one of its own: it ends at the last observation that is stored, as truncated.
    """
    for stream in range(streams.num_streams):
        first, stop = int(streams.oldest[stream]), int(streams.counts[stream])
        numbers = np.arange(first, stop)[:, None] + np.arange(1 - spec.frame_stack, 1)
        flags = streams.flags(streams.slots(np.full(len(numbers), stream), numbers))
        is_seen = flags.max(axis=1, initial=0) < GAP_FLAGS  # its whole stack is stored
        for start, end in _parts(flags[:, -1].tolist(), is_seen.tolist()):
            yield _episode(streams, spec, stream, first + start, first + end)


def _leaves(observation: Observation, spec: EnvSpec) -> list[npt.NDArray[Any]]:
    return [observation] if "" in spec.observation else [observation[n] for n in spec.observation]


def _frames(values: npt.NDArray[Any], column: Column, prefix: int, name: str) -> npt.NDArray[Any]:
    """Return the newest frame of each observation, behind the earlier ones of the first."""
    if column.stack == 1:
        return np.concatenate((values[:1].repeat(prefix, axis=0), values))
    if not np.array_equal(values[1:, :-1], values[:-1, 1:]):
        raise ValueError(
            f"{name} is no stack of frames that follow each other, newest last, within an episode"
        )
    missing = values[:1, 0].repeat(prefix + 1 - column.stack, axis=0)
    return np.concatenate((missing, values[0, :-1], values[:, -1]))


def _parts(flags: list[int], is_seen: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield where steps begin, and which row has the observation after the last of them."""
    start, is_over = -1, False
    for index, flag in enumerate(flags):
        if start >= 0 and (is_over or flag >= BOUNDARY_FLAGS):
            end = index if flag < PREFIX_FLAGS else index - 1
            if end > start:
                yield start, end
            start = -1
        if start < 0 and flag < BOUNDARY_FLAGS and is_seen[index]:
            start = index
        is_over = flag & (TERMINATED | TRUNCATED) != 0
    if 0 <= start < len(flags) - 1:
        yield start, len(flags) - 1


def _episode(streams: Streams, spec: EnvSpec, stream: int, start: int, end: int) -> RecordedEpisode:
    numbers = np.arange(start, end + 1)[:, None] + np.arange(1 - spec.frame_stack, 1)
    slots = streams.slots(np.full(len(numbers), stream), numbers)
    wanted = {n: c for n, c in streams.carried.items() if _is_exchanged(n)}
    taken = streams.take({n: slots[:, -c.stack :] for n, c in wanted.items()})
    columns = {n: _observed(taken[n].cpu().numpy(), c) for n, c in wanted.items()}
    steps = slots[:-1, -1]
    flags, action, reward = streams.numbers(steps)
    terminated, truncated = (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0
    truncated[-1] |= not terminated[-1]
    return RecordedEpisode(
        leaves_from("frame", columns), action, reward, terminated, truncated,
        columns.get("action_mask"),
    )  # fmt: skip


def _is_exchanged(name: str) -> bool:
    return name == "action_mask" or name.partition(".")[0] == "frame"


def _observed(values: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    return values if column.stack > 1 else values[:, 0]


def stacked(column: Column) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return type, shape and categories of what a network takes, whichever part is a stack."""
    categories: npt.NDArray[Any] = np.empty(0, np.int64)
    if column.categories:
        numbers = np.reshape(column.categories, column.shape)
        categories = np.broadcast_to(numbers, column.stacked_shape)
    return column.dtype, column.stacked_shape, tuple(categories.ravel().tolist())


def described(columns: Mapping[str, Column]) -> str:
    """Say in words what observations consist of."""
    said = {name: stacked(column) for name, column in columns.items()}
    return ", ".join(
        f"{name + ' ' if name else ''}{dtype}{[*shape]}" + (f" of {list(sizes)}" if sizes else "")
        for name, (dtype, shape, sizes) in said.items()
    )
