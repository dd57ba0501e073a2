"""What flows through lrl: environment specification, rows and batches.

This module is numpy-only, because actors that ask a central inference server never import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

Observation: TypeAlias = Any
"""An array or a tensor; for Dict spaces a dict with one for each leaf."""
Memory: TypeAlias = Mapping[str, Any]
"""What a recurrent policy carries from step to step: arrays or tensors, one row an environment."""


class ConfigError(ValueError):
    """A setting is wrong: the message names it, its value and the fix. The CLI exits with 2."""


def first_line(error: BaseException) -> str:
    """Return what an error says first, or of what kind it is where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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
class Column:
    """One value of every row.

    Attributes:
        dtype: numpy's name of its type.
        shape: Shape of the value in one row.
        stack: Rows whose values make one observation along a new first axis, newest last; 1 means
            that a row's value is all of it.
        missing: What the value is in rows that do not give it; None if all of them have to.
        categories: Where the values are categories, numbered from 0: how many there are of each, in
            the order of the flattened shape. Empty where they are numbers.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    stack: int = 1
    missing: int | None = None
    categories: tuple[int, ...] = ()

    @cached_property
    def type(self) -> np.dtype[Any]:
        """Type of the value."""
        return np.dtype(self.dtype)

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Shape of what a network takes, without the batch."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the value in one row."""
        return prod(self.shape) * self.type.itemsize

    def filled(self, count: int) -> npt.NDArray[np.generic]:
        """Return `count` rows in which the value is missing."""
        return np.full((count, *self.shape), self.missing or 0, self.type)

    def holds(self, values: npt.NDArray[Any]) -> bool:
        """Return whether values `[..., *shape]`, if they are categories, are such that exist."""
        if not self.categories or not values.size:
            return True
        limits = np.reshape(self.categories, self.shape)
        return bool(values.min() >= 0 and (values < limits).all())


@dataclass(frozen=True)
class ActionSpec:
    """What an agent can do: one choice of several, or one in each of several branches.

    The values of all choices stand side by side, branch after branch, and so do masks. An action is
    one number where there is one branch, otherwise `[branches]`.

    Attributes:
        branches: Number of choices in each branch, `(n,)` for a Discrete space; choices are
            numbered from 0 in each.
        masks: Whether the environment says which choices are allowed.

    Example:
        >>> ActionSpec((3, 2)).split(np.array([[1, 2, 3, 40, 50]]))
        [array([[1, 2, 3]]), array([[40, 50]])]
    """

    branches: tuple[int, ...]
    masks: bool = False

    @cached_property
    def column(self) -> Column:
        """What a row holds of an action."""
        return Column("int32", () if len(self.branches) == 1 else (len(self.branches),))

    @property
    def parts(self) -> tuple[slice, ...]:
        """Where the values of each branch stand; not kept, for compiled losses enter no lock."""
        ends = tuple(accumulate(self.branches))
        return tuple(slice(end - size, end) for size, end in zip(self.branches, ends, strict=True))

    def split(self, values: Any) -> list[Any]:
        """Return what values or masks `[..., values]` say of each branch; None says nothing."""
        if len(self.branches) == 1 or values is None:
            return [values] * len(self.branches)
        return [values[..., part] for part in self.parts]

    def choices(self, action: Any) -> list[Any]:
        """Return the choices of actions `[...]` or `[..., branches]` in each branch."""
        if len(self.branches) == 1:
            return [action]
        return [action[..., branch] for branch in range(len(self.branches))]

    def indices(self, action: Any) -> Any:
        """Return where the values of actions stand among those of all choices, `[..., branches]`.

        Example:
            >>> ActionSpec((3, 2)).indices(np.array([[2, 1]]))
            array([[2, 4]])
        """
        taken = zip(self.choices(action), self.parts, strict=True)
        return np.stack([choice + part.start for choice, part in taken], axis=-1)

    def outside(self, action: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Tell which of several actions there are not, `[actions]`."""
        if len(self.branches) == 1:
            return (action < 0) | (action >= self.branches[0])
        wrong = (action < 0) | (action >= np.array(self.branches))
        return np.asarray(wrong.any(axis=-1))


@dataclass(frozen=True)
class EnvSpec:
    """What networks, replay and transport need to know of an environment and its policy.

    `EnvSpec.box` describes the usual case, an array and numbered actions.

    Attributes:
        observation: A column for each leaf of the observation space, by name: its path in Dicts and
            Tuples, such as "arm.position" or "0"; one alone is named "". Their types are `"uint8"`
            (networks divide by 255), `"float32"`, `"bool"` (a byte in transport and replay, 0.0 and
            1.0 in networks), or, for categories, an integer with a sign, the smallest that holds
            them.
        action: The actions.
        memory: What a recurrent policy carries from step to step, stored with every row.
        frame_skip: Emulator frames per environment step (1 where there is no such notion).
        values: Whether rows hold the value that the policy saw; said by what learns from them.
    """

    observation: Mapping[str, Column]
    action: ActionSpec
    memory: Mapping[str, Column] = field(default_factory=dict[str, Column])
    frame_skip: int = 1
    values: bool = False

    @classmethod
    def box(
        cls,
        observation_shape: tuple[int, ...],
        observation_dtype: str,
        num_actions: int,
        frame_stack: int = 1,
        frame_skip: int = 1,
        action_masks: bool = False,
    ) -> EnvSpec:
        """Describe an environment with one array and one number as its action.

        Args:
            observation_shape: Shape of one observation as the network takes it: with more than one
                frame, these are its first axis.
            observation_dtype: `"uint8"`, `"float32"` or `"bool"`.
            num_actions: Number of actions.
            frame_stack: Number of frames in an observation.
            frame_skip: Emulator frames per environment step.
            action_masks: Whether the environment says which actions are allowed.

        Example:
            >>> spec = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4)
            >>> spec.observation[""]
            Column(dtype='uint8', shape=(84, 84), stack=4, missing=None, categories=())
            >>> spec.observation_shape, spec.num_actions
            ((4, 84, 84), 6)
        """
        shape = tuple(observation_shape)[frame_stack > 1 :]
        return cls(
            observation={"": Column(observation_dtype, shape, frame_stack)},
            action=ActionSpec((num_actions,), action_masks),
            frame_skip=frame_skip,
        )

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> EnvSpec:
        """Return the specification that `as_dict` made plain."""
        if "observation_shape" in saved:
            return cls.box(**saved)
        return cls(
            observation=_columns(saved["observation"]),
            action=ActionSpec(tuple(saved["action"]["branches"]), saved["action"]["masks"]),
            memory=_columns(saved["memory"]),
            frame_skip=saved["frame_skip"],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain types: the arguments of `box` where that can describe it."""
        plain = self.observation.get("")
        if plain is None or plain.categories or len(self.action.branches) != 1 or self.memory:
            return asdict(self)
        return {
            "observation_shape": self.observation_shape,
            "observation_dtype": self.observation_dtype,
            "num_actions": self.num_actions,
            "frame_stack": self.frame_stack,
            "frame_skip": self.frame_skip,
            "action_masks": self.action.masks,
        }

    @property
    def observation_shape(self) -> Any:
        """Shape of one observation as the network takes it; a mapping where it has leaves."""
        shapes = {name: column.stacked_shape for name, column in self.frame_columns().items()}
        return leaves_from("frame", shapes)

    @property
    def observation_dtype(self) -> Any:
        """Type of an observation; a mapping where it has leaves."""
        types = {name: column.dtype for name, column in self.frame_columns().items()}
        return leaves_from("frame", types)

    @property
    def observation_categories(self) -> Any:
        """Categories of an observation, as in `Column`; a mapping where it has leaves."""
        found = {name: column.categories for name, column in self.frame_columns().items()}
        return leaves_from("frame", found)

    @property
    def num_actions(self) -> int:
        """Number of action values: one for each choice."""
        return sum(self.action.branches)

    @property
    def frame_stack(self) -> int:
        """Rows that make one observation."""
        return max((column.stack for column in self.observation.values()), default=1)

    def frame_columns(self) -> dict[str, Column]:
        """Return what rows hold of observations, by the columns' names."""
        return named("frame", self.observation)

    def carried_columns(self) -> dict[str, Column]:
        """Return what rows carry beside numbers of their own: frames, memory, masks, values."""
        memory = {name: replace(column, missing=0) for name, column in self.memory.items()}
        columns = self.frame_columns() | named("memory", memory)
        if self.action.masks:
            columns["action_mask"] = Column("bool", (self.num_actions,), missing=1)
        if self.values:
            columns["value"] = Column("float32", missing=0)
        return columns

    def row_columns(self) -> dict[str, Column]:
        """Return all columns of a row: the only list there is of them."""
        return {**_PLAIN_COLUMNS, "action": self.action.column, **self.carried_columns()}


_PLAIN_COLUMNS = {
    "stream": Column("int32"),
    "kind": Column("uint8"),
    "reward": Column("float32"),
    "terminated": Column("bool"),
    "truncated": Column("bool"),
    "policy_version": Column("int64"),
}


def _columns(saved: Mapping[str, Any]) -> dict[str, Column]:
    return {
        name: Column(
            c["dtype"], tuple(c["shape"]), c["stack"], c["missing"], tuple(c.get("categories", ()))
        )
        for name, c in saved.items()
    }


def _has_leaves(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def leaves_of(value: Any) -> dict[str, Any]:
    """Return the leaves of an observation by name; what is no dict is the leaf "".

    Example:
        >>> leaves_of(3.0), leaves_of({"position": 3.0})
        ({'': 3.0}, {'position': 3.0})
    """
    return value if _has_leaves(value) else {"": value}


def named(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Name leaves as columns: "frame", or "frame.position"."""
    return {f"{prefix}.{name}" if name else prefix: leaf for name, leaf in leaves.items()}


def leaves_from(prefix: str, columns: Mapping[str, Any]) -> Any:
    """Undo `named`: return the column of that name, or a dict of those whose names begin so.

    Example:
        >>> leaves_from("frame", {"frame": 1}), leaves_from("frame", {"frame.a": 1, "kind": 2})
        (1, {'a': 1})
    """
    if prefix in columns:
        return columns[prefix]
    start = prefix + "."
    return {n.removeprefix(start): c for n, c in columns.items() if n.startswith(start)}


def whole_of(leaves: Mapping[str, Any]) -> Any:
    """Undo `leaves_of`.

    Example:
        >>> whole_of({"": 3.0}), whole_of({"position": 3.0})
        (3.0, {'position': 3.0})
    """
    return leaves[""] if "" in leaves else dict(leaves)


def map_leaves(function: Callable[..., Any], *values: Any) -> Any:
    """Return a function of one value or several, taken of each leaf where they have leaves.

    None stays None.

    Example:
        >>> map_leaves(max, 1, 2), map_leaves(max, {"a": 1, "b": 4}, {"a": 2, "b": 3})
        (2, {'a': 2, 'b': 4})
    """
    first = values[0]
    if _has_leaves(first):
        return {name: function(*(value[name] for value in values)) for name in first}
    return None if first is None else function(*values)


def _columns_of(rows: Rows | AnyBatch) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in vars(rows).items():
        if isinstance(value, dict):
            columns |= named(name, value)  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None and not isinstance(value, (int, float)):
            columns[name] = value
    return columns


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
        return _columns_of(self)

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

    def check(self, spec: EnvSpec) -> None:
        """Check what no environment of lrl's can give, for rows of other making.

        Raises:
            ValueError: A kind, an action or a category does not exist, or a number is not finite.
        """
        if (self.kind > max(RowKind)).any():
            raise ValueError(f"kind {self.kind.max()} is none of {[kind.name for kind in RowKind]}")
        shape = (len(self), *spec.action.column.shape)
        if self.action.shape != shape:
            raise ValueError(f"action has the shape {self.action.shape}, expected {shape}")
        acted = self.action[self.kind == RowKind.STEP]
        outside = spec.action.outside(acted)
        if outside.any():
            sizes = spec.action.branches
            known = f"the {sizes[0]} actions" if len(sizes) == 1 else f"those of branches {sizes}"
            raise ValueError(f"action {acted[outside.argmax()]} is not one of {known}")
        for name, column in self.columns().items():
            is_float = np.issubdtype(column.dtype, np.floating)
            if is_float and not np.isfinite(column.astype(np.float64)).all():
                raise ValueError(f"{name} holds NaN or infinite numbers")
        for name, column in spec.frame_columns().items():
            if column.categories and not column.holds(self.columns()[name]):
                raise ValueError(f"{name} holds a category that does not exist")

    def __getitem__(self, index: slice) -> Rows:
        """Return the rows of a slice, as views."""
        return Rows(**{n: map_leaves(itemgetter(index), v) for n, v in vars(self).items()})


class AnyBatch:
    """What batches of transitions and of sequences have in common: tensors by name."""

    keys: torch.Tensor
    _on_host: ClassVar[frozenset[str]] = frozenset({"keys"})  # wherever the others go

    def columns(self) -> dict[str, torch.Tensor]:
        """Return the tensors that there are, by field, or by field and leaf."""
        return _columns_of(self)

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
    if not _has_leaves(value):
        return value.split(size)
    parts = zip(*(leaf.split(size) for leaf in value.values()), strict=True)
    return [dict(zip(value, part, strict=True)) for part in parts]
