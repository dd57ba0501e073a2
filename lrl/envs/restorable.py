"""Environments that a later process can bring to where they were."""

from __future__ import annotations

import contextlib
import logging
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.types import Observation, leaves_of, map_leaves

_log = logging.getLogger(__name__)

STEPS_PER_SEED = 1000
"""Steps after which the next episode begins with a new seed. ale-py takes 0.2 s for one, as long as
for some 500 steps of a game."""
_SEEDS_END = 2**31  # ale-py takes 31 bits


class RestorableEnvs(StreamEnvs):
    """Single environments that can be saved, whatever they are made of.

    An environment is never asked for its state, which many cannot tell. What is remembered is how
    it came about: the last seed and the actions since. Restoring plays them again and compares
    all answers, by a checksum. So that they stay few, an episode that begins after `STEPS_PER_SEED`
    steps gets a new seed, which makes the episodes other ones than without this class.

    Args:
        envs: The environments, each in a vector of its own.
        first_seed: New seeds are drawn from this number to 2**31 - 1.
    """

    def __init__(self, envs: Sequence[StreamEnvs], first_seed: int) -> None:
        super().__init__(envs[0].spec, len(envs), envs[0]._bounds)
        self._recorded = [_Recorded(env) for env in envs]
        self._first_seed = first_seed
        self._rng = np.random.default_rng(0)

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Which environments' episodes ended in the last step, `[num_envs]`."""
        return np.array([recorded.ended for recorded in self._recorded])

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, as nested plain types and arrays."""
        return {
            "generator": self._rng.bit_generator.state,
            "environments": [recorded.state_dict() for recorded in self._recorded],
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Observation, npt.NDArray[np.bool_]]:
        """Bring each environment to where it was, in place of the first reset.

        One whose answers do not follow from seed and actions alone begins an episode instead, with
        a new seed; the log says which.

        Returns:
            Observations as from `reset`, and which environments began an episode, `[num_envs]`.
        """
        self._check_open()
        self._rng.bit_generator.state = state["generator"]
        saved = zip(self._recorded, state["environments"], strict=True)
        restarted = np.array([not recorded.replay(actions) for recorded, actions in saved])
        for index in np.flatnonzero(restarted):
            self._recorded[index].reset(self._new_seed())
        if restarted.any():
            _log.warning(
                "environments %s did not answer as before to the same seed and actions, so they "
                "begin new episodes, and this run is not exactly the uninterrupted one. Such an "
                "environment reads the clock, or draws from a generator other than its np_random, "
                "which reset(seed=...) seeds.",
                np.flatnonzero(restarted).tolist(),
            )  # fmt: skip
        self._ended = self.ended
        self.action_mask = self._masks()
        self._check_mask(self._ended)
        return self._observations(), restarted

    def _reset_envs(self, seeds: Sequence[int]) -> Observation:
        self._rng = np.random.default_rng([*seeds, 1])  # environments draw from their seed alone
        for recorded, seed in zip(self._recorded, seeds, strict=True):
            recorded.reset(seed)
        self.action_mask = self._masks()
        return self._observations()

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        steps = [
            recorded.begin(self._new_seed())
            if ended[index] and recorded.steps >= STEPS_PER_SEED
            else recorded.step(actions[index : index + 1])
            for index, recorded in enumerate(self._recorded)
        ]
        self.action_mask = self._masks()
        return EnvStep(*(map_leaves(_joined, *parts) for parts in zip(*steps, strict=True)))

    def _close_envs(self) -> None:
        with contextlib.ExitStack() as closing:  # all of them, also if one fails
            for recorded in self._recorded:
                closing.callback(recorded.envs.close)

    def _new_seed(self) -> int:
        return int(self._rng.integers(self._first_seed, _SEEDS_END))

    def _observations(self) -> Observation:
        return map_leaves(_stacked, *(recorded.observation for recorded in self._recorded))

    def _masks(self) -> npt.NDArray[np.bool_] | None:
        masks: list[Any] = [recorded.envs.action_mask for recorded in self._recorded]
        return np.concatenate(masks) if self.spec.action.masks else None


class _Recorded:
    """One environment, with all that was done to it since it was last given a seed.

    Checks are the caller's, who knows which environment this is.
    """

    def __init__(self, envs: StreamEnvs) -> None:
        self.envs = envs
        self.seed = 0
        self.actions = array("i")
        self.observation: Observation = None
        self.checksum = 0
        self.reward = 0.0
        self.ended = False

    def reset(self, seed: int) -> None:
        self.seed, self.actions, self.reward, self.ended = seed, array("i"), 0.0, False
        self.observation = _only(self.envs._reset_envs([seed]))
        self.checksum = _checksum(self.observation)

    def begin(self, seed: int) -> EnvStep:
        self.reset(seed)
        nothing = np.zeros(1, np.bool_)
        return EnvStep(
            map_leaves(_stacked, self.observation), np.zeros(1), nothing, nothing, nothing
        )

    @property
    def steps(self) -> int:
        """Steps since the seed."""
        return len(self.actions) // len(self.envs.spec.action.branches)

    def step(self, action: npt.NDArray[np.int64]) -> EnvStep:
        """Take an action, `[1]` or `[1, branches]`."""
        step = self.envs._step_envs(action, np.array([self.ended]))
        self.actions.extend(action.reshape(-1).tolist())
        self.observation = _only(step.observation)
        self.checksum = _checksum(self.observation, self.checksum)
        self.reward += float(step.reward[0])
        self.ended = bool(step.terminated[0] or step.truncated[0])
        return step

    def state_dict(self) -> dict[str, Any]:
        names = ("seed", "observation", "checksum", "reward", "ended")
        own = {name: getattr(self, name) for name in names}
        shape = (self.steps, *self.envs.spec.action.column.shape)
        return {**own, "actions": np.array(self.actions, np.int32).reshape(shape)}

    def replay(self, state: dict[str, Any]) -> bool:
        """Do again what was done; return whether the outcome is the same."""
        actions = np.asarray(state["actions"], np.int64)
        try:
            if self.envs.spec.action.outside(actions).any():
                raise ValueError("an action is not in the action space")  # ale-py would hang
            self.reset(state["seed"])
            for index in range(len(actions)):
                self.step(actions[index : index + 1])
        except Exception:  # such as an action that is not allowed, where it was
            _log.warning("an environment failed while it was restored", exc_info=True)
            return False
        same = (self.reward, self.ended) == (state["reward"], state["ended"])
        same &= self.checksum == state["checksum"]
        own, saved = leaves_of(self.observation), leaves_of(state["observation"])
        same &= own.keys() == saved.keys()
        return same and all(np.array_equal(own[name], saved[name]) for name in own)


def _joined(*parts: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.concatenate(parts)


def _stacked(*leaves: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.stack(leaves)


def _only(observations: Observation) -> Observation:
    """Return the observation of the only environment, as arrays, numbers too."""
    return map_leaves(lambda leaf: leaf[0, ...], observations)


def _checksum(observation: Observation, before: int = 0) -> int:
    """Return a checksum of an observation and of what came before."""
    for _, leaf in sorted(leaves_of(observation).items()):
        before = zlib.crc32(leaf.tobytes(), before)
    return before
