"""The inference server, in a thread: whose values it returns, of which version, and when."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inference import Clock, in_background, observation_of
from helpers.served_learner import ENCODER, SPEC, Faults, ServedLearner, reply_to
from helpers.waiting import wait_for

from lrl.actors.process import Pulse
from lrl.inference.figures import LATENCY_EDGES
from lrl.inference.remote_policy import RemotePolicy
from lrl.networks import NatureEncoder, ScalarHead
from lrl.processes.child import read_traceback
from lrl.transport import Channel, ChunkLayout
from lrl.types import EnvSpec


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make() -> Iterator[Callable[..., ServedLearner]]:
    made: list[ServedLearner] = []

    def make(**settings: Any) -> ServedLearner:
        made.append(ServedLearner(**settings))
        return made[-1]

    yield make
    for learner in made:
        learner.close()


# --- Whose values ---------------------------------------------------------------------------


@pytest.mark.usefixtures("janitor")
def test_replies_equal_a_local_forward_of_the_same_batch_while_weights_change(
    monkeypatch: pytest.MonkeyPatch,
):
    slots, count = 8, 1250
    learner = ServedLearner(slots, batch_requests=4, max_batch_delay_seconds=0.002)
    batches: list[tuple[list[int], list[int], int]] = []
    answer = learner.server.requests.answer

    def spy(taken, decision, lag) -> None:
        batches.append((taken.slots.tolist(), taken.asked["number"].tolist(), decision.version))
        answer(taken, decision, lag)

    monkeypatch.setattr(learner.server.requests, "answer", spy)
    replies = learner.serve_processes(count)
    learner.close()

    asked = [(s, n) for batch in batches for s, n in zip(batch[0], batch[1], strict=True)]
    assert sorted(asked) == [(s, n) for s in range(slots) for n in range(1, count + 1)]
    assert all(versions == sorted(versions) for versions, _ in replies)
    assert len({version for *_, version in batches}) > 10
    assert max(len(taken) for taken, *_ in batches) == 4
    for taken, numbers, version in batches:
        requests = list(zip(taken, numbers, strict=True))
        observation = np.concatenate([observation_of(s, n, 1, 4) for s, n in requests])
        received = np.concatenate([replies[s][1][n - 1] for s, n in requests])
        assert {replies[s][0][n - 1] for s, n in requests} == {version}
        np.testing.assert_array_equal(received, learner.values(version, observation))
        row_by_row = learner.values(version, *np.split(observation, len(observation)))
        np.testing.assert_allclose(received, row_by_row, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("spec", "encoder"),
    [
        (EnvSpec.box((4, 37, 41), "uint8", 3, frame_stack=4), NatureEncoder),
        (EnvSpec.box((3, 5), "bool", 2), ENCODER),
    ],
    ids=["frames", "booleans"],
)
def test_other_types_of_observations_too(make: Callable, spec: EnvSpec, encoder: Callable):
    learner = make(slots=1, rows=3, spec=spec, encoder=encoder)
    observation = np.random.default_rng(0).integers(0, 256, (3, *spec.observation_shape))
    observation = observation.astype(spec.observation_dtype)
    values, version = learner.ask(learner.requester(), observation)
    assert version == 0
    np.testing.assert_array_equal(values, learner.values(0, observation))


@pytest.mark.parametrize("part", ["encoder", "head"])
def test_noise_differs_for_every_row_and_call_and_is_none_without_noisy_layers(
    make: Callable, part: str
):
    parts = {"encoder": ENCODER, "head": ScalarHead}
    noisy = functools.partial(parts[part], noisy=True)
    same = np.repeat(observation_of(0, 1, 1, 4), 5, axis=0)
    for different, settings in ((15, {part: noisy}), (1, {})):
        learner = make(rows=5, **settings)
        actors = [learner.requester(slot) for slot in (0, 1)]
        drawn = [learner.ask(actors[0], same)[0]]
        actors[1].ask(same)
        drawn += [learner.ask(actors[0], same)[0], reply_to(actors[1])[0]]  # of one batch
        assert len({row.tobytes() for row in np.concatenate(drawn)}) == different
        assert learner.slots.server["batches"] == 2


# --- Versions -------------------------------------------------------------------------------


def test_weights_never_change_in_the_middle_of_a_forward(
    make: Callable, monkeypatch: pytest.MonkeyPatch
):
    learner = make()
    entered, go_on = threading.Event(), threading.Event()
    encode = learner.served_network.encoder.encode

    def encode_when_allowed(observation: torch.Tensor) -> torch.Tensor:
        entered.set()
        assert go_on.wait(30.0)
        return encode(observation)

    monkeypatch.setattr(learner.served_network.encoder, "encode", encode_when_allowed)
    requester, observation = learner.requester(), observation_of(0, 1, 1, 4)
    with learner.serving():
        requester.ask(observation)
        assert entered.wait(30.0)
        for version in (5, 6, 7):
            learner.publish(version)
        go_on.set()
        for version in (0, 7):  # the one of the beginning, then the newest
            values, answered = reply_to(requester)
            assert answered == version
            np.testing.assert_array_equal(values, learner.values(version, observation))
            requester.ask(observation)
    assert learner.slots.counted()["lag"] == 7


def test_weights_are_taken_once_in_a_broadcast_period(
    make: Callable, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr("lrl.inference.server.time", clock.module)
    learner = make(sync_period_seconds=8.0)
    requester, observation = learner.requester(), observation_of(0, 1, 1, 4)
    before = [(100.0, None, 0), (107.5, 1, 0), (108.0, 2, 2), (115.5, 3, 2), (116.0, None, 3)]
    for clock.now, published, expected in [*before, (130.0, 4, 4), (137.5, 5, 4)]:
        if published is not None:
            learner.publish(published)
        values, version = learner.ask(requester, observation)
        assert version == expected
        np.testing.assert_array_equal(values, learner.values(version, observation))
    assert learner.slots.counted()["lag"] == (1 - 0) + (3 - 2) + (5 - 4)


def test_the_next_server_begins_with_the_newest_weights(make: Callable):
    learner = make(sync_period_seconds=1000.0)
    requester, observation = learner.requester(), observation_of(0, 1, 1, 4)
    requester.ask(observation)
    learner.server.serve()
    learner.publish(4)
    learner.start_server()  # the one before is dead
    learner.server.serve()
    values, version = reply_to(requester)
    assert version == 4
    np.testing.assert_array_equal(values, learner.values(4, observation))


# --- When a batch runs ----------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What requests take for the time; waiting takes real time beside it."""
    made = Clock()
    for module in ("requests", "request_queue"):
        monkeypatch.setattr(f"lrl.inference.{module}.time", made.module)
    return made


def test_a_lone_request_runs_when_it_has_waited_for_the_delay(make: Callable, clock: Clock):
    learner = make(max_batch_delay_seconds=0.25)
    learner.requester().ask(observation_of(0, 1, 1, 4))
    batches = learner.slots.server["batches"]
    for clock.now in (100.0, 100.125, 100.25 - 2**-10):
        for _ in range(2):
            learner.server.serve()
        assert batches == 0
    clock.now = 100.25
    learner.server.serve()
    assert batches == 1


def test_the_delay_is_the_oldest_requests(make: Callable, clock: Clock):
    learner = make(slots=3, max_batch_delay_seconds=0.25)
    for slot, clock.now in enumerate([100.0, 100.125]):
        learner.requester(slot).ask(observation_of(slot, 1, 1, 4))
        learner.server.serve()
    clock.now = 100.25
    learner.server.serve()
    counters = learner.slots.counted()
    assert (counters["batches"], counters["requests"]) == (1, 2)
    bins = np.searchsorted(LATENCY_EDGES, [0.125, 0.25])
    np.testing.assert_array_equal(counters["latency"].nonzero()[0], bins)


def test_a_full_batch_runs_at_once_and_a_long_delay_does_not_deafen(make: Callable):
    learner = make(slots=3, batch_requests=2, max_batch_delay_seconds=30.0)
    requesters = [learner.requester(slot) for slot in range(3)]
    with learner.serving():
        requesters[0].ask(observation_of(0, 1, 1, 4))
        assert requesters[0].wait(0.3) is None
        learner.slots.server["heartbeat"] = 0.0
        wait_for(lambda: learner.slots.server["heartbeat"] > 0, "a heartbeat", seconds=10.0)
        requesters[2].ask(observation_of(2, 1, 1, 4))
        for slot in (0, 2):
            values, _ = reply_to(requesters[slot], 10.0)
            expected = learner.values(0, observation_of(slot, 1, 1, 4))
            np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)
        requesters[1].ask(observation_of(1, 1, 1, 4))
        wait_for(lambda: learner.server.requests.seconds_waited() is not None, "a request")
    assert learner.slots.server["batches"] == 1  # and it stopped with a request that waited


def test_a_full_batch_waits_for_nothing(make: Callable, monkeypatch: pytest.MonkeyPatch):
    learner = make(slots=2, batch_requests=2, max_batch_delay_seconds=30.0)
    for slot in range(2):
        learner.requester(slot).ask(observation_of(slot, 1, 1, 4))
    timeouts: list[float] = []
    collect = learner.server.requests.collect

    def spied(timeout: float) -> None:
        timeouts.append(timeout)
        collect(timeout)

    while not learner.server.requests.is_full:
        learner.server.requests.collect(10.0)
    monkeypatch.setattr(learner.server.requests, "collect", spied)
    learner.server.serve()
    assert timeouts == [0.0]
    assert learner.slots.server["batches"] == 1


def test_batches_of_one(make: Callable):
    learner = make(slots=4, batch_requests=1, max_batch_delay_seconds=30.0)
    requesters = [learner.requester(slot) for slot in range(4)]
    with learner.serving():
        for number in range(1, 6):
            for slot, requester in enumerate(requesters):
                requester.ask(observation_of(slot, number, 1, 4))
            for slot, requester in enumerate(requesters):
                expected = learner.values(0, observation_of(slot, number, 1, 4))
                np.testing.assert_array_equal(reply_to(requester)[0], expected)
    counters = learner.slots.counted()
    assert counters["batches"] == counters["requests"] == 20


# --- Failures -------------------------------------------------------------------------------


def test_callers_of_a_failed_batch_ask_again_and_the_learner_is_told(
    make: Callable, monkeypatch: pytest.MonkeyPatch
):
    learner = make()
    Faults(learner.served_network, monkeypatch).left = 2
    channel = Channel(ChunkLayout(SPEC, 4, 2), actor=0, incarnation=0)
    pulse = Pulse(channel.actor_end.open())
    observations = [observation_of(slot, 1, 1, 4) for slot in (0, 1)]
    policies = [RemotePolicy(learner.requester(slot), pulse) for slot in (0, 1)]
    with learner.serving():
        futures = list(map(in_background, policies, observations))
        for future, observation in zip(futures, observations, strict=True):
            values, version, _ = future.result(30.0)
            assert version == 0
            np.testing.assert_allclose(values, learner.values(0, observation), atol=1e-5, rtol=0)
    assert learner.slots.server["failures"] == 2
    for left in (1, 0):
        fatal, text = read_traceback(learner.errors)
        assert not fatal
        assert text.startswith("Traceback")
        assert f"RuntimeError: the network is ill, {left} left" in text
    assert not learner.errors.poll()
    channel.close()


def test_three_failures_in_a_row_end_the_server(make: Callable, monkeypatch: pytest.MonkeyPatch):
    learner = make()
    faults, requester = Faults(learner.served_network, monkeypatch), learner.requester()
    observation = observation_of(0, 1, 1, 4)

    def fail() -> None:
        faults.left = 1
        requester.ask(observation)
        learner.server.serve()
        learner.server.serve()

    def failed() -> bool:
        reply = requester.wait(0.0)
        return reply is not None and reply.failed

    for _ in range(2):  # a success between them counts them from the beginning
        for _ in range(2):
            fail()
            assert failed()
        values, _ = learner.ask(requester, observation)
        np.testing.assert_array_equal(values, learner.values(0, observation))
    for _ in range(2):
        fail()
    with pytest.raises(RuntimeError, match="the network is ill"):
        fail()
    assert failed()
    assert learner.slots.server["failures"] == 7
