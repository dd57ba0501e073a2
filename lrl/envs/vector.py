"""What an actor steps: several environments at once, with one fixed autoreset rule.

An environment that has just ended ignores its next action and answers with the first observation
of the next episode and reward 0 (Gymnasium calls this NEXT_STEP). That ignored step is the
boundary row of a stream (docs/architecture.md, "Streams").
"""

from __future__ import annotations

import logging
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from lrl.types import ConfigError, EnvSpec, Observation, leaves_of

_LARGEST_REWARD = float(np.finfo(np.float32).max)


class EnvStep(NamedTuple):
    """What the environments answered to one action each; all arrays are `[num_envs]`."""

    observation: Observation
    """`[num_envs, *observation_shape]`, one array or one for each leaf; no later step overwrites
    it."""
    reward: npt.NDArray[np.float64]
    """Raw, never clipped."""
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    life_lost: npt.NDArray[np.bool_]
    """The training target ends here although the episode goes on (a lost life in Atari)."""


class StreamEnvs(ABC):
    """Several environments in one process, stepped together and checked.

    Created by `make_envs`, stepped by an actor or an evaluation. The checks around the abstract
    methods make sure that no action outside the space, and none that is forbidden, reaches a
    backend and that nothing but finite numbers of the declared shape comes back.

    Args:
        spec: Shape and type of observations, the actions, whether there are masks.
        num_envs: Number of environments.
        bounds: Warn of observations outside of their spaces, by the names of leaves.

    Attributes:
        action_mask: The actions allowed in the current observations, `[num_envs, num_actions]`, at
            least one in each branch; never overwritten by a later step. None without
            `spec.action.masks`.
        offers_masks: Whether the last reset brought masks, used or not.
        retired: Environments whose answers nobody needs until the next reset, `[num_envs]`, set by
            the caller; single environments are then not stepped and answer with zeros.
    """

    def __init__(
        self, spec: EnvSpec, num_envs: int, bounds: Mapping[str, Bounds] | None = None
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}, but must be at least 1.")
        self.spec = spec
        self.num_envs = num_envs
        self.action_mask: npt.NDArray[np.bool_] | None = None
        self.offers_masks = False
        self.retired = np.zeros(num_envs, np.bool_)
        self._bounds = dict(bounds or {})
        columns = spec.observation.items()
        self._categories = {name: column for name, column in columns if column.categories}
        self._declared = {
            name: ((num_envs, *column.stacked_shape), column.type)
            for name, column in spec.observation.items()
        }
        self._ended: npt.NDArray[np.bool_] | None = None  # None before the first reset
        self._closed = False

    @abstractmethod
    def _reset_envs(self, seeds: Sequence[int]) -> Observation:
        """Start a new episode everywhere and return the observations, as arrays of their own.

        Where the specification says that there are masks, this and `_step_envs` set `action_mask`,
        to an array of its own too.
        """

    @abstractmethod
    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        """Step with valid actions, numbered from 0; environments that have ended reset instead."""

    def _close_envs(self) -> None:  # noqa: B027 (optional)
        """Release what the environments hold; called once."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start a new episode in every environment, from one seed (0 or more) for each."""
        self._check_open()
        seeds = [int(seed) for seed in seeds]
        if len(seeds) != self.num_envs or min(seeds) < 0:
            raise ValueError(
                f"reset needs {self.num_envs} seeds of 0 or more, one per environment, not {seeds}."
            )
        observation = self._reset_envs(seeds)
        self.retired = np.zeros(self.num_envs, np.bool_)
        self._check_observation(observation)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._check_mask(self._ended)
        return observation

    def step(self, actions: npt.ArrayLike) -> EnvStep:
        """Step every environment once.

        Where the previous step ended the episode, the action is ignored and the answer is the
        first observation of the next episode with reward 0 and no flag.

        Args:
            actions: Choices `[num_envs]`, or `[num_envs, branches]`, numbered from 0.

        Raises:
            ValueError: An action is not in the space or not allowed, or an environment answered
                with something that is not finite or not of the declared shape.
        """
        self._check_open()
        if self._ended is None:
            raise RuntimeError("step was called before the first reset.")
        step = self._step_envs(self._checked_actions(actions), self._ended)
        self._check_observation(step.observation)
        self._check_answer(step)
        self._ended = step.terminated | step.truncated
        self._check_mask(self._ended)
        return step

    def close(self) -> None:
        """Release the environments; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close_envs()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("These environments are closed.")

    def _checked_actions(self, actions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        actions = np.asarray(actions)
        spec, expected = self.spec.action, (self.num_envs, *self.spec.action.column.shape)
        if actions.dtype.kind not in "iu" or actions.shape != expected:
            raise ValueError(
                f"actions must be integers of shape {expected}, not {actions.dtype} of "
                f"shape {actions.shape}."
            )
        outside = spec.outside(actions)
        if outside.any():
            index = int(outside.argmax())
            ends = ", ".join(f"0 ... {size - 1}" for size in spec.branches)
            raise ValueError(
                f"Environment {index}: action {actions[index]} is not in the action space, {ends}."
            )
        if self.action_mask is not None:
            taken = self.action_mask[np.arange(self.num_envs)[:, None], spec.indices(actions)]
            allowed = taken.all(axis=1)
            if not allowed.all():
                index = int(allowed.argmin())
                raise ValueError(
                    f"Environment {index}: action {actions[index]} is not allowed now."
                )
        return actions.astype(np.int64)

    def _check_observation(self, observation: Observation) -> None:
        leaves = checked_leaves(observation, self._declared, "The environments")
        for name, (shape, dtype) in self._declared.items():
            leaf = leaves[name]
            if leaf.shape != shape or leaf.dtype != dtype:
                raise ValueError(
                    f"Observations{quoted(name)} were declared {dtype} {shape}, but came as "
                    f"{leaf.dtype} {leaf.shape}."
                )
            if dtype.kind == "f" and not np.isfinite(leaf).all():
                finite = np.isfinite(leaf).reshape(self.num_envs, -1).all(axis=1)
                index = int(finite.argmin())
                raise ValueError(
                    f"Environment {index}: the observation{quoted(name)} is not finite: "
                    f"{leaf[index]}."
                )
            if name in self._categories and not self._categories[name].holds(leaf):
                raise ValueError(f"Observations{quoted(name)} hold a category that does not exist.")
            if name in self._bounds and not self._bounds[name].check(leaf, self.retired):
                del self._bounds[name]

    def _check_mask(self, ended: npt.NDArray[np.bool_]) -> None:
        if self.action_mask is None:
            return
        masks = self.spec.action.split(self.action_mask)
        for branch, mask in enumerate(masks):
            forbids_all = ~mask.any(axis=1)
            if forbids_all.any():
                stuck = forbids_all & ~ended
                if stuck.any():
                    where = f" in branch {branch}" if len(masks) > 1 else ""
                    raise ValueError(
                        f"Environment {int(stuck.argmax())}: info['action_mask'] allows no action"
                        f"{where}, but the episode goes on."
                    )
                mask[forbids_all] = True  # no action is chosen in a final observation

    def _check_answer(self, step: EnvStep) -> None:
        shapes = (step.reward.shape, step.terminated.shape, step.truncated.shape)
        if shapes != ((self.num_envs,),) * 3:
            raise ValueError(
                f"reward, terminated and truncated have the shapes {shapes}, but must have "
                f"({self.num_envs},): one value per environment."
            )
        if not np.abs(step.reward).max() <= _LARGEST_REWARD:  # NaN is not
            index = int((np.abs(step.reward) <= _LARGEST_REWARD).argmin())
            raise ValueError(
                f"Environment {index}: the reward is {step.reward[index]}, but must be finite, "
                "also as float32."
            )
        ended = self._ended
        if ended is not None and ended.any():
            flagged = ended & (step.terminated | step.truncated)
            if flagged.any():
                raise ValueError(
                    f"Environment {int(flagged.argmax())} ended in the very step that had to reset "
                    "it: its autoreset mode is not NEXT_STEP."
                )
            step.reward[ended] = 0.0
            step.life_lost[ended] = False


def checked_leaves(
    observation: Observation, declared: Collection[str], whose: str
) -> dict[str, Any]:
    """Return the leaves of an observation by name; refuse others than those that are declared."""
    leaves = leaves_of(observation)
    if leaves.keys() != set(declared):
        kinds = [
            "one array" if "" in names else f"a dict of {sorted(names)}"
            for names in (declared, leaves)
        ]
        raise ValueError(
            f"{whose}: the observation was declared {kinds[0]}, but came as {kinds[1]}."
        )
    return leaves


def quoted(leaf: str) -> str:
    """Return the name of a leaf as a sentence has it after "the observation"."""
    return f" {leaf!r}" if leaf else ""


_log = logging.getLogger(__name__)

_ANSWERS_LOOKED_AT = 100
_TOLERANCE = 1e-3  # of the span: float32 rounds, and some environments clip a step late


class Bounds:
    """Looks whether observations lie in their space, and says so once if one does not.

    No more than a warning: networks take the values as they are, the spaces of well-known
    environments (LunarLander's, for one) are too small, and yet it is a sign of frames that nobody
    scaled. It looks at a vector's first 100 answers, since at each of them it would cost a tenth of
    CartPole's step.

    Args:
        space: Declared by the environment, of one frame.
        name: Name of the leaf, for the warning.
    """

    def __init__(self, space: Box, name: str = "") -> None:
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # bounds are infinite, or nearly
            span = high - low
            slack = _TOLERANCE * np.where(np.isfinite(span), span, 1.0)
            self._low = (low - slack).astype(np.float32)
            self._high = (high + slack).astype(np.float32)
        self._space, self._name = space, name
        self._looks_left = _ANSWERS_LOOKED_AT if _can_lie_outside(space) else 0

    def check(self, observation: npt.NDArray[np.generic], retired: npt.NDArray[np.bool_]) -> bool:
        """Look at observations `[num_envs, ...]`; return whether to look at the next ones too.

        Not at those of environments `[num_envs]` that are retired: they answer with zeros.
        """
        if not self._looks_left:
            return False
        self._looks_left -= 1
        values: Any = observation
        outside = (values < self._low) | (values > self._high)
        outside[retired] = False
        if not outside.any():
            return True
        index, *place = np.argwhere(outside)[0].tolist()
        within = tuple(place[len(place) - self._low.ndim :])  # a stack's axis is not the space's
        low, high = (float(bound[within]) for bound in (self._space.low, self._space.high))
        process = multiprocessing.current_process().name
        _log.warning(
            "%sEnvironment %d: the observation%s holds %g at %s, outside of its space [%g, %g]; it "
            "is taken as it is (said once)",
            "" if process == "MainProcess" else f"{process}: ",
            index, quoted(self._name), values[(index, *place)], place, low, high,
        )  # fmt: skip
        return False


def _can_lie_outside(space: Box) -> bool:
    """Return whether the type holds values that the space does not."""
    if space.dtype.kind in "iu":
        limits = np.iinfo(space.dtype.name)
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return space.dtype != np.bool_ and bool(np.isfinite([space.low, space.high]).any())
