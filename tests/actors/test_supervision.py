"""What a supervisor knows of a process that ends or hangs, and what it refuses to start."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.managed_actors import faulty
from helpers.waiting import wait_for

from lrl.actors.config import ActorConfig
from lrl.actors.manager import ActorError
from lrl.processes.supervised_process import SupervisedProcess
from lrl.processes.supervisor import Supervisor

pytestmark = pytest.mark.usefixtures("janitor")


def test_a_hung_actor_says_where_it_was(learner, tmp_path, caplog):
    made = learner(faulty(fault="hang", actor=1, once=str(tmp_path / "hung")), timeout_seconds=4.0)
    made.take_until(lambda: made.manager.restarts == 1, "the replacement")
    assert "actor 1 (pid" in caplog.text
    assert "made no progress for 4 s" in caplog.text
    stack = caplog.text.partition("made no progress")[2]
    assert "in fail" in stack
    assert "in step" in stack


def test_an_actor_that_crashes_in_c_code_says_where(learner):
    made = learner(faulty(fault="crash"), on_failure="fail")
    with pytest.raises(ActorError, match="was killed by signal 11") as caught:
        made.take_until(lambda: False, "the crash")
    assert "Segmentation fault" in str(caught.value)
    assert "odd_envs.py" in str(caught.value)


def test_a_huge_info_stays_in_its_actor(learner):
    made = learner(faulty(fault="huge info"))
    made.take_until(lambda: made.all_acted(100), "steps")
    assert made.manager.restarts == 0


def test_what_cannot_be_pickled_is_refused_in_one_sentence(learner):
    with pytest.raises(ActorError) as caught:
        learner(faulty(fault=lambda: None))
    text = str(caught.value)
    assert text.startswith("actor 0 cannot be started: ")
    assert "settings that it is told, such as env.kwargs, must be picklable" in text


def test_an_actor_has_two_threads(learner):
    """Its own, and the one that waits for the learner's end."""
    made = learner(num_actors=2)
    made.take_until(lambda: made.all_acted(50), "steps")
    for process in made.manager.processes:
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 2


def test_an_error_of_the_watching_thread_reaches_the_learner(learner, monkeypatch):
    made = learner()

    def attend(*args: object) -> None:
        raise ZeroDivisionError("watched by nobody")

    monkeypatch.setattr(made.manager, "_look_after", attend)
    with pytest.raises(ActorError, match=r"watching the processes failed.*watched by nobody"):
        made.take_until(lambda: False, "the error")


def test_who_acts_is_told_by_process(learner):
    made = learner(num_actors=2)
    made.take_until(lambda: made.all_acted(1), "first steps")
    wait_for(lambda: None not in made.manager.acting(), "both")
    assert made.manager.acting() == [process.pid for process in made.manager.processes]


@pytest.mark.slow
def test_fifty_full_rings_are_shut_down_without_a_loss(learner):
    for _ in range(50):
        made = learner(num_actors=2, chunks_per_actor=2)
        channels = [handle.channel for handle in made.manager._handles]
        wait_for(lambda c=channels: all(one.counters["wait_seconds"] > 0 for one in c), "full")
        made.stop()
        assert [process.exitcode for process in made.manager.processes] == [0, 0]
        totals = made.queue.totals()
        assert totals.received == totals.produced > 0


# --- pauses between restarts ----------------------------------------------------------------


class Idle(Supervisor[SupervisedProcess]):
    """Supervises processes that never were."""

    error = RuntimeError

    def _launch(self, index: int, previous: SupervisedProcess | None) -> SupervisedProcess:
        raise NotImplementedError

    def _heartbeat(self, handle: SupervisedProcess) -> float:
        return 0.0

    def _request_stop(self) -> None:
        pass


NOW = 1000.0


def pause_after(handle: SupervisedProcess, lived_seconds: float, supervisor: Idle) -> float:
    handle.launched_at, handle.acted_at = NOW - lived_seconds - 60.0, NOW - lived_seconds
    handle.restart_at = None
    supervisor._record_death(handle, "died")
    assert handle.restart_at is not None
    return round(handle.restart_at - NOW, 1)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> SupervisedProcess:
    """A process that has ended; time stands still."""
    for module in ("supervisor", "supervised_process"):
        clock = SimpleNamespace(monotonic=lambda: NOW)
        monkeypatch.setattr(f"lrl.processes.{module}.time", clock)
    process: Any = SimpleNamespace(pid=1)
    first, second = multiprocessing.Pipe(duplex=False)
    first.close()
    second.close()
    return SupervisedProcess("actor 0", process, first, first, 0.0)


class Deaf:
    """A process that cannot be ended, as where its fork server cannot be woken."""

    exitcode = None

    def __init__(self, events: list[str], clock: SimpleNamespace) -> None:
        self.events, self.clock, self.pid = events, clock, 2**22  # no process has such a number
        self.sentinel = multiprocessing.Pipe(duplex=False)[0]

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        self.events.append("kill")

    def join(self, timeout: float) -> None:
        self.events.append("join")
        self.clock.now += timeout


def test_all_are_killed_before_any_is_waited_for_and_all_share_one_deadline(monkeypatch):
    monkeypatch.setattr("lrl.processes.supervised_process._END_SECONDS", 0.55)
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("lrl.processes.supervised_process.time", clock)
    supervisor, events = Idle(ActorConfig(), 4), list[str]()
    for index in range(4):
        process: Any = Deaf(events, clock)
        pipes = multiprocessing.Pipe(duplex=False)
        supervisor._handles.append(SupervisedProcess(f"actor {index}", process, *pipes, 0.0))
    supervisor.stop(timeout=0.0)
    assert events == ["kill"] * 4 + ["join"] * 6


def test_pauses_double_in_a_crash_loop_and_end_with_it(dead):
    supervisor = Idle(ActorConfig(max_restarts=100), 1)
    pauses = [pause_after(dead, lived, supervisor) for lived in (0.2, 0.2, 0.2, 0.2, 5.0, 0.2)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 0.0, 0.1]
    pauses = [pause_after(dead, 0.2, supervisor) for _ in range(12)]
    assert pauses[-1] == 30.0


def test_a_start_that_takes_long_is_no_long_life(dead):
    supervisor = Idle(ActorConfig(max_restarts=100), 1)
    dead.launched_at -= 60.0
    supervisor._record_death(dead, "died before its first step")
    assert dead.lives.short == 1


def test_who_lives_well_is_restarted_at_once_however_often(dead):
    supervisor = Idle(ActorConfig(max_restarts=100), 1)
    assert {pause_after(dead, 2.0, supervisor) for _ in range(20)} == {0.0}


def test_the_budget_is_for_a_minute(dead):
    supervisor = Idle(ActorConfig(max_restarts=2), 1)
    for _ in range(2):
        pause_after(dead, 20.0, supervisor)
    with pytest.raises(RuntimeError, match=r"failed 3 times in 60 s; actors.max_restarts is 2"):
        pause_after(dead, 20.0, supervisor)


def test_starts_that_fail_in_a_row_end_the_run_however_long_they_take(dead):
    """As where each hangs until it is given up, so that no two fall into one minute."""
    supervisor = Idle(ActorConfig(max_restarts=2), 1)
    for _ in range(2):
        supervisor._record_death(dead, "did nothing for 120 s while it started")
        dead.lives.deaths[-1] -= 121.0
    with pytest.raises(RuntimeError, match=r"failed 3 times in a row at its start; actors\.max_"):
        supervisor._record_death(dead, "did nothing for 120 s while it started")


def test_deaths_of_more_than_a_minute_ago_are_forgotten(dead):
    dead.lives.deaths.extend([NOW - 61.0] * 5)
    pause_after(dead, 20.0, Idle(ActorConfig(max_restarts=2), 1))
    assert len(dead.lives.deaths) == 1
