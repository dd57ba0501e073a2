"""Episodes in front of the camera: what an agent thinks and does, moment by moment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from lrl.actors.exploration import greedy_actions
from lrl.evaluation.episodes import choose_actions
from lrl.networks.heads import ReturnDistribution
from lrl.networks.q_network import QNetwork
from lrl.processes.interrupt import interrupt
from lrl.video.stage import Stage

CUT_OFF = "cut off"
"""Ending of an episode that is stopped where it is."""
TRUNCATED = "truncated"
"""Ending of an episode at its environment's own limit."""


@dataclass(frozen=True)
class Thought:
    """What a network says of one observation.

    Attributes:
        q: Expected return of each action, `[actions]`.
        returns: Possible returns of each action, `[actions, n]`; None for scalar heads.
        probabilities: How likely they are, `[actions, n]`; None for scalar heads.
    """

    q: npt.NDArray[np.float32]
    returns: npt.NDArray[np.float32] | None = None
    probabilities: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Moment:
    """One environment step of an episode, before its reward is known; the last one is its end.

    Attributes:
        picture: What there is to see, `[height, width, 3]`.
        thought: What the agent expects; at the end, what it expected before.
        action: What it does; at the end, what it did last.
        at_random: The action is not the best one, because of epsilon.
        allowed: Actions that may be taken, `[actions]`; None for all.
        seed: Seed of the episode.
        step: Environment steps before.
        reward: Of the step before, raw.
        total: Sum of the rewards before: at the end, the return.
        ending: Why the episode is over; empty while it goes on.
    """

    picture: npt.NDArray[np.uint8]
    thought: Thought
    action: int
    at_random: bool
    allowed: npt.NDArray[np.bool_] | None
    seed: int
    step: int
    reward: float
    total: float
    ending: str = ""


class Thinker:
    """A copy of a network that says what it expects; it acts without noise, as in evaluation.

    Args:
        network: The network; what happens to it later does not matter.
        device: Where it is.
    """

    def __init__(self, network: QNetwork, device: torch.device | str = "cpu") -> None:
        self.network = copy.deepcopy(network).eval()
        self.device = torch.device(device)

    @torch.inference_mode()
    def __call__(self, observation: npt.NDArray[np.generic]) -> Thought:
        """Think about one observation, `[1, *observation_shape]`."""
        features = self.network.encoder(torch.from_numpy(observation).to(self.device))
        q = _array(self.network.head.q_values(features))
        believed: ReturnDistribution | None = self.network.head.distribution(features)
        return Thought(q) if believed is None else Thought(q, *map(_array, believed))


def film_episode(
    stage: Stage,
    thinker: Thinker,
    seed: int,
    *,
    epsilon: float,
    max_steps: int,
    check: Callable[[], object] = interrupt.check,
) -> Iterator[Moment]:
    """Play the episode that `run_episodes` plays for this seed and epsilon, and yield its moments.

    An episode of n environment steps has n moments and one more for its end.

    Args:
        stage: Environment.
        thinker: Agent.
        seed: Seed of the episode, and of the random actions in it.
        epsilon: Probability of a random action.
        max_steps: Environment steps after which the episode is cut off.
        check: Called before every step; may raise to stop early.
    """
    rng = np.random.default_rng([seed, 1])  # as in `run_episodes`
    observation = stage.reset(seed)
    total = reward = 0.0
    for count in range(max_steps):
        check()
        thought, mask = thinker(observation), stage.envs.action_mask
        q = thought.q[np.newaxis]
        actions = choose_actions(q, epsilon, [rng], mask)
        moment = Moment(
            picture=stage.picture(),
            thought=thought,
            action=int(actions[0]),
            at_random=bool(actions[0] != greedy_actions(q, mask)[0]),
            allowed=None if mask is None else mask[0],
            seed=seed,
            step=count,
            reward=reward,
            total=total,
        )
        yield moment
        answer = stage.step(actions)
        reward = float(answer.reward[0])
        total += reward
        observation = answer.observation
        ending = _ending(answer.terminated[0], answer.truncated[0], count + 1 == max_steps)
        if ending:
            yield replace(
                moment, picture=stage.picture(), step=count + 1, reward=reward, total=total,
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
