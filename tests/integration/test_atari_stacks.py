"""Stacks rebuilt from single frames equal what the Atari environment itself returned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lrl.actors.actor import Actor, FunctionPolicy
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.envs import AtariConfig, EnvConfig, StreamEnvs, make_envs
from lrl.envs.vector import EnvStep
from lrl.replay import Replay
from lrl.schedules import Constant
from lrl.types import RowKind, Rows

ENVIRONMENTS, ENV_STEPS = 4, 10_000


class Recording(StreamEnvs):
    """Keeps every observation that the environments returned, in order."""

    def __init__(self, envs: StreamEnvs) -> None:
        super().__init__(envs.spec, envs.num_envs)
        self.envs = envs
        self.observations: list[np.ndarray] = []

    def _reset_envs(self, seeds):
        self.observations.append(self.envs.reset(seeds))
        return self.observations[-1]

    def _step_envs(self, actions, ended) -> EnvStep:
        step = self.envs.step(actions)
        self.observations.append(step.observation)
        return step


class CountingReplay:
    """A sink that also remembers which step of the environments each stored row belongs to."""

    def __init__(self, replay: Replay, recording: Recording) -> None:
        self.replay, self.recording = replay, recording
        self.step_of: dict[tuple[int, int], int] = {}
        self.next_row = np.zeros(ENVIRONMENTS, np.int64)
        self.episodes = 0

    def put(self, rows: Rows) -> None:
        # A row holds the observation before the step that has just been recorded.
        step = len(self.recording.observations) - 2
        for stream, kind in zip(rows.stream, rows.kind, strict=True):
            if kind in (RowKind.STEP, RowKind.BOUNDARY):
                self.step_of[int(stream), int(self.next_row[stream])] = step
            self.next_row[stream] += 1
        self.replay.add(rows)

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        self.episodes += 1


@pytest.mark.slow
@pytest.mark.atari
def test_stacks_equal_the_environments_own_observations():
    config = EnvConfig("ALE/Breakout-v5", atari=AtariConfig(max_frames_per_episode=1600))
    recording = Recording(make_envs(config, ENVIRONMENTS, training=True))
    replay = Replay(recording.spec, 2 * ENV_STEPS, ENVIRONMENTS)
    sink = CountingReplay(replay, recording)
    rng = np.random.default_rng(0)
    actor = Actor(
        recording,
        FunctionPolicy(lambda observation: rng.random((ENVIRONMENTS, 4), np.float32)),
        EpsilonGreedy(Constant(0.0)),
        sink,
        ActorSlot(seed=0, envs_per_actor=ENVIRONMENTS),
    )
    while actor.env_steps < ENV_STEPS:
        actor.step()
    recording.envs.close()
    assert sink.episodes > 30
    keys = torch.as_tensor(replay.samplable_keys())
    assert len(keys) >= ENV_STEPS - ENVIRONMENTS
    compared = 0
    for part in keys.split(256):
        batch = replay._windows.batch(part.numpy(), np.ones(len(part), np.float32))
        for index, (stream, row) in enumerate(part.tolist()):
            step = sink.step_of[stream, row]
            own = recording.observations[step][stream]
            assert np.array_equal(batch.observation[index].numpy(), own)
            if batch.discount[index] > 0:
                following = recording.observations[sink.step_of[stream, row + 1]][stream]
                assert np.array_equal(batch.next_observation[index].numpy(), following)
            compared += 1
    assert compared >= ENV_STEPS - ENVIRONMENTS
