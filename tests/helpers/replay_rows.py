"""Rows for replay tests, and a slow, obvious twin of the replay buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lrl.replay import Replay
from lrl.types import EnvSpec, RowKind, Rows


@dataclass
class Row:
    """One row in plain Python; its frame is `[name, -name]`."""

    kind: RowKind
    name: float
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


def make_spec(frame_stack: int = 1, action_masks: bool = False) -> EnvSpec:
    shape = (frame_stack, 2) if frame_stack > 1 else (2,)
    return EnvSpec.box(shape, "float32", 5, frame_stack, action_masks=action_masks)


def pack(rows: list[tuple[int, Row]]) -> Rows:
    """Make `Rows` of (stream, row) pairs."""
    return Rows(
        stream=np.array([stream for stream, _ in rows], np.int32),
        kind=np.array([row.kind for _, row in rows], np.uint8),
        frame=np.array([[row.name, -row.name] for _, row in rows], np.float32).reshape(-1, 2),
        action=np.array([row.action for _, row in rows], np.int32),
        reward=np.array([row.reward for _, row in rows], np.float32),
        terminated=np.array([row.terminated for _, row in rows], bool),
        truncated=np.array([row.truncated for _, row in rows], bool),
        policy_version=np.zeros(len(rows), np.int64),
    )


def episode(
    rewards: list[float], end: str = "terminated", frame_stack: int = 1, first: float = 0.0
) -> list[Row]:
    """Make the rows of an episode: prefix, a step per reward, boundary unless `end` is "open".

    Frames are numbered from `first`; all prefix frames repeat the first one.
    """
    rows = [Row(RowKind.PREFIX, first) for _ in range(frame_stack - 1)]
    rows += [
        Row(RowKind.STEP, first + t, action=t % 5, reward=reward)
        for t, reward in enumerate(rewards)
    ]
    if end != "open":
        setattr(rows[-1], end, True)
        rows.append(Row(RowKind.BOUNDARY, first + len(rewards)))
    return rows


def filled(*rows_of_streams: list[Row], capacity: int = 400, **settings) -> Replay:
    frame_stack = settings.pop("frame_stack", 1)
    buffer = Replay(make_spec(frame_stack), capacity, len(rows_of_streams), **settings)
    for stream, rows in enumerate(rows_of_streams):
        buffer.add(pack([(stream, row) for row in rows]))
    return buffer


def leaves(buffer: Replay) -> dict[tuple[int, int], float]:
    """The weights that a prioritised sampler gives to the rows it may draw."""
    sampler: Any = buffer._sampler
    slots = sampler._tree.positive()
    keys = [(stream, number) for stream, number in buffer.streams.keys_in(slots).tolist()]
    return dict(zip(keys, sampler._tree.get(slots).tolist(), strict=True))


@dataclass
class RandomStream:
    """What an actor might send of one environment: every kind of end, losses and restarts."""

    rng: np.random.Generator
    frame_stack: int
    hazard: float
    pending: list[Row] = field(default_factory=list)
    names: int = 0

    def next_row(self) -> Row:
        if not self.pending:
            self.pending = self._more()
        return self.pending.pop(0)

    def _more(self) -> list[Row]:
        rows = []
        if self.names == 0 or self.rng.random() < self.hazard:
            rows.append(self._row(RowKind.GAP))  # a (re)started actor
        rows += [self._row(RowKind.PREFIX) for _ in range(self.frame_stack - 1)]
        for _ in range(self.rng.integers(1, 15)):
            rows.append(self._row(RowKind.STEP))
            if self.rng.random() < self.hazard:
                rows[-1].terminated = True  # a life loss: the stream goes on
            if self.rng.random() < self.hazard:
                rows.append(self._row(RowKind.GAP))  # rows lost in an episode
        if rows[-1].kind == RowKind.GAP or self.rng.random() < self.hazard:
            return rows  # killed before the episode ended: the next rows begin with a gap
        end = self.rng.integers(3)
        rows[-1].terminated |= bool(end != 1)
        rows[-1].truncated = bool(end != 0)
        return [*rows, self._row(RowKind.BOUNDARY)]

    def _row(self, kind: RowKind) -> Row:
        self.names += 1
        action, reward = int(self.rng.integers(5)), float(self.rng.integers(-3, 4))
        return Row(kind, self.names, action, reward)


@dataclass
class Expected:
    """A transition in plain Python; observations are lists of frame names, oldest first."""

    observation: list[float]
    action: int
    reward: float
    discount: float
    next_observation: list[float]


class NaiveReplay:
    """Keeps every row ever appended in lists and looks at each of them for each question."""

    def __init__(self, rows_per_stream: int, num_streams: int, frame_stack: int) -> None:
        self.rows_per_stream = rows_per_stream
        self.frame_stack = frame_stack
        self.streams: list[list[Row]] = [[] for _ in range(num_streams)]

    def append(self, rows: list[tuple[int, Row]]) -> None:
        for stream, row in rows:
            self.streams[stream].append(row)

    def num_steps(self) -> int:
        stored = [row for rows in self.streams for row in rows[-self.rows_per_stream :]]
        return sum(row.kind == RowKind.STEP for row in stored)

    def transitions(self, n_step: int, gamma: float) -> dict[tuple[int, int], Expected]:
        found = {}
        for stream, rows in enumerate(self.streams):
            oldest = max(0, len(rows) - self.rows_per_stream)
            for number in range(oldest, len(rows)):
                transition = self._transition(rows, oldest, number, n_step, gamma)
                if transition is not None:
                    found[stream, number] = transition
        return found

    def _transition(
        self, rows: list[Row], oldest: int, number: int, n_step: int, gamma: float
    ) -> Expected | None:
        first = number - self.frame_stack + 1
        if first < oldest or any(row.kind == RowKind.GAP for row in rows[first : number + 1]):
            return None
        reward = 0.0
        for steps in range(1, n_step + 1):
            row = rows[number + steps - 1] if number + steps - 1 < len(rows) else None
            if row is None or row.kind != RowKind.STEP:
                return None
            reward += gamma ** (steps - 1) * row.reward
            if row.terminated:
                return self._expected(rows, number, reward, 0.0, number)
            if row.truncated or steps == n_step:
                final = number + steps
                if final == len(rows) or rows[final].kind not in (RowKind.STEP, RowKind.BOUNDARY):
                    return None
                return self._expected(rows, number, reward, gamma**steps, final)
        return None

    def _expected(
        self, rows: list[Row], number: int, reward: float, discount: float, final: int
    ) -> Expected:
        return Expected(
            self._stack(rows, number),
            rows[number].action,
            reward,
            discount,
            self._stack(rows, final),
        )

    def _stack(self, rows: list[Row], number: int) -> list[float]:
        return [row.name for row in rows[number - self.frame_stack + 1 : number + 1]]
