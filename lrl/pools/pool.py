"""Actor pools: where rows come from. The mode of a run is the class of its pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lrl.actors.actor import gap_frames, rows_without_action
from lrl.actors.handle import ActorStatistics
from lrl.envs import EnvConfig
from lrl.networks import QNetwork
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
            that there is no ratio of learning to acting: learning begins with the last one. Of
            several streams each brings as many rows: in a replay they have equal room.
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
