"""Spaces: leaves of observations as columns, actions as choices, and what environments answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from lrl.envs.vector import Bounds, quoted
from lrl.types import Column, ConfigError

_Path = tuple[str | int, ...]
_MOST_CHOICES = 10_000_000
_KEPT_DTYPES = {np.dtype(np.uint8): "uint8", np.dtype(np.bool_): "bool"}


class ObservationLeaves:
    """The leaves of a Gymnasium space: one without a name, or those of nested Dicts and Tuples.

    A leaf's name is its path, joined by dots, with the entries of Tuples by number. Leaves are in
    the order of their names, whichever an environment gives them in: what was saved under one order
    must not be read under another.

    Args:
        space: Of one observation, without a stack.
        owner: Name of the environment, for messages.
        frame_stack: Frames in an observation; each leaf then has a first axis of them.

    Attributes:
        columns: A column for each leaf, by name.

    Raises:
        ConfigError: lrl has no column for a leaf, or two leaves have one name.

    Example:
        >>> arm = Dict(position=Box(0, 1, (2,)), gripper=Discrete(3))
        >>> leaves = ObservationLeaves(Dict(arm=arm, camera=Box(0, 255, (8, 8), np.uint8)), "Arm")
        >>> list(leaves.columns)
        ['arm.gripper', 'arm.position', 'camera']
        >>> answer = {"arm": {"position": [0.5, 1], "gripper": 2}, "camera": np.zeros((8, 8))}
        >>> leaves.of(answer, "Arm")["arm.position"]
        [0.5, 1]
    """

    def __init__(self, space: Space, owner: str, frame_stack: int = 1) -> None:
        self._owner = owner
        self._nodes: list[_Node] = []
        found: dict[str, Leaf] = {}
        for path, leaf in self._walk(space, ()):
            name = _name(path)
            if name in found:
                raise ConfigError(
                    f"{owner} has two leaves of its observations that are called {name!r}: rename "
                    "one in a wrapper of env.wrappers."
                )
            found[name] = Leaf(path, leaf, _column(leaf, frame_stack, name, owner))
        if not found:
            raise ConfigError(
                f"{owner} has the observation space {space}, which holds nothing: give it a leaf "
                "in a wrapper of env.wrappers."
            )
        self._leaves = dict(sorted(found.items()))
        self.columns = {name: leaf.column for name, leaf in self._leaves.items()}
        self._names = self.columns.keys()
        self._is_flat = all(leaf.path == (name,) for name, leaf in self._leaves.items())

    def bounds(self) -> dict[str, Bounds]:
        """Return what looks whether observations lie in their space, by the names of leaves."""
        boxes = {name: leaf.space for name, leaf in self._leaves.items()}
        return {n: Bounds(box, n) for n, box in boxes.items() if isinstance(box, Box)}

    def of(self, observation: Any, whose: str) -> dict[str, Any]:
        """Return the leaves of an observation by name.

        Raises:
            ValueError: It has other leaves than its space.
        """
        if not self._nodes:
            return {"": observation}
        if self._is_flat and isinstance(observation, dict) and observation.keys() == self._names:
            return observation
        for node in self._nodes:
            node.check(_at(observation, node.path), whose)
        return {name: _at(observation, leaf.path) for name, leaf in self._leaves.items()}

    def read(
        self, name: str, value: Any, shape: tuple[int, ...], whose: str
    ) -> npt.NDArray[np.generic]:
        """Return a leaf's value in numbers as its column has them, perhaps of a wider type.

        Args:
            name: The leaf.
            value: What the environment answered.
            shape: Which it must have.
            whose: Begins the message.

        Raises:
            ValueError: It has another type or shape, or is a category that does not exist.
        """
        value, leaf = np.asarray(value), self._leaves[name]
        if leaf.is_number and value.dtype == leaf.type and value.shape == shape:
            return value  # as most are
        return leaf.read(value, shape, whose, name)

    def _walk(self, space: Space, path: _Path) -> Iterator[tuple[_Path, Space]]:
        if isinstance(space, Dict):
            self._nodes.append(_Node(path, frozenset(space.spaces)))
            entries = space.spaces.items()
        elif isinstance(space, Tuple):
            self._nodes.append(_Node(path, len(space.spaces)))
            entries = enumerate(space.spaces)
        else:
            yield path, space
            return
        for key, entry in entries:
            if not str(key):
                raise ConfigError(
                    f"{self._owner} has a leaf without a name in its observation space {space}: "
                    "rename it in a wrapper of env.wrappers."
                )
            yield from self._walk(entry, (*path, key))


@dataclass(frozen=True)
class Leaf:
    """One leaf of an observation space.

    Attributes:
        path: Where it is: keys of Dicts and numbers of Tuples' entries.
        space: Its space.
        column: What a row holds of it.
    """

    path: _Path
    space: Space
    column: Column

    @cached_property
    def is_number(self) -> bool:
        """Whether what the environment answers needs no translation."""
        return isinstance(self.space, Box)

    @cached_property
    def type(self) -> np.dtype[Any]:
        """Type of its column."""
        return self.column.type

    def read(
        self, value: npt.NDArray[Any], shape: tuple[int, ...], whose: str, name: str
    ) -> npt.NDArray[np.generic]:
        """Return a value as the column has it; see `ObservationLeaves.read`."""
        if value.shape != shape or not self._fits(value.dtype):
            raise ValueError(
                f"{whose}: the observation{quoted(name)} was declared {self._declared} {shape}, "
                f"but came as {value.dtype} {value.shape}."
            )
        if self.is_number:
            return value
        first, count = _choices(self.space)
        numbered = value - first
        wrong = (numbered < 0) | (numbered >= count)
        if wrong.any():
            raise ValueError(
                f"{whose}: the observation{quoted(name)} holds {value[wrong].flat[0]}, which is "
                f"not in its space {self.space}."
            )
        return numbered

    @property
    def _declared(self) -> str:
        if isinstance(self.space, Box):
            return self.column.dtype
        return "integers or booleans" if self.column.dtype == "bool" else "integers"

    def _fits(self, dtype: np.dtype) -> bool:
        if isinstance(self.space, Box):
            return dtype.kind in "biuf" and _network_dtype(dtype) == self.column.type
        return dtype.kind in ("biu" if self.column.dtype == "bool" else "iu")


@dataclass(frozen=True)
class _Node:
    """A Dict or a Tuple of a space."""

    path: _Path
    names: frozenset[str] | int
    """Keys of the Dict, or number of the Tuple's entries."""

    def check(self, value: Any, whose: str) -> None:
        names = self.names
        if isinstance(names, int):
            found, declared = isinstance(value, tuple) and len(value), f"a tuple of {names}"
        else:
            found, declared = isinstance(value, dict) and value.keys(), f"a dict of {sorted(names)}"
        if found is False or found != names:
            raise ValueError(
                f"{whose}: the observation{quoted(_name(self.path))} was declared {declared}, but "
                f"came as {_said(value)}."
            )


def _said(value: Any) -> str:
    """Say what an environment answered in place of a Dict or a Tuple."""
    if isinstance(value, dict):
        return f"a dict of {sorted(map(str, value))}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "one array" if isinstance(value, np.ndarray) else type(value).__name__


def _name(path: _Path) -> str:
    return ".".join(map(str, path))


def _at(observation: Any, path: _Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def _column(space: Space, frame_stack: int, name: str, owner: str) -> Column:
    shape: Any = space.shape
    if isinstance(space, Box):
        return Column(_network_dtype(space.dtype), shape, frame_stack)
    if isinstance(space, MultiBinary):
        return Column("bool", shape, frame_stack)
    if isinstance(space, (Discrete, MultiDiscrete)):
        counts = np.asarray(_choices(space)[1]).reshape(-1)
        if counts.sum() > _MOST_CHOICES:
            raise ConfigError(
                f"{owner}: {_leaf_is(name)} {space}, more categories than the {_MOST_CHOICES:,} of "
                "which a network can know each: turn them into numbers, or into fewer, in a "
                "wrapper of env.wrappers."
            )
        # With a sign, since bytes without are pixels to networks.
        dtype = np.min_scalar_type(-int(counts.max())).name
        return Column(dtype, shape, frame_stack, categories=tuple(counts.tolist()))
    raise ConfigError(
        f"{owner}: {_leaf_is(name)} {space}, but lrl takes Dicts and Tuples of Box, Discrete, "
        "MultiDiscrete and MultiBinary: turn it into one of these, or leave it out, in a wrapper "
        "such as gymnasium.wrappers.FlattenObservation in env.wrappers."
    )


def _leaf_is(name: str) -> str:
    return f"the leaf {name!r} of its observations is" if name else "its observations are"


def _choices(space: Any) -> tuple[Any, Any]:
    """Return the first of the numbers that a space holds, and how many there are."""
    if isinstance(space, MultiBinary):
        return 0, 2
    return space.start, space.n if isinstance(space, Discrete) else space.nvec


def _network_dtype(dtype: np.dtype) -> str:
    return _KEPT_DTYPES.get(dtype, "float32")  # which holds integers exactly up to 2**24


class Choices:
    """The actions of a space as choices, numbered from 0: one, or one in each of several branches.

    Discrete has one branch, MultiDiscrete one for each of its numbers, and MultiBinary one of two
    choices for each of its bits.

    Args:
        space: The action space of one environment.
        owner: Whose it is, for the message.

    Attributes:
        branches: Number of choices in each.

    Raises:
        ConfigError: It is another space.

    Example:
        >>> choices = Choices(MultiDiscrete([3, 2], start=[1, 0]), "env")
        >>> choices.branches, choices.actions(np.array([[0, 1]]))
        ((3, 2), array([[1, 1]]))
    """

    def __init__(self, space: Space, owner: str) -> None:
        start: Any = 0
        if isinstance(space, Discrete):
            sizes, start = np.array([space.n]), space.start
        elif isinstance(space, MultiDiscrete):
            sizes, start = space.nvec.flatten(), space.start
        elif isinstance(space, MultiBinary):
            sizes = np.full(prod(space.shape or ()), 2)
        else:
            raise ConfigError(f"{owner} has the action space {space}, {_instead_of(space)}")
        self.branches = tuple(sizes.tolist())
        if not self.branches:
            raise ConfigError(f"{owner} has the action space {space}, in which there is no choice.")
        if sum(self.branches) > _MOST_CHOICES:
            raise ConfigError(
                f"{owner} has the action space {space}, more choices than the {_MOST_CHOICES:,} "
                "that a network can value: make them fewer in a wrapper of env.wrappers."
            )
        self._start, self._shape = start, space.shape or ()
        self._dtype = np.int64 if isinstance(space, Discrete) else space.dtype

    def actions(self, choices: npt.NDArray[np.int64]) -> npt.NDArray[np.integer]:
        """Return the space's own actions `[num_envs, ...]`, of choices as `StreamEnvs` has them."""
        own = choices.reshape(len(choices), *self._shape) + self._start
        return own.astype(self._dtype, copy=False)

    def chosen(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Undo `actions`: return the choices `[actions]`, or `[actions, branches]`."""
        choices = (actions - self._start).astype(np.int32).reshape(len(actions), -1)
        return choices[:, 0] if len(self.branches) == 1 else choices


def _instead_of(space: Space) -> str:
    """Say what to do about an action space that has no choices."""
    if isinstance(space, Box):
        return (
            "which has no choices: add lrl.envs.Discretize to env.wrappers, with the number of "
            "values of each dimension as its `bins`."
        )
    return (
        "but only Discrete, MultiDiscrete and MultiBinary are supported: add a wrapper to "
        "env.wrappers that has one of these."
    )


def joined_masks(masks: Any) -> npt.NDArray[Any]:
    """Return the masks of all branches side by side.

    Args:
        masks: A tuple or list of them, nested where the space has several axes (as Gymnasium's
            `sample` takes them), or an array of all.

    Example:
        >>> joined_masks((np.array([1, 0]), np.array([0, 1, 1])))
        array([1, 0, 0, 1, 1])
    """
    if isinstance(masks, (tuple, list)) and isinstance(masks[0], (tuple, list, np.ndarray)):
        return np.concatenate([joined_masks(mask) for mask in masks], axis=-1)
    return np.asarray(masks)
