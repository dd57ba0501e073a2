"""What networks, replay and transport need to know of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.types.leaves import leaves_from, named


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
