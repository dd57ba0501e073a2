"""The actor of the learner's own process: synchronous mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from lrl.actors.actor import Actor
from lrl.actors.exploration import Exploration
from lrl.actors.handle import ActorStatistics
from lrl.actors.policy import NetworkPolicy
from lrl.actors.slot import ActorSlot
from lrl.envs import StreamEnvs
from lrl.networks import QNetwork
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts
from lrl.types import Rows


class LocalPool(ActorPool):
    """One actor in the learner's own process: acting and learning take turns (synchronous mode).

    Args:
        envs: Its environments.
        exploration: How it explores.
        slot: Its place in the run.
        learner_steps: Returns the learner steps so far: the version of the network it acts with.
        reward_clip: See `Actor`.
    """

    def __init__(
        self,
        envs: StreamEnvs,
        exploration: Exploration,
        slot: ActorSlot,
        learner_steps: Callable[[], int],
        reward_clip: float | None = None,
    ) -> None:
        self.envs = envs
        self.num_streams = envs.num_envs
        self.exploration = exploration
        self.slot = slot
        self.learner_steps = learner_steps
        self.reward_clip = reward_clip
        self._rows: list[Rows] = []
        self._episodes: list[Episode] = []
        self._count = 0
        self._started = time.monotonic()
        self._ended: float | None = None

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Build the actor around the online network itself."""
        self._policy = NetworkPolicy(network, next(network.parameters()).device)
        self.actor = Actor(
            self.envs,
            self._policy,
            self.exploration,
            self,
            self.slot,
            reward_clip=self.reward_clip,
            env_steps_offset=run_env_steps,
        )

    def put(self, rows: Rows) -> None:
        """Keep rows until the step is over (the actor's side of a sink)."""
        self._rows.append(rows)

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Keep an episode's figures likewise."""
        self._count += 1
        self._episodes.append(Episode(episode_return, length, start_value))

    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Step every environment once, unless rows are only asked for if they are there."""
        if timeout > 0:
            self._policy.version = self.learner_steps()
            self.actor.step()
        if self._rows:
            delivery = Delivery(self._rows, self._episodes)
            self._rows, self._episodes = [], []
            yield delivery

    def close(self, take: Callable[[Delivery], object]) -> None:
        """Close the environments."""
        self._ended = self._ended or time.monotonic()
        self.envs.close()

    def counts(self) -> PoolCounts:
        """Return what the one actor did."""
        env_steps = self.actor.env_steps
        frames = env_steps * self.envs.spec.frame_skip
        seconds = (self._ended or time.monotonic()) - self._started
        return PoolCounts([ActorStatistics(0, env_steps, frames, self._count, seconds, 0.0, 0)])

    def state_dict(self) -> dict[str, Any]:
        """Return the actor's state, with that of its environments."""
        return self.actor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within the episodes, where their environments can be brought to where they were."""
        self.actor.load_state_dict(state)
