"""The checker of rows and transitions that stem from `LedgerEnv`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from lrl.actors.slot import ActorSlot
from lrl.testing.ledger_env import REMEMBERED_ACTIONS, LedgerEnv
from lrl.testing.transitions import valid_transitions
from lrl.types import RowKind, Rows

if TYPE_CHECKING:
    from lrl.replay.streams import Streams
    from lrl.types import Batch

Fault = Literal["corrupt", "duplicated", "missing"]
_Numbers = npt.NDArray[np.int64]
_RECORD = np.dtype(
    [("instance", "i8"), ("episode", "i8"), ("time", "i8"), ("action", "i8"), ("kind", "u1"),
     ("ended", "?"), ("prefixes", "i8")]
)  # fmt: skip
_UNKNOWN = 255  # kind of a row that nobody looked at: anything may follow
_UNCOUNTED = -1
"""PREFIX rows before one that nobody looked at."""
_KINDS = {int(kind): kind.name for kind in RowKind}
_KEPT_FAULTS = 20


class Ledger:
    """Verify that rows and sampled transitions are what `LedgerEnv` gave, once each and in order.

    Give it everything that arrives in one replay, from the beginning. It does not raise: `counts`
    and `faults` tell what it found, `raise_faults` ends a test. It is not for synchronous runs that
    save their replay: their environments go on as new instances, without a GAP row.

    Args:
        env: The environment, for its number of actions and the chance that an episode ends.
        frame_stack: Frames in an observation.
        reward_clip: As in `EnvConfig`.
        slot: Any slot of the run, to check that each stream holds the rows of its own environment.

    Attributes:
        counts: `rows`, `steps`, `transitions`, `instances`, what was `overlooked` (overwritten
            before it could be looked at), and the faults: rows and transitions that are `corrupt`,
            places where a stream goes back (`duplicated`) and where rows are `missing` without a
            restart.
        faults: The first of the faults, in words.

    Example:
        >>> from lrl.actors.actor import rows_without_action
        >>> frame, _ = LedgerEnv().reset(seed=3)
        >>> rows = rows_without_action(RowKind.PREFIX, np.zeros(1, np.int32), frame[None])
        >>> ledger = Ledger(LedgerEnv(), frame_stack=2)
        >>> ledger.take(rows)
        >>> ledger.take(rows)
        >>> ledger.faults
        ['duplicated: stream 0, instance 3, episode 0, step 0, PREFIX']
    """

    def __init__(
        self,
        env: LedgerEnv,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        slot: ActorSlot | None = None,
    ) -> None:
        self.env = env
        self.frame_stack = frame_stack
        self.reward_clip = reward_clip
        self.slot = slot
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._last = np.zeros(0, _RECORD)
        self._instances: set[int] = set()
        self._looked_at = np.zeros(0, np.int64)

    def take(self, rows: Rows) -> None:
        """Verify rows, in the order in which they came."""
        if not len(rows):
            return
        order = np.argsort(rows.stream, kind="stable")
        stream, frame = rows.stream[order].astype(np.int64), rows.frame[order]
        first = np.r_[True, stream[1:] != stream[:-1]]
        self._last = _grown(self._last, int(stream[-1]) + 1, kind=RowKind.GAP)
        last = self._last[stream[first]]
        now = _records(rows, order, frame)
        now["prefixes"] = self._prefixes(now["kind"], first, last["prefixes"])
        uncounted = (last["prefixes"] == _UNCOUNTED)[first.cumsum() - 1]
        now["prefixes"][uncounted & _begins_with_prefixes(now["kind"], first)] = _UNCOUNTED
        before = np.r_[now[:1], now[:-1]]
        before[first] = last
        gap = now["kind"] == RowKind.GAP
        corrupt = ~gap & self._is_corrupt(now, frame, rows, order)
        misplaced = ~gap & ~corrupt & self._is_misplaced(stream, before, now, frame)
        again = (now["instance"] == before["instance"]) & (before["kind"] < RowKind.GAP)
        again &= _position(now) <= _position(before)
        self.counts["rows"] += len(stream)
        self.counts["steps"] += int((now["kind"] == RowKind.STEP).sum())
        self._note("corrupt", stream, now, corrupt)
        self._note("duplicated", stream, now, misplaced & again)
        self._note("missing", stream, now, misplaced & ~again)
        ends = np.r_[np.flatnonzero(first)[1:] - 1, len(stream) - 1]
        self._last[stream[ends]] = now[ends]

    def take_new(self, streams: Streams) -> None:
        """Verify the rows that were appended to a replay's streams since the last call."""
        self._looked_at = _grown(self._looked_at, streams.num_streams)
        self._last = _grown(self._last, streams.num_streams, kind=RowKind.GAP)
        for stream in range(streams.num_streams):
            start = int(max(self._looked_at[stream], streams.oldest[stream]))
            if start > self._looked_at[stream]:
                self.counts["overlooked"] += start - int(self._looked_at[stream])
                self._last["kind"][stream] = _UNKNOWN
                self._last["prefixes"][stream] = _UNCOUNTED
            self._looked_at[stream] = streams.counts[stream]
            numbers = np.arange(start, streams.counts[stream])
            self.take(stored_rows(streams, stream, numbers))

    def take_batch(self, batch: Batch, n_step: int, gamma: float) -> None:
        """Verify sampled transitions, each by itself.

        Args:
            batch: The transitions.
            n_step: Environment steps of a transition at most, up to 8.
            gamma: Discount of one environment step.
        """
        if n_step > REMEMBERED_ACTIONS:
            raise ValueError(f"n_step is {n_step}; frames remember {REMEMBERED_ACTIONS} actions")
        valid = valid_transitions(batch, self.env, self.reward_clip, n_step, gamma)
        self.counts["transitions"] += len(valid)
        self.counts["corrupt"] += int((~valid).sum())
        for index in np.flatnonzero(~valid)[:_KEPT_FAULTS]:
            self._describe(f"corrupt: transition with key {batch.keys[index].tolist()}")

    def raise_faults(self) -> None:
        """Raise if anything was wrong.

        Raises:
            AssertionError: With the counts and the first faults.
        """
        if self.faults:
            raise AssertionError("\n".join([str(dict(self.counts)), *self.faults]))

    def _prefixes(
        self, kind: npt.NDArray[np.uint8], first: npt.NDArray[np.bool_], before: _Numbers
    ) -> _Numbers:
        """Count the PREFIX rows in a row up to each one; `before` has the counts of each stream."""
        # Streams lie further apart than any count, so that none looks back into another.
        position = np.arange(len(kind)) + first.cumsum() * self.frame_stack
        other = np.where(kind == RowKind.PREFIX, 0, position)
        start = position[first] - 1 - np.minimum(before, self.frame_stack - 1)
        other[first] = np.maximum(other[first], start)
        return position - np.maximum.accumulate(other)

    def _is_corrupt(
        self, now: npt.NDArray, frame: npt.NDArray, rows: Rows, order: _Numbers
    ) -> npt.NDArray[np.bool_]:
        """Tell which rows do not hold what the environment gave."""
        acted = now["kind"] == RowKind.STEP
        reward = LedgerEnv.reward(now["episode"], now["time"], now["action"])
        if self.reward_clip is not None:
            reward = np.clip(reward, -self.reward_clip, self.reward_clip)
        terminated, truncated = self.env.ends(_place(now), now["action"])
        wrong = ~LedgerEnv.intact(frame)
        wrong |= rows.reward[order] != np.where(acted, reward, 0.0)
        wrong |= rows.terminated[order] != (terminated & acted)
        return wrong | (rows.truncated[order] != (truncated & acted))

    def _is_misplaced(
        self, stream: _Numbers, before: npt.NDArray, now: npt.NDArray, frame: npt.NDArray
    ) -> npt.NDArray[np.bool_]:
        """Tell which rows are not the ones that have to follow those before them."""
        first_kind = RowKind.PREFIX if self.frame_stack > 1 else RowKind.STEP
        more = before["prefixes"] < self.frame_stack - 1
        more &= (before["prefixes"] != _UNCOUNTED) | (now["kind"] == RowKind.PREFIX)
        acted, ended = before["kind"] == RowKind.STEP, before["ended"]
        boundary, prefix = before["kind"] == RowKind.BOUNDARY, before["kind"] == RowKind.PREFIX
        restart, unknown = before["kind"] == RowKind.GAP, before["kind"] == _UNKNOWN
        kind = np.select(
            [acted & ended, boundary | restart, prefix & more],
            [RowKind.BOUNDARY, first_kind, RowKind.PREFIX],
            RowKind.STEP,
        )
        episode = np.where(restart, 0, before["episode"] + boundary)
        follows = (now["kind"] == kind) & (now["episode"] == episode)
        follows &= now["time"] == np.where(acted, before["time"] + 1, 0)
        follows &= ~acted | (LedgerEnv.decode_actions(frame)[:, 0] == before["action"])
        follows &= restart | (now["instance"] == before["instance"])
        follows |= unknown
        new = (restart | unknown) & (now["kind"] != RowKind.GAP)
        for index in np.flatnonzero(new):
            known = int(now["instance"][index]) in self._instances
            fits = self._meet(int(stream[index]), int(now["instance"][index]))
            follows[index] &= fits and not (known and restart[index])
        return ~follows

    def _meet(self, stream: int, instance: int) -> bool:
        """Note an instance; return whether it is one of the stream's environment."""
        self._instances.add(instance)
        self.counts["instances"] = len(self._instances)
        if self.slot is None:
            return True
        environments = self.slot.num_actors * self.slot.envs_per_actor
        environment, _ = self.slot.place_of(instance)
        return environment == self.slot.rank * environments + stream

    def _note(
        self, fault: Fault, stream: _Numbers, now: npt.NDArray, wrong: npt.NDArray[np.bool_]
    ) -> None:
        self.counts[fault] += int(wrong.sum())
        for index in np.flatnonzero(wrong)[:_KEPT_FAULTS]:
            row = now[index]
            self._describe(
                f"{fault}: stream {stream[index]}, instance {row['instance']}, episode "
                f"{row['episode']}, step {row['time']}, {_KINDS.get(int(row['kind']), row['kind'])}"
            )

    def _describe(self, fault: str) -> None:
        if len(self.faults) < _KEPT_FAULTS:
            self.faults.append(fault)


def _grown(array: npt.NDArray, size: int, **fields: int) -> npt.NDArray:
    """Return an array of at least this size; what is added is zero but for some fields."""
    added = np.zeros(max(0, size - len(array)), array.dtype)
    for name, value in fields.items():
        added[name] = value
    return np.r_[array, added]


def _begins_with_prefixes(
    kind: npt.NDArray[np.uint8], first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Tell which rows are PREFIX rows with nothing else before them in their streams."""
    others = (kind != RowKind.PREFIX).cumsum()
    before = others[first] - (kind[first] != RowKind.PREFIX)
    return others == before[first.cumsum() - 1]


def _records(rows: Rows, order: _Numbers, frame: npt.NDArray) -> npt.NDArray:
    records = np.zeros(len(rows), _RECORD)
    place = np.moveaxis(LedgerEnv.decode(frame), -1, 0)
    records["instance"], records["episode"], records["time"] = place
    records["action"], records["kind"] = rows.action[order], rows.kind[order]
    records["ended"] = rows.terminated[order] | rows.truncated[order]
    return records


def _place(records: npt.NDArray) -> _Numbers:
    return np.stack([records["instance"], records["episode"], records["time"]], axis=-1)


def _position(records: npt.NDArray) -> _Numbers:
    """Return a number that grows along an instance."""
    return (records["episode"] << 31) + records["time"]


def stored_rows(streams: Streams, stream: int, numbers: _Numbers) -> Rows:
    """Return rows of a replay's stream as they came, but for their policy versions."""
    slots = streams.slots(np.full(len(numbers), stream), numbers[:, None])[:, 0]
    flags = streams.flags(slots)
    return Rows(
        stream=np.full(len(numbers), stream, np.int32),
        kind=(flags >> 2).astype(np.uint8),
        frame=streams.take({"frame": slots[:, None]})["frame"][:, 0].cpu().numpy(),
        action=streams.actions(slots).astype(np.int32),
        reward=streams.rewards(slots),
        terminated=(flags & 1) != 0,
        truncated=(flags & 2) != 0,
        policy_version=np.zeros(len(numbers), np.int64),
    )
