"""Environments that play a script, and a sink that remembers: the actor's two ends."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lrl.envs import EnvStep, StreamEnvs
from lrl.types import EnvSpec, Rows

START = 100
"""Second number of an episode's first frame; earlier frames of the first stack lie below."""


@dataclass(frozen=True)
class Episode:
    """Rewards of an episode, how it ends, and the steps at which a life is lost."""

    rewards: tuple[float, ...]
    end: Literal["terminated", "truncated"] = "terminated"
    lives_lost_at: tuple[int, ...] = ()


class Transition(NamedTuple):
    """What really happened in one step of one environment."""

    observation: list
    action: int
    reward: float
    terminated: bool  # the training target ends here, also by a lost life
    truncated: bool
    next_observation: list


class ScriptedEnvs(StreamEnvs):
    """Each environment plays its episodes in turn, over and over, and keeps a record.

    A frame is float32 `[2]`: the number of the episode (from 1000 times the environment's index)
    and the time.
    """

    def __init__(self, scripts: Sequence[Sequence[Episode]], frame_stack: int = 1) -> None:
        shape = (frame_stack, 2) if frame_stack > 1 else (2,)
        super().__init__(EnvSpec.box(shape, "float32", 5, frame_stack, frame_skip=4), len(scripts))
        self.scripts = scripts
        self.seeds: list[int] = []
        self.history: list[list[Transition]] = [[] for _ in scripts]
        self.finished: list[tuple[float, int]] = []
        self._turn = [-1] * len(scripts)
        self._time = [0] * len(scripts)

    def _reset_envs(self, seeds: Sequence[int]) -> npt.NDArray[np.generic]:
        self.seeds = list(seeds)
        return np.stack([self._begin(env) for env in range(self.num_envs)])

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        answers = [
            (self._begin(env), 0.0, False, False, False)
            if ended[env]
            else self._act(env, int(actions[env]))
            for env in range(self.num_envs)
        ]
        observation, reward, terminated, truncated, life_lost = zip(*answers, strict=True)
        return EnvStep(
            np.stack(observation),
            np.array(reward, np.float64),
            np.array(terminated),
            np.array(truncated),
            np.array(life_lost),
        )

    def _episode(self, env: int) -> Episode:
        return self.scripts[env][self._turn[env] % len(self.scripts[env])]

    def _begin(self, env: int) -> npt.NDArray[np.float32]:
        self._turn[env] += 1
        self._time[env] = 0
        return self._observe(env)

    def _act(self, env: int, action: int) -> tuple[npt.NDArray, float, bool, bool, bool]:
        episode, time, before = self._episode(env), self._time[env], self._observe(env)
        self._time[env] += 1
        ends = self._time[env] == len(episode.rewards)
        terminated, truncated = (ends and episode.end == end for end in ("terminated", "truncated"))
        life_lost = time in episode.lives_lost_at
        reward, after = episode.rewards[time], self._observe(env)
        self.history[env].append(
            Transition(
                before.tolist(), action, reward, terminated or life_lost, truncated, after.tolist()
            )
        )
        if ends:
            self.finished.append((sum(episode.rewards), len(episode.rewards)))
        return after, reward, terminated, truncated, life_lost

    def _observe(self, env: int) -> npt.NDArray[np.float32]:
        number = 1000 * env + self._turn[env]
        frames = [
            (number, START + self._time[env] - back)
            for back in reversed(range(self.spec.frame_stack))
        ]
        stack = np.array(frames, np.float32)
        return stack if self.spec.frame_stack > 1 else stack[0]


class ListSink:
    """Keeps rows by stream, and finished episodes."""

    def __init__(self) -> None:
        self.streams: dict[int, list[Rows]] = {}
        self.episodes: list[tuple[float, int]] = []
        self.start_values: list[float] = []

    def put(self, rows: Rows) -> None:
        for index in range(len(rows)):
            row = copy.deepcopy(rows[index : index + 1])
            self.streams.setdefault(int(rows.stream[index]), []).append(row)

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        self.episodes.append((episode_return, length))
        self.start_values.append(start_value)

    def column(self, name: str, stream: int = 0) -> list:
        """Return one column of a stream, as plain numbers."""
        return [getattr(row, name)[0].tolist() for row in self.streams.get(stream, [])]
