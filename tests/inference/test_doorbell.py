"""The doorbell: wakes whoever waits, whatever happens to those that used it."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import threading
import time

import pytest
from helpers.inference import finish, ring_forever, start, wait_forever

from lrl.inference.doorbell import Doorbell
from lrl.inference.requests import MAX_SLOTS


@pytest.fixture
def bell():
    made = Doorbell()
    yield made
    made.close()


def test_every_ring_brings_its_token_in_order(bell: Doorbell):
    bell.ring()
    for token in (255, 1, 1):
        bell.ring(token)
    assert bell.wait(10.0) == bytes([0, 255, 1, 1])
    assert bell.wait(0.0) == b""


def test_descriptors_may_have_large_numbers():
    """As with hundreds of doorbells, whose numbers servers keep; select takes none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("no process may have so many here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (low := os.open(os.devnull, os.O_RDONLY)) <= 1024:
            stack.callback(os.close, low)
        stack.callback(os.close, low)
        bell = stack.enter_context(contextlib.closing(Doorbell()))
        assert bell._inside.fileno() > 1024
        began = time.monotonic()
        assert bell.wait(0.0005) == b""
        assert time.monotonic() - began >= 0.0005
        bell.ring(7)
        assert bell.wait(10.0) == b"\7"


@pytest.mark.parametrize("token", [-1, 256])
def test_a_token_is_one_byte(bell: Doorbell, token: int):
    with pytest.raises(ValueError, match="range"):
        bell.ring(token)


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_nobody_rings_until_the_time_is_over(bell: Doorbell, timeout: float):
    began = time.monotonic()
    assert bell.wait(timeout) == b""
    assert time.monotonic() - began >= timeout * 0.99  # clocks of the system may differ a little


def test_a_ring_wakes_the_one_who_waits(bell: Doorbell):
    timer = threading.Timer(0.05, bell.ring, (3,))
    timer.start()
    assert bell.wait(30.0) == b"\3"
    timer.join()


def test_rings_that_nobody_takes_are_dropped_and_block_nobody(bell: Doorbell):
    for _ in range(10_000):
        bell.ring(5)
    taken = b""
    while tokens := bell.wait(0.0):
        taken += tokens
    assert set(taken) == {5}
    assert MAX_SLOTS <= len(taken) < 10_000
    bell.ring(6)
    assert bell.wait(10.0) == b"\6"


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_killing_those_who_use_it_harms_no_other(method: str):
    bell, ready = Doorbell(), Doorbell()
    for _ in range(2 if method == "spawn" else 5):
        ringing = start(method, ring_forever, bell)
        assert set(bell.wait(30.0)) == {7}
        ringing.kill()
        assert finish(ringing) == -9
        while bell.wait(0.0):
            pass
        waiting = start(method, wait_forever, bell, ready)
        assert set(ready.wait(30.0)) == {9}
        waiting.kill()
        assert finish(waiting) == -9
        bell.ring(8)
        assert bell.wait(10.0) == b"\10"
    bell.close()
    ready.close()


@pytest.mark.usefixtures("janitor")
def test_close_is_idempotent_and_lets_go_of_both_ends():
    bell = Doorbell()
    for _ in range(2):
        bell.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        bell.ring()


def test_it_is_pickled_only_while_a_process_starts(bell: Doorbell):
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(bell)
