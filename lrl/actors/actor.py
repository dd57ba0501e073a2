"""The actor: the one loop in which experience is made, whatever the mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lrl.actors.exploration import Exploration, Mask, Moment, best_values, in_branches
from lrl.actors.slot import ActorSlot
from lrl.envs import RestorableEnvs, StreamEnvs
from lrl.types import (
    Column,
    EnvSpec,
    Memory,
    Observation,
    RowKind,
    Rows,
    leaves_from,
    leaves_of,
    named,
)


class Decision(NamedTuple):
    """What a policy says of observations."""

    values: npt.NDArray[np.float32]
    """Action values `[environments, actions]`."""
    version: int
    """The policy version that gave them."""
    memory: Memory | None = None
    """What the policy remembers from now on; None where it remembers nothing."""


class BehaviourPolicy(Protocol):
    """What an actor asks for action values; it may sit in the process or behind a server."""

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return action values.

        Args:
            observation: `[environments, *observation_shape]`.
            memory: What an earlier decision remembers, or `begin` where an episode begins.
        """
        ...

    @property
    def memory(self) -> Mapping[str, Column]:
        """What it remembers from step to step, a column for each value; empty if nothing."""
        return {}

    def begin(self, num_envs: int) -> Memory | None:
        """Return what is remembered where an episode begins, one row for each environment."""
        return {name: column.filled(num_envs) for name, column in self.memory.items()} or None

    def prefetch(self, observation: Observation, memory: Memory | None = None) -> None:
        """Begin to compute what the next call, with the same arrays, will return; or do nothing."""


class FunctionPolicy(BehaviourPolicy):
    """Action values by a function; it remembers nothing, and its version is always 0.

    Args:
        values: From observations to action values `[environments, actions]`.
    """

    def __init__(self, values: Callable[[Observation], npt.NDArray[np.float32]]) -> None:
        self.values = values

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return what the function returns."""
        return Decision(self.values(observation), 0)


class Sink(Protocol):
    """Where an actor's rows go: what is learnt from, or a ring of chunks."""

    def put(self, rows: Rows) -> None:
        """Take rows, copying them. May block while the receiver has no room."""
        ...

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        """Take the figures of a finished episode.

        Args:
            episode_return: Its raw return.
            length: Its environment steps.
            start_value: The highest value of an allowed action at its first observation; the mean
                over branches of theirs.
        """
        ...


class Actor:
    """Step a vector of environments with a behaviour policy and hand every row to a sink.

    Created by the actor process, or by the learner in synchronous mode. It never asks which.

    Args:
        envs: Vector environment in NEXT_STEP mode: the step after an episode's end resets.
        policy: Behaviour policy.
        exploration: Chooses actions from the policy's values.
        sink: Receives rows and finished episodes.
        slot: The actor's place in the run; decides seeds, streams and exploration.
        reward_clip: Rewards are clipped to [-c, c] in the rows; statistics stay raw.
        env_steps_offset: Environment steps of the whole run before this actor began.

    Attributes:
        observation: What the next step acts on, `[environments, ...]`; None before `begin`.
        memory: What the policy remembers there; None if it remembers nothing.
    """

    def __init__(
        self,
        envs: StreamEnvs,
        policy: BehaviourPolicy,
        exploration: Exploration,
        sink: Sink,
        slot: ActorSlot,
        reward_clip: float | None = None,
        env_steps_offset: int = 0,
    ) -> None:
        self.envs = envs
        self.policy = policy
        self.exploration = exploration
        self.sink = sink
        self.slot = slot
        self.reward_clip = reward_clip
        self.env_steps_offset = env_steps_offset
        self.env_steps = 0
        self.policy_version = -1
        self.rng = slot.generator()
        self._streams = slot.streams
        self._environments = slot.environments
        self._total_environments = slot.total_environments
        self._return = np.zeros(envs.num_envs)
        self._length = np.zeros(envs.num_envs, dtype=np.int64)
        self._start_value = np.zeros(envs.num_envs)
        self._ended = np.zeros(envs.num_envs, dtype=np.bool_)
        self.observation: Observation = None
        self.memory = policy.begin(envs.num_envs)

    def begin(self) -> None:
        """Reset the environments and send the first frames."""
        self.observation = self.envs.reset(self.slot.env_seeds())
        everywhere = np.ones(self.envs.num_envs, dtype=np.bool_)
        if self.slot.incarnation > 0:
            self._put_gap(everywhere)
        self._put_prefix(everywhere)

    def prefetch(self) -> None:
        """Have the next action values computed while other groups of environments step."""
        if self.observation is not None:
            self.policy.prefetch(self.observation, self.memory)

    def step(self) -> int:
        """Step every environment once; return the number of environment steps made.

        An environment whose episode ended in the step before is reset by this one instead: its
        row is the BOUNDARY that holds the final observation, and no environment step is counted.
        """
        if self.observation is None:
            self.begin()
        observation, memory, mask = self.observation, self.memory, self.envs.action_mask
        q, self.policy_version, self.memory = self.policy(observation, memory)
        action = in_branches(self._choose, q, mask, self.envs.spec.action)
        step = self.envs.step(action)
        acted = ~self._ended
        begins = acted & (self._length == 0)
        value = best_values(q, mask, self.envs.spec.action)
        if begins.any():
            self._start_value[begins] = value[begins]
        reward = step.reward if self.reward_clip is None else self._clip(step.reward)
        self.sink.put(
            Rows(
                stream=self._streams,
                kind=np.where(acted, RowKind.STEP, RowKind.BOUNDARY).astype(np.uint8),
                frame=self._newest_frame(observation),
                action=action.astype(np.int32, copy=False),
                reward=reward.astype(np.float32),
                terminated=step.terminated | step.life_lost,
                truncated=step.truncated,
                policy_version=np.full(len(action), self.policy_version, dtype=np.int64),
                action_mask=mask,
                memory=memory,
                value=value.astype(np.float32, copy=False),
            )
        )
        was_reset = self._ended
        self._ended = step.terminated | step.truncated
        self.observation = step.observation
        if was_reset.any():
            self._forget(was_reset)
            self._put_prefix(was_reset)
        self._count_episodes(step.reward, acted)
        made = int(acted.sum())
        self.env_steps += made
        return made

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, as nested plain types and arrays.

        It is empty if nothing was done yet, or if the environments are no `RestorableEnvs`. What
        explores has no state but the actor's generator, and steps are counted by the run.
        """
        if self.observation is None or not isinstance(self.envs, RestorableEnvs):
            return {}
        return {
            "generator": self.rng.bit_generator.state,
            "returns": self._return,
            "lengths": self._length,
            "start_values": self._start_value,
            "memory": self.memory,
            "envs": self.envs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within the episodes of an earlier actor, in place of `begin`.

        An environment that cannot be restored begins an episode, after a GAP row. With an empty
        state nothing happens, so that all of them do.
        """
        if not state or not isinstance(self.envs, RestorableEnvs):
            return
        self.rng.bit_generator.state = state["generator"]
        self.observation, restarted = self.envs.load_state_dict(state["envs"])
        self._ended = self.envs.ended
        self._return = np.where(restarted, 0.0, state["returns"])
        self._length = np.where(restarted, 0, state["lengths"])
        self._start_value = np.array(state["start_values"])
        self.memory = state.get("memory", self.memory)
        if restarted.any():
            self._forget(restarted)
            self._put_gap(restarted)
            self._put_prefix(restarted)

    @property
    def run_env_steps(self) -> int:
        """Environment steps of the whole run so far.

        An actor counts its own steps and takes all others to be as fast as itself.
        """
        actors = self._total_environments // self.envs.num_envs
        return self.env_steps_offset + self.env_steps * actors

    def _clip(self, reward: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        assert self.reward_clip is not None
        return np.clip(reward, -self.reward_clip, self.reward_clip)

    def _choose(self, q: npt.NDArray[np.float32], mask: Mask) -> npt.NDArray[np.int32]:
        moment = Moment(
            self.run_env_steps, self._environments, self._total_environments, self.rng, mask
        )
        return self.exploration.select(q, moment)

    def _newest_frame(self, observation: Observation) -> Observation:
        return self._frame(observation, slice(None), -1)

    def _frame(self, observation: Observation, chosen: Any, index: int) -> Observation:
        """Return one of the stacked frames of some environments; what is not stacked as it is."""
        columns = self.envs.spec.observation
        found = {
            name: leaf[chosen, index] if columns[name].stack > 1 else leaf[chosen]
            for name, leaf in leaves_of(observation).items()
        }
        return leaves_from("frame", named("frame", found))

    def _put_gap(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Say that nothing may be joined with what came before."""
        streams = self._streams[chosen]
        self._put_without_action(RowKind.GAP, streams, gap_frames(self.envs.spec, len(streams)))

    def _put_prefix(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Send the earlier frames of first stacks, oldest first."""
        streams = self._streams[chosen]
        for index in range(self.envs.spec.frame_stack - 1):
            frames = self._frame(self.observation, chosen, index)
            self._put_without_action(RowKind.PREFIX, streams, frames)

    def _put_without_action(
        self, kind: RowKind, streams: npt.NDArray[np.int32], frames: Observation
    ) -> None:
        column = self.envs.spec.action.column
        self.sink.put(rows_without_action(kind, streams, frames, column))

    def _forget(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Begin to remember anew where an episode begins."""
        first = self.policy.begin(self.envs.num_envs)
        if first is not None and self.memory is not None:
            self.memory = {
                name: np.where(_beside(chosen, value), first[name], value)
                for name, value in self.memory.items()
            }

    def _count_episodes(
        self, reward: npt.NDArray[np.float64], acted: npt.NDArray[np.bool_]
    ) -> None:
        self._return += reward
        self._length += acted
        for index in np.flatnonzero(self._ended):
            self.sink.put_episode(
                float(self._return[index]),
                int(self._length[index]),
                float(self._start_value[index]),
            )
            self._return[index] = 0.0
            self._length[index] = 0


def _beside(chosen: npt.NDArray[np.bool_], value: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of rows in the shape in which it chooses whole rows of a value."""
    return chosen.reshape(-1, *(1,) * (value.ndim - 1))


def gap_frames(spec: EnvSpec, count: int) -> Observation:
    """Return the frames of GAP rows, which show nothing."""
    columns = spec.frame_columns().items()
    return leaves_from("frame", {name: column.filled(count) for name, column in columns})


def rows_without_action(
    kind: RowKind,
    streams: npt.NDArray[np.int32],
    frames: Observation,
    action: Column = Column("int32"),  # noqa: B008 (frozen)
) -> Rows:
    """Return rows that hold a frame and nothing else, one per stream.

    Args:
        kind: What they are.
        streams: Their streams.
        frames: Their frames.
        action: What other rows hold of an action.
    """
    count = len(streams)
    return Rows(
        stream=streams,
        kind=np.full(count, kind, dtype=np.uint8),
        frame=frames,
        action=np.zeros((count, *action.shape), dtype=np.int32),
        reward=np.zeros(count, dtype=np.float32),
        terminated=np.zeros(count, dtype=np.bool_),
        truncated=np.zeros(count, dtype=np.bool_),
        policy_version=np.zeros(count, dtype=np.int64),
    )
