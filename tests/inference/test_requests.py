"""Request slots in shared memory, and the actors that ask there."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from helpers.inference import ECHO_SPEC, Echo, echo, requesters, signed, take_all, values_of

from lrl.actors.actor import Decision
from lrl.inference.request_queue import RequestQueue
from lrl.inference.requests import RequestLayout, RequestSlots
from lrl.processes.shared_memory import SharedBlock
from lrl.types import EnvSpec


@pytest.fixture
def make() -> Iterator[Callable[..., RequestSlots]]:
    made: list[RequestSlots] = []

    def make(slots: int, rows: int = 1, spec: EnvSpec = ECHO_SPEC) -> RequestSlots:
        made.append(RequestSlots(RequestLayout(spec, slots, rows)))
        return made[-1]

    yield make
    for slots in made:
        slots.close()


@pytest.fixture
def slots(make: Callable[..., RequestSlots]) -> RequestSlots:
    return make(slots=4)


# --- Layout ---------------------------------------------------------------------------------

SPECS = [
    EnvSpec.box((4, 7, 5), "uint8", 3, frame_stack=4),
    EnvSpec.box((3,), "bool", 5),
    EnvSpec.box((3, 5), "float32", 7),
    EnvSpec.box((), "float32", 1),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.observation_dtype)
@pytest.mark.parametrize(("slots", "rows"), [(1, 1), (3, 5), (256, 3)])
def test_arrays_are_aligned_apart_and_inside_the_block(spec: EnvSpec, slots: int, rows: int):
    layout = RequestLayout(spec, slots, rows)
    block = SharedBlock(layout.nbytes)
    whole = block.array(np.uint8, layout.nbytes)
    views = dict(vars(layout.views(block)))
    views |= views.pop("question") | views.pop("answer")
    first = whole.ctypes.data
    for name, view in views.items():
        assert view.flags.aligned, name
        assert (view.ctypes.data - first) % 64 == 0, name
    for name, view in views.items():
        whole[:] = 0
        view[...] = np.frombuffer(b"\1" * view.itemsize, view.dtype)[0]
        assert whole.sum() == view.nbytes, name
        touched = [other for other in views if 1 in views[other].tobytes()]
        assert touched == [name]
    assert views["asked"].strides == views["reply"].strides == (128,)  # no line has two writers
    assert views["observation"].shape == (slots, rows, *spec.observation_shape)
    assert views["observation"].dtype == spec.observation_dtype
    assert views["values"].shape == (slots, rows, spec.num_actions)
    block.close()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.observation_dtype)
def test_observations_and_values_arrive_as_they_were_sent(make: Callable, spec: EnvSpec):
    slots, rng = make(slots=3, rows=5, spec=spec), np.random.default_rng(0)
    observation = rng.integers(0, 256, (3, 5, *spec.observation_shape)).astype(
        spec.observation_dtype
    )
    queue, actors = RequestQueue(slots, batch_requests=3), requesters(slots)
    order = [2, 0, 1]
    for slot in order:
        actors[slot].ask(observation[slot])
    taken = take_all(queue)
    assert taken.slots.tolist() == order
    assert taken.observation.dtype == spec.observation_dtype
    np.testing.assert_array_equal(taken.observation, np.concatenate(observation[order]))
    values = rng.standard_normal((15, spec.num_actions), np.float32)
    queue.answer(taken, Decision(values, version=6), lag=0)
    for part, slot in enumerate(order):
        reply = actors[slot].wait(0.0)
        assert reply is not None
        assert (reply.version, reply.failed) == (6, False)
        np.testing.assert_array_equal(reply.values, values[5 * part : 5 * part + 5])


@pytest.mark.parametrize(
    "observation",
    [
        np.zeros((4, 2), np.float64),
        np.zeros((4, 2), np.uint8),
        np.zeros((4, 3), np.float32),
        np.zeros((3, 2), np.float32),
        np.zeros((1, 2), np.float32),
        np.zeros(2, np.float32),
    ],
    ids=lambda observation: f"{observation.dtype}{observation.shape}",
)
def test_another_type_or_shape_is_refused_and_sends_nothing(
    make: Callable, observation: np.ndarray
):
    slots = make(slots=1, rows=4)
    expected = re.escape("expected float32[4, 2]")
    with pytest.raises(ValueError, match=rf"observation is {observation.dtype}\[.*, {expected}"):
        requesters(slots)[0].ask(observation)
    queue = RequestQueue(slots, batch_requests=2)
    queue.collect(0.0)
    assert queue.seconds_waited() is None


def test_slots_are_pickled_only_while_a_process_starts_and_closed_twice(slots: RequestSlots):
    for whole in (slots, slots.client(0)):
        with pytest.raises((RuntimeError, TypeError)):
            pickle.dumps(whole)
    slots.close()
    slots.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        slots.reply_bells[3].ring()


# --- Requesters ------------------------------------------------------------------------------


def test_a_request_is_answered_once_and_a_new_one_voids_the_old(slots: RequestSlots):
    queue, actor = RequestQueue(slots, batch_requests=4), requesters(slots)[0]
    actor.ask(signed(0, 1))
    assert actor.wait(0.01) is None
    old = take_all(queue)
    actor.ask(signed(0, 2))
    echo(queue, old)
    assert actor.wait(0.0) is None
    echo(queue, take_all(queue))
    assert values_of(actor) == [[0, 2]]
    queue.collect(0.0)
    assert queue.seconds_waited() is None


def test_a_reply_is_a_copy(slots: RequestSlots):
    queue, actor = RequestQueue(slots, batch_requests=1), requesters(slots)[0]
    replies = []
    for number in (1, 2):
        actor.ask(signed(0, number))
        echo(queue, take_all(queue))
        replies.append(actor.wait(0.0))
    assert [reply.values.tolist() for reply in replies] == [[[0, 1]], [[0, 2]]]


def test_waiting_requesters_are_woken(slots: RequestSlots):
    actor = requesters(slots)[2]
    with Echo(slots):
        for number in range(1, 20):
            actor.ask(signed(2, number))
            reply = actor.wait(30.0)
            assert reply is not None
            assert reply.values.tolist() == [[2, number]]
