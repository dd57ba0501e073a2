"""Filmed episodes: what an agent expects and does, frame by frame."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lrl.actors.exploration import best_values, greedy_actions, in_branches
from lrl.envs import RenderedEnv
from lrl.evaluation.episodes import choose_actions
from lrl.networks.heads import ReturnDistribution
from lrl.networks.q_network import QNetwork
from lrl.processes.interrupt import interrupt
from lrl.types import Observation, map_leaves

CUT_OFF = "cut off"
"""Ending of an episode that is stopped where it is."""
TRUNCATED = "truncated"
"""Ending of an episode at its environment's own limit."""


@dataclass(frozen=True)
class ActionValues:
    """What a network says of one observation; scalar heads know no returns."""

    q: npt.NDArray[np.float32]  # [actions]
    returns: npt.NDArray[np.float32] | None = None  # possible returns, [actions, n]
    probabilities: npt.NDArray[np.float32] | None = None  # how likely they are, [actions, n]


@dataclass(frozen=True)
class FilmFrame:
    """One environment step of an episode, before its reward is known; the last one is its end."""

    picture: npt.NDArray[np.uint8]  # [height, width, 3]
    values: ActionValues  # what the agent expects; at the end, what it expected before
    taken: list[int]  # what it does, a choice in each branch; at the end, what it did last
    best: float  # the highest value of an allowed action; the mean over branches of theirs
    at_random: bool  # the action is not the best one, because of epsilon
    allowed: npt.NDArray[np.bool_] | None  # actions that may be taken, [actions]; None for all
    seed: int
    step: int  # environment steps before
    reward: float  # of the step before, raw
    total: float  # sum of the rewards before: at the end, the return
    ending: str = ""  # why the episode is over; empty while it goes on


class FilmedPolicy:
    """A copy of a network that says what it expects; it acts without noise, as in evaluation."""

    def __init__(self, network: QNetwork, device: torch.device | str = "cpu") -> None:
        self.network = copy.deepcopy(network).eval()
        self.device = torch.device(device)
        self.begin()

    def begin(self) -> None:
        """Forget what was seen: an episode begins."""
        columns = self.network.memory.items()
        self._memory: Any = {name: self._tensor(column.filled(1)) for name, column in columns}

    @torch.inference_mode()
    def __call__(self, observation: Observation) -> ActionValues:
        """Return the values of the actions in the next observation, `[1, *observation_shape]`."""
        tensors = map_leaves(self._tensor, observation)
        features, self._memory = self.network.features(tensors, self._memory)
        q = _array(self.network.head.q_values(features))
        believed: ReturnDistribution | None = self.network.head.distribution(features)
        return ActionValues(q) if believed is None else ActionValues(q, *map(_array, believed))

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def film_episode(
    rendered: RenderedEnv,
    policy: FilmedPolicy,
    seed: int,
    *,
    epsilon: float,
    max_steps: int,
    check: Callable[[], object] = interrupt.check,
) -> Iterator[FilmFrame]:
    """Play the episode that `run_episodes` plays for this seed and epsilon, and yield its frames.

    An episode of n environment steps has n frames and one more for its end.

    Args:
        rendered: Environment.
        policy: Agent.
        seed: Seed of the episode, and of the random actions in it.
        epsilon: Probability of a random action.
        max_steps: Environment steps after which the episode is cut off.
        check: Called before every step; may raise to stop early.
    """
    rng = np.random.default_rng([seed, 1])  # as in `run_episodes`
    observation = rendered.reset(seed)
    policy.begin()
    total, reward, spec = 0.0, 0.0, rendered.envs.spec.action
    for count in range(max_steps):
        check()
        values, mask = policy(observation), rendered.envs.action_mask
        q = values.q[np.newaxis]
        actions = choose_actions(q, epsilon, [rng], mask, spec)
        greedy = in_branches(greedy_actions, q, mask, spec)
        frame = FilmFrame(
            picture=rendered.picture(),
            values=values,
            taken=spec.indices(actions)[0].tolist(),
            best=float(best_values(q, mask, spec)[0]),
            at_random=bool((actions != greedy).any()),
            allowed=None if mask is None else mask[0],
            seed=seed,
            step=count,
            reward=reward,
            total=total,
        )
        yield frame
        answer = rendered.step(actions)
        reward = float(answer.reward[0])
        total += reward
        observation = answer.observation
        ending = _ending(answer.terminated[0], answer.truncated[0], count + 1 == max_steps)
        if ending:
            yield replace(
                frame, picture=rendered.picture(), step=count + 1, reward=reward, total=total,
                ending=ending,
            )  # fmt: skip
            return


def _ending(terminated: np.bool_, truncated: np.bool_, at_limit: bool) -> str:
    if terminated:
        return "terminated"
    if truncated:
        return TRUNCATED
    return CUT_OFF if at_limit else ""


def _array(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return tensor[0].float().cpu().numpy()
