"""The server's side of requests: which make a batch, who is told, and what survives a death."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
from helpers.inference import (
    ECHO_SPEC,
    Clock,
    Echo,
    ask_forever,
    echo,
    finish,
    requesters,
    signed,
    start,
    take_all,
    values_of,
)
from helpers.waiting import wait_for

from lrl.actors.actor import Decision
from lrl.inference.figures import LATENCY_EDGES
from lrl.inference.request_queue import RequestQueue
from lrl.inference.requests import RequestLayout, RequestSlots


@pytest.fixture
def slots() -> Iterator[RequestSlots]:
    made = RequestSlots(RequestLayout(ECHO_SPEC, slots=4, rows=1))
    yield made
    made.close()


def test_batches_hold_the_oldest_requests_and_never_more_than_they_may(slots: RequestSlots):
    queue, actors = RequestQueue(slots, batch_requests=3), requesters(slots)
    assert queue.seconds_waited() is None
    order = [3, 1, 0, 2]
    for index, slot in enumerate(order):
        actors[slot].ask(signed(slot, 1))
        queue.collect(0.0)
        assert queue.is_full == (index >= 2)
    first = queue.take()
    assert first.slots.tolist() == order[:3]
    assert not queue.is_full
    echo(queue, first)
    actors[3].ask(signed(3, 2))
    second = take_all(queue)
    assert second.slots.tolist() == [2, 3]
    assert second.observation.tolist() == [[2, 1], [3, 2]]
    assert queue.seconds_waited() is None


def test_a_failed_batch_says_so_and_its_requests_are_closed(slots: RequestSlots):
    queue, actors = RequestQueue(slots, batch_requests=4), requesters(slots)
    for slot in (0, 1):
        actors[slot].ask(signed(slot, 1))
    queue.fail(take_all(queue))
    for slot in (0, 1):
        reply = actors[slot].wait(0.0)
        assert reply is not None
        assert reply.failed
    actors[0].ask(signed(0, 2))
    taken = take_all(queue)
    assert taken.slots.tolist() == [0]
    echo(queue, taken)
    reply = actors[0].wait(0.0)
    assert reply is not None
    assert not reply.failed
    assert slots.server["failures"] == 1
    assert slots.server["batches"] == 1


def test_counters_tell_of_batches_and_latencies(
    slots: RequestSlots, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    for module in ("requests", "request_queue"):
        monkeypatch.setattr(f"lrl.inference.{module}.time", clock.module)
    queue, actors = RequestQueue(slots, batch_requests=2), requesters(slots)
    for slot in (0, 1, 2):
        actors[slot].ask(signed(slot, 1))
        clock.now += 1.0
    queue.collect(0.0)
    assert queue.seconds_waited() == 3.0
    for lag in (4, 0):
        queue.answer(queue.take(), Decision(np.zeros((2 if lag else 1, 2), np.float32), 1), lag)
    actors[0].ask(signed(0, 2))
    queue.collect(0.0)
    queue.fail(queue.take())  # counts as a failure only
    assert slots.server["failures"] == 1
    assert slots.server["heartbeat"] == 103.0
    counters = slots.counted()
    named = ("batches", "requests", "capacity", "waiting", "lag")
    assert [counters[name] for name in named] == [2, 3, 4, 4, 4]
    seconds = np.repeat(LATENCY_EDGES, counters["latency"][:-1])  # the bin's upper edges
    assert (seconds >= [1.0, 2.0, 3.0]).all()
    assert (seconds <= [1.12, 2.24, 3.36]).all()
    ratios = [upper / lower for lower, upper in pairwise(LATENCY_EDGES)]
    np.testing.assert_allclose(ratios, 1.1067, rtol=1e-4)


# --- Deaths ---------------------------------------------------------------------------------


class Mute:
    """Stands for the doorbell of a server that dies before it rings."""

    def ring(self) -> None:
        pass


def test_what_was_counted_is_whole_and_of_the_last_batch(
    slots: RequestSlots, monkeypatch: pytest.MonkeyPatch
):
    """The learner may look at any moment, also while a batch is counted, and divides."""
    queue, actors = RequestQueue(slots, batch_requests=2), requesters(slots)
    seen = []
    searchsorted = np.searchsorted

    def look(*arguments: Any) -> Any:
        seen.append(counts(slots))
        return searchsorted(*arguments)

    monkeypatch.setattr(np, "searchsorted", look)
    for slot in (0, 1, 2):
        actors[slot].ask(signed(slot, 1))
        echo(queue, take_all(queue))
    seen.append(counts(slots))
    assert [list(counted.values()) for counted in seen] == [[n, 2 * n, n] for n in range(4)]


def test_a_server_that_dies_while_it_counts_does_not_end_the_counting(
    slots: RequestSlots, monkeypatch: pytest.MonkeyPatch
):
    queue, actors = RequestQueue(slots, batch_requests=2), requesters(slots)
    actors[0].ask(signed(0, 1))
    taken = take_all(queue)
    with monkeypatch.context() as patch:
        patch.setattr(np, "searchsorted", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            echo(queue, taken)
    assert counts(slots)["batches"] == 0
    queue = RequestQueue(slots, batch_requests=2)  # the next server's
    actors[1].ask(signed(1, 1))
    echo(queue, take_all(queue))
    assert counts(slots) == {"batches": 1, "capacity": 2, "requests": 1}


def counts(slots: RequestSlots) -> dict[str, int]:
    """Return what the learner sees."""
    counted = slots.counted()
    return {name: int(counted[name]) for name in ("batches", "capacity", "requests")}


def raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_late_reply_is_not_taken_by_the_next_incarnation(slots: RequestSlots):
    queue = RequestQueue(slots, batch_requests=1)
    old = requesters(slots)[1]
    old.ask(signed(1, 1))
    taken = take_all(queue)
    fresh = requesters(slots, incarnation=1)[1]
    fresh.ask(signed(1, 2))  # the first request of both
    echo(queue, taken)
    assert fresh.wait(0.0) is None
    echo(queue, take_all(queue))
    assert values_of(fresh) == [[1, 2]]
    assert old.wait(0.0) is None


def test_an_actor_that_died_neither_blocks_nor_spoils_a_batch(slots: RequestSlots):
    queue, actors = RequestQueue(slots, batch_requests=3), requesters(slots)
    for slot in (0, 1, 2):
        actors[slot].ask(signed(slot, 1))
    queue.collect(0.0)
    views = slots.layout.views(slots.block)
    # The next incarnation has begun to write, and died too.
    views.question["observation"][0] = np.nan
    echo(queue, queue.take())
    assert [values_of(actors[slot]) for slot in (1, 2)] == [[[1, 1]], [[2, 1]]]
    queue.collect(0.0)
    assert queue.seconds_waited() is None
    fresh = requesters(slots, incarnation=2)[0]
    fresh.ask(signed(0, 5))
    echo(queue, take_all(queue))
    assert values_of(fresh) == [[0, 5]]


@pytest.mark.parametrize("death", ["before it looked", "with a batch", "before it rang"])
@pytest.mark.parametrize("ring_lost", [False, True])
def test_what_a_dead_server_left_is_answered_by_the_next(
    slots: RequestSlots, death: str, ring_lost: bool
):
    actors, order = requesters(slots), [2, 0, 3]
    queue = RequestQueue(slots, batch_requests=2)
    for bell in slots.reply_bells:
        bell.wait(0.0)
    for slot in order:
        actors[slot].ask(signed(slot, 1))
    answered = []
    if death != "before it looked":
        taken = take_all(queue)
        if death == "before it rang":
            queue._reply_bells = [Mute()] * 4  # pyright: ignore[reportAttributeAccessIssue]
            echo(queue, taken)
            answered = order[:2]
    if ring_lost:
        slots.bell.wait(0.0)
    assert [bell.wait(0.0) for bell in slots.reply_bells] == [b""] * 4
    queue = RequestQueue(slots, batch_requests=2)
    for slot in answered:
        assert slots.reply_bells[slot].wait(0.0)
    batches = []
    while queue.seconds_waited() is not None:
        taken = take_all(queue)
        batches.append(taken.slots.tolist())
        echo(queue, taken)
    assert batches == ([[3]] if answered else [[2, 0], [3]])
    assert [values_of(actors[slot]) for slot in order] == [[[slot, 1]] for slot in order]


def test_a_dropped_ring_is_found_when_nothing_else_comes(slots: RequestSlots):
    queue, actor = RequestQueue(slots, batch_requests=1), requesters(slots)[3]
    actor.ask(signed(3, 1))
    slots.bell.wait(0.0)
    queue.collect(0.0)
    assert queue.seconds_waited() is None
    queue.collect(0.001)
    echo(queue, queue.take())
    assert values_of(actor) == [[3, 1]]


@pytest.mark.usefixtures("janitor")
def test_killed_actors_spoil_nothing():
    """Actors check every reply; each may be killed in the middle of anything."""
    rng, slots = random.Random(0), RequestSlots(RequestLayout(ECHO_SPEC, slots=3, rows=64))
    incarnations = [0, 0, 0]

    def launch(slot: int) -> BaseProcess:
        return start("forkserver", ask_forever, slots.client(slot), incarnations[slot])

    with Echo(slots, batch_requests=2):
        processes = [launch(slot) for slot in range(3)]
        for _ in range(15):
            goal = slots.counted()["requests"] + 100
            wait_for(lambda goal=goal: slots.counted()["requests"] > goal, "100 more requests")
            time.sleep(0.01 * rng.random())
            victim = rng.randrange(3)
            processes[victim].kill()
            assert finish(processes[victim]) == -9
            incarnations[victim] += 1
            processes[victim] = launch(victim)
        for process in processes:
            process.kill()
            assert finish(process) == -9  # not 1: no reply was wrong
    slots.close()
