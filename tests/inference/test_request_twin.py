"""Request slots against their naive twin, over every order of asking, answering and dying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from helpers.inference import ECHO_SPEC
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.actors.actor import Decision
from lrl.inference.request_queue import RequestQueue, Taken
from lrl.inference.requests import Requester, RequestLayout, RequestSlots

SLOTS, ROWS, BATCH = 4, 2, 3


@dataclass(eq=False)
class Request:
    """What was asked, and what was answered: content, version and failure."""

    slot: int
    content: list[list[int]]
    reply: tuple[list[list[int]], int, bool] | None = None


class Twin:
    """Requests in lists: the same as the real ones, with nothing shared and nothing fast."""

    def __init__(self) -> None:
        self.requests: list[Request] = []  # the latest of every slot, the oldest first
        self.rings: list[int] = []
        self.waiting: list[int] = []

    def ask(self, request: Request) -> None:
        self.requests = [r for r in self.requests if r.slot != request.slot] + [request]
        self.rings.append(request.slot)

    def collect(self, patient: bool) -> None:
        open_slots = [r.slot for r in self.requests if r.reply is None]
        heard = self.rings or (open_slots if patient else [])
        for slot in heard:
            if slot not in self.waiting and slot in open_slots:
                self.waiting.append(slot)
        self.rings = []

    def take(self) -> list[Request]:
        slots, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        return [next(r for r in self.requests if r.slot == slot) for slot in slots]

    def restart(self) -> None:
        self.waiting = [r.slot for r in self.requests if r.reply is None]


class Both:
    """Actors and servers that die at any moment, beside their twin."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.slots = RequestSlots(RequestLayout(ECHO_SPEC, SLOTS, ROWS))
        self.actors = [Requester(self.slots.client(slot), 0) for slot in range(SLOTS)]
        self.incarnations = [0] * SLOTS
        self.asked: list[Request | None] = [None] * SLOTS  # by the actors that live
        self.queue = RequestQueue(self.slots, BATCH)
        self.twin = Twin()
        self.batch: tuple[Taken, list[Request]] | None = None
        self.serial = 0

    def ask(self) -> None:
        slot = int(self.rng.integers(SLOTS))
        self.serial += 1
        content = [[slot, self.serial], [self.incarnations[slot], -self.serial]]
        request = self.asked[slot] = Request(slot, content)
        self.actors[slot].ask(np.array(content, np.float32))
        self.twin.ask(request)

    def collect(self, patient: bool | None = None) -> None:
        if patient is None:
            patient = self.rng.random() < 0.3
        self.queue.collect(1e-4 if patient else 0.0)
        self.twin.collect(patient)

    def lose_rings(self) -> None:
        self.slots.bell.wait(0.0)
        self.twin.rings = []

    def take(self) -> None:
        if self.batch is not None or not self.twin.waiting:
            return
        taken, requests = self.queue.take(), self.twin.take()
        assert taken.slots.tolist() == [request.slot for request in requests]
        contents = taken.observation.reshape(-1, ROWS, 2).tolist()
        assert contents == [request.content for request in requests]
        self.batch = taken, requests

    def answer(self) -> None:
        if self.batch is None:
            return
        (taken, requests), self.batch = self.batch, None
        failed = self.rng.random() < 0.2
        self.serial += 1
        if failed:
            self.queue.fail(taken)
        else:
            decision = Decision(taken.observation.view(np.float32) + 1, self.serial)
            self.queue.answer(taken, decision, lag=0)
        for request in requests:
            values = [[number + 1 for number in row] for row in request.content]
            request.reply = values, self.serial, failed

    def restart_actor(self) -> None:
        slot = int(self.rng.integers(SLOTS))
        self.incarnations[slot] += 1
        self.actors[slot] = Requester(self.slots.client(slot), self.incarnations[slot])
        self.asked[slot] = None

    def restart_server(self) -> None:
        self.batch = None
        if self.rng.random() < 0.5:
            self.lose_rings()  # the one before heard them
        self.queue = RequestQueue(self.slots, BATCH)
        self.twin.restart()

    def check(self) -> None:
        assert self.queue.is_full == (len(self.twin.waiting) >= BATCH)
        assert (self.queue.seconds_waited() is None) == (not self.twin.waiting)
        for actor, request in zip(self.actors, self.asked, strict=True):
            if request is None:
                continue
            reply, expected = actor.wait(0.0), request.reply
            assert (reply is None) == (expected is None)
            if reply and expected:
                values, version, failed = expected
                assert reply.failed == failed
                if not failed:
                    assert (reply.values.tolist(), reply.version) == (values, version)


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32 - 1), deaths=st.sampled_from([0.0, 0.1, 0.3]))
def test_equals_twin(seed: int, deaths: float) -> None:
    both = Both(seed)
    works = [both.ask, both.ask, both.collect, both.take, both.answer]
    accidents = [both.restart_actor, both.restart_server, both.lose_rings]
    for _ in range(80):
        happens = accidents if both.rng.random() < deaths else works
        happens[both.rng.integers(len(happens))]()
        both.check()
    both.answer()
    for _ in range(2):  # a patient look follows the rings
        both.collect(patient=True)
    while both.twin.waiting:
        both.take()
        both.answer()
        both.check()
    assert all(request is None or request.reply for request in both.asked)
    both.slots.close()
