"""A start may take minutes while it works, and is given up when it does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.managed_actors import faulty
from helpers.waiting import wait_for

from lrl.processes import patience
from lrl.processes.patience import Patience


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock, and the processor time that the process has used."""
    made = SimpleNamespace(now=1000.0, used=0.0)
    monkeypatch.setattr(patience, "_processor_seconds", lambda pid: made.used)
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_who_does_nothing_is_given_up(fake):
    start = Patience()
    assert start.verdict(1, 120.0) is None
    fake.now += 119.0
    assert start.verdict(1, 120.0) is None
    fake.now += 2.0
    assert start.verdict(1, 120.0) == "did nothing for 120 s while it started"


def test_who_works_has_ten_minutes(fake):
    start = Patience()
    for _ in range(10):
        assert start.verdict(1, 60.0) is None
        fake.now, fake.used = fake.now + 59.0, fake.used + 0.01
    assert start.verdict(1, 60.0) is None
    fake.now, fake.used = fake.now + 11.0, fake.used + 0.01
    assert start.verdict(1, 60.0) == "did not come through its start in 600 s"


def test_the_longer_deadline_alone_where_processor_time_is_unknown(fake):
    start, fake.used = Patience(), None
    fake.now += 599.0
    assert start.verdict(1, 30.0) is None
    fake.now += 2.0
    assert start.verdict(1, 30.0) == "did not come through its start in 600 s"


def test_a_longer_time_out_is_a_longer_deadline(fake):
    start, fake.used = Patience(), None
    fake.now += 1199.0
    assert start.verdict(1, 1200.0) is None


def test_a_suspension_does_not_count(fake):
    start = Patience()
    start.verdict(1, 30.0)
    fake.now += 1000.0
    assert start.verdict(1, 30.0, since=fake.now - 1.0) is None


def is_at_rest(pid: int) -> bool:
    before = patience._processor_seconds(pid)
    time.sleep(0.5)
    return patience._processor_seconds(pid) == before is not None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known")
def test_processor_time_grows_with_work_alone():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        wait_for(lambda: (patience._processor_seconds(busy.pid) or 0.0) > 0.5, "work")
        wait_for(lambda: is_at_rest(idle.pid), "rest")  # the interpreter has to start first
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()
    assert patience._processor_seconds(busy.pid) is None


def test_an_actor_that_works_longer_on_its_start_than_the_time_out_is_let(learner):
    made = learner(faulty(fault="work", where="init"), timeout_seconds=1.0, num_actors=1)
    made.take_until(made.all_acted, "first steps")
    assert made.manager.restarts == 0


def test_rows_that_are_sent_at_the_start_are_not_its_end(learner):
    """An actor of several groups sends those of the first while it begins the others."""
    made = learner(num_actors=1)
    counters = {"heartbeat": time.monotonic() - 1000.0, "env_steps": 0}
    handle: Any = SimpleNamespace(
        channel=SimpleNamespace(counters=counters),
        process=SimpleNamespace(pid=os.getpid()),
        start=Patience(),
    )
    assert made.manager._hung(handle) is None
    counters["env_steps"] = 1
    assert made.manager._hung(handle) == "made no progress for 60 s"


def test_an_actor_that_sleeps_in_its_start_is_replaced(learner, tmp_path, caplog):
    once = str(tmp_path / "slept")
    made = learner(faulty(fault="hang", where="init", once=once), timeout_seconds=1.0, num_actors=1)
    made.take_until(made.all_acted, "first steps")
    assert made.manager.restarts == 1
    assert "did nothing for 2 s while it started" in caplog.text
