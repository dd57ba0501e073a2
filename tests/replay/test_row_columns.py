"""Leaves of an observation and what a policy remembers, all the way from the actor to a batch.

The way itself has tests with one array; here every room is asked once for more than that.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.replay_rows import RandomStream, make_spec, pack
from helpers.scripted_envs import Episode, ListSink, ScriptedEnvs

from lrl.actors.actor import Actor, BehaviourPolicy, Decision, rows_without_action
from lrl.actors.exploration import Greedy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, RestorableEnvs, make_envs
from lrl.inference.request_queue import RequestQueue
from lrl.inference.requests import Requester, RequestLayout, RequestSlots
from lrl.replay import Replay
from lrl.transport import Channel, ChunkLayout, ChunkQueue, ChunkWriter
from lrl.types import ActionSpec, Column, EnvSpec, Memory, Observation, RowKind, Rows

MEMORY = {"hidden": Column("float32", (3,))}
STEP, BOUNDARY, PREFIX, GAP = RowKind.STEP, RowKind.BOUNDARY, RowKind.PREFIX, RowKind.GAP


def rich_spec(frame_stack: int) -> EnvSpec:
    """A stacked leaf, one that is not stacked, masks and memory."""
    return EnvSpec(
        observation={
            "place": Column("float32", (2,), frame_stack),
            "speed": Column("float32"),
        },
        action=ActionSpec((5,), masks=True),
        memory=MEMORY,
    )


def rich(rows: Rows) -> Rows:
    """Give rows whose frames are their names what the specification has more."""
    name = rows.frame[:, 0]
    return replace(
        rows,
        frame={"place": rows.frame, "speed": 10 * name},
        memory={"hidden": name[:, None] + np.arange(3, dtype=np.float32)},
        action_mask=name[:, None] % 5 != np.arange(5),
    )


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("frame_stack", [1, 4])
def test_batches_hold_what_the_rows_of_their_observations_held(frame_stack: int, n_step: int):
    rng = np.random.default_rng(n_step)
    settings: dict[str, Any] = {"capacity": 120, "num_streams": 2, "n_step": n_step}
    plain = Replay(make_spec(frame_stack), **settings)
    full = Replay(rich_spec(frame_stack), **settings)
    streams = [RandomStream(rng, frame_stack, hazard=0.1) for _ in range(2)]
    rows = [(index % 2, streams[index % 2].next_row()) for index in range(300)]
    for start in range(0, 300, 50):
        plain.add(pack(rows[start : start + 50]))
        full.add(rich(pack(rows[start : start + 50])))
    expected, batch = plain.sample(64), full.sample(64)
    assert batch.memory is not None
    assert batch.next_memory is not None
    assert batch.action_mask is not None
    for one, other, memory in (
        (expected.observation, batch.observation, batch.memory),
        (expected.next_observation, batch.next_observation, batch.next_memory),
    ):
        name = (one[:, -1] if frame_stack > 1 else one)[:, 0]
        torch.testing.assert_close(other["place"], one)
        torch.testing.assert_close(other["speed"], 10 * name)
        torch.testing.assert_close(memory["hidden"], name[:, None] + torch.arange(3))
    name = (expected.observation[:, -1] if frame_stack > 1 else expected.observation)[:, 0]
    assert torch.equal(batch.action_mask, name[:, None] % 5 != torch.arange(5))


def test_rows_cross_the_ring_with_all_their_columns():
    spec = rich_spec(frame_stack=4)
    channel, queue = Channel(ChunkLayout(spec, chunk_rows=4, chunks=8), 0, 0), ChunkQueue()
    queue.add(channel)
    writer = ChunkWriter(channel.actor_end, max_age_seconds=float("inf"))
    stream = RandomStream(np.random.default_rng(0), 4, hazard=0.0)
    sent = rich(pack([(0, stream.next_row()) for _ in range(7)]))
    gap = {"place": np.zeros((1, 2), np.float32), "speed": np.zeros(1, np.float32)}
    writer.put(sent)
    writer.put(rows_without_action(GAP, np.zeros(1, np.int32), gap))
    writer.close()
    parts: list[dict[str, npt.NDArray[Any]]] = []
    while queue.qsize():
        with queue.get(0) as chunk:
            parts.append(copy.deepcopy(chunk.rows.columns()))
    queue.close()
    received = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, column in sent.columns().items():
        np.testing.assert_array_equal(received[name][:7], column, err_msg=name)
    assert received["memory.hidden"][7].tolist() == [0, 0, 0]  # nothing is remembered
    assert received["action_mask"][7].all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"frame": {"place": np.zeros((1, 2), np.float32)}}, "rows.frame.speed is missing"),
        ({"memory": {"hidden": np.zeros((1, 4), np.float32)}}, r"rows.memory.hidden is .*\[1, 4\]"),
        ({"memory": None, "kind": np.zeros(1, np.uint8)}, "rows.memory.hidden is missing"),
    ],
)
def test_a_leaf_that_is_missing_or_of_another_shape_is_named(change: dict[str, Any], text: str):
    rows = rich(pack([(0, RandomStream(np.random.default_rng(0), 1, 0.0).next_row())]))
    with pytest.raises(ValueError, match=text):
        Replay(rich_spec(1), 100, 1).add(replace(rows, **change))


def test_requests_carry_leaves_and_memory_to_the_server_and_back():
    slots = RequestSlots(RequestLayout(rich_spec(frame_stack=2), slots=2, rows=3))
    queue = RequestQueue(slots, batch_requests=2)
    actors = [Requester(slots.client(slot), incarnation=0) for slot in range(2)]
    observation: Observation = {
        "place": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "speed": np.arange(3, dtype=np.float32),
    }
    memory: Memory = {"hidden": np.arange(9, dtype=np.float32).reshape(3, 3)}
    for slot, actor in enumerate(actors):
        leaves = {name: leaf + 100 * slot for name, leaf in observation.items()}
        actor.ask(leaves, {"hidden": memory["hidden"] + 100 * slot})
    queue.collect(0.0)
    taken = queue.take()
    assert taken.memory is not None
    np.testing.assert_array_equal(taken.observation["place"][3:], observation["place"] + 100)
    np.testing.assert_array_equal(taken.observation["speed"], [0, 1, 2, 100, 101, 102])
    remembered = {"hidden": taken.memory["hidden"] + 1}
    queue.answer(taken, Decision(np.zeros((6, 5), np.float32), 7, remembered), lag=0)
    for slot, actor in enumerate(actors):
        reply = actor.wait(0.0)
        assert reply is not None
        assert reply.memory is not None
        np.testing.assert_array_equal(reply.memory["hidden"], memory["hidden"] + 1 + 100 * slot)
    slots.close()


class Counting(BehaviourPolicy):
    """Remembers how often it was asked since an episode began, from 10 on."""

    def begin(self, num_envs: int) -> Memory:
        return {"count": np.full((num_envs, 1), 10, np.int64)}

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        assert memory is not None
        values = np.zeros((len(observation), 5), np.float32)
        return Decision(values, 0, {"count": memory["count"] + 1})


def counts(sink: ListSink, stream: int) -> list[tuple[int, int | None]]:
    rows = sink.streams[stream]
    return [(int(r.kind[0]), None if r.memory is None else int(r.memory["count"][0, 0]))
            for r in rows]  # fmt: skip


def test_memory_precedes_its_row_and_begins_with_each_episode():
    scripts = [[Episode((1.0, 1.0))], [Episode((1.0,), end="truncated")]]
    sink = ListSink()
    envs = ScriptedEnvs(scripts, frame_stack=2)
    actor = Actor(envs, Counting(), Greedy(), sink, ActorSlot(0, envs_per_actor=2))
    for _ in range(4):
        actor.step()
    assert counts(sink, 0) == [
        (PREFIX, None), (STEP, 10), (STEP, 11), (BOUNDARY, 12), (PREFIX, None), (STEP, 10)
    ]  # fmt: skip
    assert counts(sink, 1) == [
        (PREFIX, None), (STEP, 10), (BOUNDARY, 11), (PREFIX, None), (STEP, 10), (BOUNDARY, 11),
        (PREFIX, None),
    ]  # fmt: skip


def test_a_restored_actor_remembers_and_a_lost_episode_begins_anew():
    def make() -> tuple[Actor, ListSink]:
        sink = ListSink()
        config = EnvConfig("lrl/Chain-v0", {"length": 9})
        envs = RestorableEnvs([make_envs(config, 1, training=True) for _ in range(2)], 2**24)
        return Actor(envs, Counting(), Greedy(), sink, ActorSlot(0, envs_per_actor=2)), sink

    actor, _ = make()
    for _ in range(3):
        actor.step()
    state = copy.deepcopy(actor.state_dict())
    state["envs"]["environments"][1]["reward"] += 1.0  # it did not answer as it does
    other, sink = make()
    other.load_state_dict(state)
    other.step()
    assert counts(sink, 0) == [(STEP, 13)]
    assert counts(sink, 1) == [(GAP, None), (STEP, 10)]


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_choice_in_each_branch_is_stored_and_sampled(n_step: int):
    rng = np.random.default_rng(n_step)
    spec = replace(make_spec(), action=ActionSpec((5, 3)))
    plain = Replay(make_spec(), 120, 2, n_step=n_step)
    full = Replay(spec, 120, 2, n_step=n_step)
    streams = [RandomStream(rng, 1, hazard=0.1) for _ in range(2)]
    rows = pack([(index % 2, streams[index % 2].next_row()) for index in range(300)])
    plain.add(rows)
    full.add(replace(rows, action=np.stack([rows.action, rows.action % 3], axis=1)))
    expected, batch = plain.sample(64), full.sample(64)
    assert torch.equal(batch.observation, expected.observation)
    assert torch.equal(batch.action, torch.stack([expected.action, expected.action % 3], dim=1))
    assert full.streams.bytes_needed(spec, 120) == 4 * 121 + plain.streams.bytes_needed(
        make_spec(), 120
    )
