"""Where rows come from: actors in this process, or actors in the background."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lrl.actors.actor import Actor, rows_without_action
from lrl.actors.handle import ActorStatistics
from lrl.actors.manager import ActorManager
from lrl.inference.manager import InferenceManager
from lrl.replay import RateLimiter, ReplayBuffer
from lrl.types import RowKind, Rows


@dataclass
class Rollout:
    """What training episodes returned (raw rewards), and how old the policies were."""

    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=100))
    start_values: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    policy_lag_sum: float = 0.0
    policy_lag_rows: int = 0

    def add_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Count a finished episode; `start_value` is what the policy hoped for at its start."""
        self.episodes += 1
        self.returns.append(episode_return)
        self.lengths.append(length)
        self.start_values.append(start_value)

    def add_lag(self, rows: Rows, learner_steps: int) -> None:
        """Count how many learner steps behind the rows' policies were."""
        steps = rows.kind == RowKind.STEP
        self.policy_lag_rows += int(steps.sum())
        self.policy_lag_sum += float((learner_steps - rows.policy_version[steps]).sum())

    def take_lag_mean(self) -> float:
        """Return the mean lag in learner steps since the last call (0 without rows)."""
        mean = self.policy_lag_sum / max(self.policy_lag_rows, 1)
        self.policy_lag_sum, self.policy_lag_rows = 0.0, 0
        return mean


class Source(ABC):
    """Brings rows into the replay buffer; owned and closed by the dataset.

    Args:
        replay: Receives the rows.
        limiter: Told of every environment step, and asked whether more may come.
    """

    rows_received = 0
    rows_dropped = 0
    actor_restarts = 0
    queue_fill = 0.0

    def __init__(self, replay: ReplayBuffer, limiter: RateLimiter) -> None:
        self.replay = replay
        self.limiter = limiter
        self.rollout = Rollout()
        self._closed = False

    @abstractmethod
    def take_waiting(self) -> None:
        """Append what has arrived, as far as the rate limiter lets it; never blocks."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Bring some more rows, waiting at most `timeout` seconds for them."""

    @abstractmethod
    def close(self) -> None:
        """Stop whatever makes rows; idempotent and bounded."""

    @abstractmethod
    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did."""

    def metrics(self) -> dict[str, float]:
        """Return further metrics of what makes rows, since the last call."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a later session goes on from, as nested plain types and numpy arrays."""
        rollout = self.rollout
        return {
            "returns": list(rollout.returns),
            "lengths": list(rollout.lengths),
            "start_values": list(rollout.start_values),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from an earlier session's state; called once, before any row is asked for."""
        self.rollout.returns.extend(state["returns"])
        self.rollout.lengths.extend(state["lengths"])
        self.rollout.start_values.extend(state["start_values"])

    def put(self, rows: Rows) -> None:
        """Append rows and tell the limiter."""
        before = self.replay.env_steps_inserted
        self.replay.append(rows)
        self.rows_received += len(rows)
        if not self._closed:  # the last rows of a run, which nothing is learnt from
            self.limiter.record_insert(self.replay.env_steps_inserted - before)

    def _may_insert(self) -> bool:
        # A limiter that is satisfied with too few rows for one complete window must not starve it.
        return self.limiter.can_insert() or not self.replay.can_sample()


class SynchronousSource(Source):
    """One actor in the learner's own process: `wait` steps its environments once.

    Args:
        replay: Receives the rows.
        limiter: Told of every environment step, and asked whether more may come.
        make_actor: Builds the actor, with this source as its sink.
    """

    def __init__(
        self,
        replay: ReplayBuffer,
        limiter: RateLimiter,
        make_actor: Callable[[SynchronousSource], Actor],
    ) -> None:
        super().__init__(replay, limiter)
        self.actor = make_actor(self)
        self._started = time.monotonic()
        self._ended: float | None = None

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Count an episode (the actor's side of a sink)."""
        self.rollout.add_episode(episode_return, length, start_value)

    def take_waiting(self) -> None:
        """Do nothing: rows are made on demand."""

    def wait(self, timeout: float) -> None:
        """Step every environment once."""
        self.actor.step()

    def close(self) -> None:
        """Close the environments."""
        self._ended = self._ended or time.monotonic()
        self.actor.envs.close()

    def statistics(self) -> list[ActorStatistics]:
        """Return the one actor's statistics."""
        env_steps = self.actor.env_steps
        frames = env_steps * self.actor.envs.spec.frame_skip
        seconds = (self._ended or time.monotonic()) - self._started
        return [ActorStatistics(0, env_steps, frames, self.rollout.episodes, seconds, 0.0, 0)]

    def state_dict(self) -> dict[str, Any]:
        """Return the actor's state too, with that of its environments."""
        return {**super().state_dict(), "actor": self.actor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within the episodes, where their environments can be brought to where they were."""
        super().load_state_dict(state)
        self.actor.load_state_dict(state.get("actor", {}))


class AsynchronousSource(Source):
    """Actors in the background: `wait` blocks for the next chunk of any of them.

    Args:
        replay: Receives the rows.
        limiter: Told of every environment step, and asked whether more may come.
        manager: The actors.
        learner_steps: Returns the learner steps made so far, in which policy lag is measured.
        inference: The servers that they ask, if they do.
    """

    def __init__(
        self,
        replay: ReplayBuffer,
        limiter: RateLimiter,
        manager: ActorManager,
        learner_steps: Callable[[], int],
        inference: InferenceManager | None = None,
    ) -> None:
        super().__init__(replay, limiter)
        self.manager = manager
        self.chunks = manager.queue
        self.learner_steps = learner_steps
        self.inference = inference

    def start(self) -> None:
        """Start the processes."""
        if self.inference is not None:
            self.inference.start()
        self.manager.start()

    @property
    def actor_restarts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of restarts so far."""
        return self.manager.restarts

    @property
    def rows_dropped(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows that were received but refused."""
        return self.chunks.rows_dropped

    @property
    def queue_fill(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Share of all chunks that wait for the learner."""
        return self.chunks.fill

    def take_waiting(self) -> None:
        """Append the chunks that wait now; those that arrive meanwhile are for the next time.

        Raises:
            ActorError: The actors failed for good.
            InferenceError: The inference servers did.
        """
        self._check()
        for _ in range(self.chunks.qsize()):
            if not self._may_insert() or not self._take(0.0):
                break

    def wait(self, timeout: float) -> None:
        """Append the next chunk, if one comes in time.

        Raises:
            ActorError: The actors failed for good.
            InferenceError: The inference servers did.
        """
        self._check()
        self._take(timeout)

    def close(self) -> None:
        """Stop the actors, taking their last rows."""
        if not self._closed:
            self._closed = True
            self.manager.stop(drain=self._drain)
            self.chunks.close()
            if self.inference is not None:
                self.inference.close()

    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did."""
        return self.manager.statistics()

    def metrics(self) -> dict[str, float]:
        """Return what the inference servers did."""
        return self.inference.metrics() if self.inference else {}

    def _check(self) -> None:
        if self.inference is not None:
            self.inference.check()
        self.manager.check()

    def _drain(self) -> None:
        while self._take(0.0):
            pass

    def _take(self, timeout: float) -> bool:
        try:
            chunk = self.chunks.get(timeout)
        except queue.Empty:
            return False
        if chunk.after_gap:  # a chunk before it failed verification: join nothing across the hole
            envs_per_actor = self.manager.config.envs_per_actor
            streams = np.arange(envs_per_actor, dtype=np.int32) + chunk.actor * envs_per_actor
            frames = np.zeros((len(streams), *chunk.rows.frame.shape[1:]), chunk.rows.frame.dtype)
            self.replay.append(rows_without_action(RowKind.GAP, streams, frames))
        self.put(chunk.rows)
        self.rollout.add_lag(chunk.rows, self.learner_steps())
        self.chunks.release(chunk)
        for episode in zip(
            chunk.episode_return, chunk.episode_length, chunk.episode_start_value, strict=True
        ):
            self.rollout.add_episode(*(number.item() for number in episode))
        return True


def mean(values: deque[float] | deque[int]) -> float:
    """Return the mean of recent values, NaN where there are none."""
    return float(np.mean(values)) if values else float("nan")
