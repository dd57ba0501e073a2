"""The remote policy: asks ahead, waits for as long as it takes, and stops when it is told to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.inference import (
    ECHO_SPEC,
    Clock,
    Echo,
    echo,
    in_background,
    signed,
    take_all,
)
from helpers.waiting import wait_for

from lrl.actors.process import Pulse
from lrl.actors.slot import ActorSlot
from lrl.inference.remote_policy import RemotePolicy, RemotePolicyFactory
from lrl.inference.request_queue import RequestQueue, Taken
from lrl.inference.requests import Requester, RequestLayout, RequestSlots
from lrl.processes.child import StopRequested
from lrl.transport import Channel, ChunkLayout, ChunkWriter


@pytest.fixture
def slots() -> Iterator[RequestSlots]:
    made = RequestSlots(RequestLayout(ECHO_SPEC, slots=3, rows=1))
    yield made
    made.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel(ChunkLayout(ECHO_SPEC, 4, 2), actor=0, incarnation=0)
    yield made
    made.close()


@pytest.fixture
def writer(channel: Channel) -> ChunkWriter:
    return channel.actor_end.open()


@pytest.fixture
def policy(slots: RequestSlots, writer: ChunkWriter) -> RemotePolicy:
    return RemotePolicy(Requester(slots.client(1), 0), Pulse(writer))


def take_one(queue: RequestQueue) -> Taken:
    """Take a batch when a request has come."""

    def has_come() -> bool:
        queue.collect(0.001)
        return queue.seconds_waited() is not None

    wait_for(has_come, "a request")
    return queue.take()


def serve_one(queue: RequestQueue, version: int = 0) -> list[list[float]]:
    """Answer a request when it has come; return what was in it."""
    echo(queue, taken := take_one(queue), version)
    return taken.observation.tolist()


def test_a_call_returns_values_and_version(policy, slots):
    queue, observation = RequestQueue(slots, 1), signed(1, 5)
    caller = in_background(policy, observation)
    assert serve_one(queue, version=6) == [[1, 5]]
    values, version, _ = caller.result(30.0)
    assert values.tolist() == [[1, 5]]
    assert values.dtype == np.float32
    assert version == 6


def test_what_was_asked_ahead_is_used_by_the_call_with_the_same_array(policy, slots):
    queue, observation = RequestQueue(slots, 1), signed(1, 5)
    policy.prefetch(observation)
    echo(queue, take_all(queue), version=2)
    values, version, _ = policy(observation)  # answered already: nobody serves any more
    assert (values.tolist(), version) == ([[1, 5]], 2)
    queue.collect(0.001)
    assert queue.seconds_waited() is None


@pytest.mark.parametrize("answered", [False, True])
def test_what_was_asked_ahead_is_not_used_for_another_array(policy, slots, answered):
    queue, first = RequestQueue(slots, 1), signed(1, 5)
    policy.prefetch(first)
    if answered:
        echo(queue, take_all(queue))
    queue.collect(0.001)
    caller = in_background(policy, first + 1)
    wait_for(lambda: slots.layout.views(slots.block).asked["number"][1] == 2, "request 2")
    assert serve_one(queue) == [[2, 6]]
    assert caller.result(30.0)[0].tolist() == [[2, 6]]


def test_an_answer_is_used_once_though_the_array_is_the_same(policy, slots):
    """Environments may write every observation into one array."""
    queue, observation = RequestQueue(slots, 1), signed(1, 5)
    policy.prefetch(observation)
    echo(queue, take_all(queue))
    policy(observation)
    observation += 1
    caller = in_background(policy, observation)
    assert serve_one(queue) == [[2, 6]]
    assert caller.result(30.0)[0].tolist() == [[2, 6]]


@pytest.mark.parametrize("taken", [False, True])
def test_a_call_outlives_the_servers(policy, slots, taken):
    queue = RequestQueue(slots, 1)
    caller = in_background(policy, signed(1, 5))
    if taken:
        take_one(queue)
    for _ in range(2):
        queue = RequestQueue(slots, 1)  # the one before is dead
    assert not caller.done()
    assert serve_one(queue, version=9) == [[1, 5]]
    values, version, _ = caller.result(30.0)
    assert (values.tolist(), version) == ([[1, 5]], 9)


def test_a_failed_batch_is_asked_for_again(policy, slots):
    queue = RequestQueue(slots, 1)
    caller = in_background(policy, signed(1, 5))
    for _ in range(2):
        queue.fail(take_one(queue))
    assert serve_one(queue) == [[1, 5]]
    assert caller.result(30.0)[0].tolist() == [[1, 5]]
    assert slots.layout.views(slots.block).asked["number"][1] == 3


def test_waiting_actors_show_that_they_are_alive(policy, writer, slots):
    caller = in_background(policy, signed(1, 5))
    for _ in range(2):
        writer.counters["heartbeat"] = 0.0
        wait_for(lambda: writer.counters["heartbeat"] > 0, "a heartbeat")
    with Echo(slots):
        assert caller.result(30.0)[0].tolist() == [[1, 5]]


def test_failures_are_no_silence(policy, writer, slots):
    """A network that always fails is the learner's business, not a hung actor."""
    queue = RequestQueue(slots, 1)
    caller = in_background(policy, signed(1, 5))
    taken = take_one(queue)
    writer.counters["heartbeat"] = 0.0
    queue.fail(taken)
    serve_one(queue)
    caller.result(30.0)
    assert writer.counters["heartbeat"] > 0


def test_the_pulse_ends_waiting_when_the_time_of_grace_is_over(channel, writer, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("lrl.actors.process.time", clock.module)
    pulse = Pulse(writer, grace_seconds=2.0)
    for clock.now in (100.0, 150.0):  # nobody said stop
        pulse()
        assert writer.counters["heartbeat"] == clock.now
    channel.request_stop()
    for clock.now in (160.0, 161.0, 162.0):
        pulse()
    clock.now = 162.5
    with pytest.raises(StopRequested, match="asked to stop"):
        pulse()


def test_a_call_without_a_server_ends_when_the_learner_says_stop(channel, writer, slots):
    policy = RemotePolicy(Requester(slots.client(0), 0), Pulse(writer, grace_seconds=0.1))
    caller = in_background(policy, signed(0, 1))
    wait_for(lambda: writer.counters["heartbeat"] > 0, "a heartbeat")
    assert not caller.done()
    channel.request_stop()
    with pytest.raises(StopRequested):
        caller.result(30.0)


def test_an_answer_in_the_time_of_grace_is_taken(channel, policy, slots):
    channel.request_stop()
    caller = in_background(policy, signed(1, 5))
    with Echo(slots):
        assert caller.result(30.0)[0].tolist() == [[1, 5]]


def test_every_group_has_a_slot_and_all_have_the_actors_incarnation(slots, writer):
    queue = RequestQueue(slots, 3)
    groups = ActorSlot(0, envs_per_actor=2, incarnation=4).split(2)
    factory = RemotePolicyFactory((slots.client(2), slots.client(0)))
    for group, policy in enumerate(factory.build(groups, Pulse(writer))):
        policy.prefetch(signed(group, 7))
    taken = take_all(queue)
    assert taken.slots.tolist() == [2, 0]
    assert taken.observation.tolist() == [[0, 7], [1, 7]]
    assert taken.asked["incarnation"].tolist() == [4, 4]
    with pytest.raises(ValueError, match="zip"):
        factory.build(groups[:1], Pulse(writer))
