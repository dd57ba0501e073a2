"""Actor pools: where rows come from. The mode of a run is the class of its pool."""

from __future__ import annotations

import contextlib
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lrl.actors.actor import Actor, gap_frames, rows_without_action
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.handle import ActorStatistics
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory, NetworkPolicy, publish_weights
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, StreamEnvs
from lrl.inference.config import InferenceConfig
from lrl.inference.manager import InferenceManager
from lrl.networks import NetworkRecipe, QNetwork
from lrl.networks.q_network import vector_size
from lrl.transport import Chunk, ChunkQueue, WeightStore
from lrl.types import EnvSpec, RowKind, Rows


class Episode(NamedTuple):
    """A finished episode: its raw return, its environment steps, and what its start promised."""

    episode_return: float
    length: int
    start_value: float
    """The highest value of an allowed action at the first observation; NaN if nobody asked."""


class Delivery(NamedTuple):
    """What came together: rows in their order, and the episodes that ended in them."""

    rows: Sequence[Rows]
    episodes: Sequence[Episode] = ()


@dataclass(frozen=True)
class PoolCounts:
    """What a pool did so far.

    Attributes:
        actors: What each actor did.
        restarts: Actors that were started again.
        rows_dropped: Rows that arrived damaged and were refused.
        queue_fill: Share of the room between actors and learner that is taken.
    """

    actors: Sequence[ActorStatistics] = field(default_factory=list)
    restarts: int = 0
    rows_dropped: int = 0
    queue_fill: float = 0.0


class ActorPool(ABC):
    """Makes rows, with the newest weights it was given; knows nothing of what is learnt from them.

    Owned by the dataset, which starts it at the first batch and closes it. Subclass it to take
    rows from anywhere else: `start`, `poll` and `close` are enough (examples/own_pool.py).

    Attributes:
        num_streams: Environments of this rank, each a stream of rows; rows name theirs by number.
        is_finite: Whether it brings a number of rows that is known beforehand and then no more, so
            that there is no ratio of learning to acting: learning begins with the last one.
    """

    num_streams: int = 0
    is_finite: bool = False

    def prepare(self, env: EnvConfig, spec: EnvSpec) -> tuple[int, int]:
        """Look at what will come, before anything starts.

        Args:
            env: The environment that the agent is evaluated in and rewards are clipped for.
            spec: What rows of it look like.

        Returns:
            The rows and the environment steps in all that a finite pool brings.

        Raises:
            ConfigError: They are not of this environment.
        """
        return 0, 0

    @abstractmethod
    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Begin to make rows.

        Args:
            network: The online network, with the weights to begin with.
            run_env_steps: Environment steps of all ranks in earlier sessions of the run.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Yield what has arrived; what is not asked for now is there the next time.

        Rows may be views of memory that is used again: each delivery is copied or forgotten before
        the next one is asked for.

        Args:
            timeout: Seconds to wait if nothing is there; 0 does not wait, nor make any rows itself.
        """

    @abstractmethod
    def close(self, take: Callable[[Delivery], object]) -> None:
        """Stop what makes rows; idempotent and bounded.

        Args:
            take: Is given the last rows.
        """

    def publish(self, network: QNetwork, version: int) -> None:  # noqa: B027 (nothing to do for most)
        """Act with these weights from now on; a pool that shares the network has nothing to do."""

    @property
    def takes_weights(self) -> bool:
        """Whether it has to be sent weights: whether it has a `publish` of its own."""
        return type(self).publish is not ActorPool.publish

    def check(self) -> None:  # noqa: B027 (nothing to do for most)
        """Look at the health of what makes rows; called at least twice a second while waiting.

        Raises:
            RuntimeError: It has failed for good.
        """

    def counts(self) -> PoolCounts:
        """Return what was done so far."""
        return PoolCounts()

    def metrics(self) -> dict[str, float]:
        """Return further metrics, since the last call."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a later session goes on from, as nested plain types and numpy arrays."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (nothing to do for most)
        """Go on from an earlier session's state; called once, after `start`."""


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


class ProcessPool(ActorPool):
    """Actors in processes of this machine, with their own networks or central inference.

    Args:
        config: Number of actors, and what to do when one fails.
        env: The environment that each builds for itself.
        spec: What it looks like.
        exploration: How actors explore.
        slot: The first actor's place in the run.
        recipe: Builds the network in other processes.
        inference: The servers that compute all action values, if there are any.
        version: Learner steps so far: the version of the first weights.
    """

    def __init__(
        self,
        config: ActorConfig,
        env: EnvConfig,
        spec: EnvSpec,
        exploration: Exploration,
        slot: ActorSlot,
        recipe: NetworkRecipe,
        inference: InferenceConfig | None = None,
        version: int = 0,
    ) -> None:
        self.config = config
        self.num_streams = config.num_actors * config.envs_per_actor
        self.env = env
        self.spec = spec
        self.exploration = exploration
        self.slot = slot
        self.recipe = recipe
        self.inference: InferenceManager | None = None
        self.queue = ChunkQueue()
        self._inference_config = inference
        self._version = version
        self._closed = False

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Start the processes; they hold these weights before their first step."""
        self.store = WeightStore(vector_size(network))
        self.publish(network, self._version)
        with contextlib.ExitStack() as undo:
            if self._inference_config is not None:
                self.inference = InferenceManager(
                    self._inference_config, self.config, self.recipe, self.store, self.slot
                )
                undo.callback(self.inference.close)
            local = LocalPolicyFactory(self.recipe, self.store)
            self.manager = ActorManager(
                self.config,
                self.env,
                self.spec,
                self.exploration,
                self.inference.policy_of if self.inference else lambda actor: local,
                self.queue,
                self.slot,
                env_steps_offset=run_env_steps,
                groups=self._inference_config.groups_per_actor if self._inference_config else 1,
            )
            undo.callback(self.close, lambda delivery: None)
            if self.inference is not None:
                self.inference.start()
            self.manager.start()
            undo.pop_all()

    def publish(self, network: QNetwork, version: int) -> None:
        """Copy the weights to where actors and servers take the newest from."""
        publish_weights(network, self.store, version)

    def check(self) -> None:
        """Raise what ended actors or servers.

        Raises:
            ActorError: The actors failed for good.
            InferenceError: The inference servers did.
        """
        if self.inference is not None:
            self.inference.check()
        self.manager.check()

    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Yield the chunks that wait now; those that arrive meanwhile are for the next time."""
        waiting = self.queue.qsize()
        for _ in range(waiting if timeout == 0 else max(1, waiting)):
            try:
                chunk = self.queue.get(timeout)
            except queue.Empty:
                return
            timeout = 0.0
            try:
                yield self._delivery(chunk)
            finally:
                self.queue.release(chunk)

    def close(self, take: Callable[[Delivery], object]) -> None:
        """Stop the actors, taking their last rows."""
        if not self._closed:
            self._closed = True
            self.manager.stop(drain=lambda: self._drain(take))
            self.queue.close()
            if self.inference is not None:
                self.inference.close()

    def counts(self) -> PoolCounts:
        """Return what the actors did."""
        statistics, restarts = self.manager.statistics(), self.manager.restarts
        return PoolCounts(statistics, restarts, self.queue.rows_dropped, self.queue.fill)

    def metrics(self) -> dict[str, float]:
        """Return what the inference servers did."""
        return self.inference.metrics() if self.inference else {}

    def _drain(self, take: Callable[[Delivery], object]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                chunk = self.queue.get(0.0)
                take(self._delivery(chunk))
                self.queue.release(chunk)

    def _delivery(self, chunk: Chunk) -> Delivery:
        rows = [chunk.rows]
        if chunk.after_gap:
            rows.insert(0, gap_of(self.spec, chunk.actor, self.config.envs_per_actor))
        columns = (chunk.episode_return, chunk.episode_length, chunk.episode_start_value)
        figures = zip(*(column.tolist() for column in columns), strict=True)
        return Delivery(rows, [Episode(*episode) for episode in figures])


def gap_of(spec: EnvSpec, actor: int, envs: int) -> Rows:
    """Return rows that say of an actor's environments that rows before the next are missing.

    Args:
        spec: The environment.
        actor: Index of the actor on its rank.
        envs: Environments of each actor.
    """
    streams = np.arange(envs, dtype=np.int32) + actor * envs
    frames = gap_frames(spec, envs)
    return rows_without_action(RowKind.GAP, streams, frames, spec.action.column)
