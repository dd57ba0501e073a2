"""An actor that goes on from a saved state sends the rows that the first one would have sent."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from helpers.scripted_envs import Episode, ListSink, ScriptedEnvs

from lrl.actors.actor import Actor, BehaviourPolicy, Decision
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, RestorableEnvs, make_envs
from lrl.schedules import Linear
from lrl.types import RowKind

MASKED = EnvConfig("lrl/Masked-v0", action_masks=True)
CONFIGS = [EnvConfig("CartPole-v1"), EnvConfig("lrl/Catch-v0", frame_stack=3), MASKED]
EXPLORATION = EpsilonGreedy(Linear(1.0, 0.0, 400))


class Fixed(BehaviourPolicy):
    """Values that depend on the observation alone."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def __call__(self, observation: Any, memory: Any = None) -> Decision:
        total = observation.reshape(len(observation), -1).sum(axis=1, dtype=np.float32)
        values = np.sin(np.outer(total, np.arange(1, self.num_actions + 1)))
        return Decision(values.astype(np.float32), 0)


def make_actor(
    config: EnvConfig, incarnation: int = 0, env_steps_offset: int = 0
) -> tuple[Actor, ListSink]:
    envs = RestorableEnvs([make_envs(config, 1, training=True) for _ in range(2)], 2**24)
    sink = ListSink()
    slot = ActorSlot(3, envs_per_actor=2, incarnation=incarnation)
    policy = Fixed(envs.spec.num_actions)
    actor = Actor(envs, policy, EXPLORATION, sink, slot, env_steps_offset=env_steps_offset)
    return actor, sink


def rows_of(sink: ListSink) -> dict[str, list[Any]]:
    names = ("kind", "frame", "action", "reward", "terminated", "truncated")
    rows = {f"{name}-{stream}": sink.column(name, stream) for name in names for stream in (0, 1)}
    masks = [row.action_mask for stream in sink.streams.values() for row in stream]
    return {**rows, "masks": [None if mask is None else mask.tolist() for mask in masks]}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.id)
@pytest.mark.parametrize("steps", [1, 90])
def test_a_restored_actor_sends_the_same_rows(config, steps):
    actor, sink = make_actor(config)
    for _ in range(steps):
        actor.step()
    state = copy.deepcopy(actor.state_dict())
    sink.streams.clear()
    sink.episodes.clear()
    sink.start_values.clear()
    env_steps = actor.env_steps
    for _ in range(100):
        actor.step()

    other, other_sink = make_actor(config, incarnation=1, env_steps_offset=env_steps)
    other.load_state_dict(state)
    for _ in range(100):
        other.step()
    assert len(sink.episodes) > 2
    assert other_sink.episodes == sink.episodes
    assert other_sink.start_values == sink.start_values
    assert rows_of(other_sink) == rows_of(sink)
    assert other.run_env_steps == actor.run_env_steps


def test_where_an_episode_is_lost_a_gap_says_so():
    actor, _ = make_actor(CONFIGS[1])
    for _ in range(4):
        actor.step()
    state = copy.deepcopy(actor.state_dict())
    state["envs"]["environments"][1]["reward"] += 1.0
    other, sink = make_actor(CONFIGS[1], incarnation=1)
    other.load_state_dict(state)
    assert sink.column("kind", 0) == []
    assert sink.column("kind", 1) == [RowKind.GAP, RowKind.PREFIX, RowKind.PREFIX]
    other.step()
    assert sink.column("kind", 0) == [RowKind.STEP]
    assert sink.column("kind", 1)[3:] == [RowKind.STEP]
    while len(sink.episodes) < 2:
        other.step()
    assert sorted(length for _, length in sink.episodes) == [9, 9]  # counted from their beginnings


@pytest.mark.parametrize("begun", [False, True])
def test_other_environments_have_no_state_and_begin_again(begun):
    def make() -> tuple[Actor, ListSink]:
        sink, envs = ListSink(), ScriptedEnvs([[Episode((1.0, 2.0))]])
        return Actor(envs, Fixed(5), EXPLORATION, sink, ActorSlot(0, incarnation=1)), sink

    actor, _ = make()
    if begun:
        actor.step()
    assert actor.state_dict() == {}
    other, sink = make()
    other.load_state_dict({})
    other.step()
    assert sink.column("kind") == [RowKind.GAP, RowKind.STEP]
