"""Fork server and resource tracker are stopped, or do not answer: nobody waits without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
from helpers.training_runs import environment_for_subprocess, kill_group, process_group
from helpers.waiting import wait_for

from lrl.actors.manager import ActorError
from lrl.processes import helpers
from lrl.types import RowKind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SERVER: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
TRACKER: Any = resource_tracker._resource_tracker  # pyright: ignore[reportAttributeAccessIssue]


def stop(pid: int) -> None:
    def is_stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)  # again: a manager's thread may have woken it meanwhile
        return state(pid) == "T"

    wait_for(is_stopped, "it being stopped")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def has_ended(pid: int) -> bool:
    try:
        return state(pid) == "Z"
    except FileNotFoundError:
        return True


def end_server() -> None:
    if (pid := SERVER._forkserver_pid) is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def sockets_by_name() -> list[str]:
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [name for name in (str(link.readlink()) for link in links) if "listener-" in name]


def test_an_actor_that_dies_comes_back_though_the_fork_server_was_stopped(learner, caplog):
    made = learner(num_actors=1)
    made.take_until(made.all_acted, "first steps")
    (first,) = made.manager.processes
    stop(SERVER._forkserver_pid)
    os.kill(first.pid, signal.SIGKILL)
    made.take_until(lambda: RowKind.GAP in made.column(0, "kind"), "rows of the restarted actor")
    assert made.manager.restarts == 1
    assert "killed by signal 9" in caplog.text


def test_processes_start_though_both_helpers_were_stopped(learner):
    learner(num_actors=1).stop()
    stop(SERVER._forkserver_pid)
    stop(TRACKER._pid)
    made = learner(num_actors=1)
    made.take_until(made.all_acted, "first steps")
    assert state(TRACKER._pid) != "T"


def test_actors_end_though_the_fork_server_was_stopped(learner):
    made = learner(num_actors=2)
    made.take_until(made.all_acted, "first steps")
    stop(SERVER._forkserver_pid)
    made.stop()
    assert [process.exitcode for process in made.manager.processes] == [0, 0]


def test_a_fork_server_that_cannot_be_woken_is_killed_and_named(learner, monkeypatch):
    """As one that a debugger holds; the next one is another."""
    learner(num_actors=1).stop()
    hung = SERVER._forkserver_pid
    stop(hung)
    with monkeypatch.context() as patched:
        patched.setattr(helpers, "wake", lambda: None)
        with pytest.raises(ActorError) as caught:
            learner(num_actors=1, timeout_seconds=1.0)
    assert "actor 0 cannot be started" in str(caught.value)
    assert "the fork server did not answer and was killed" in str(caught.value)
    made = learner(num_actors=1)
    made.take_until(made.all_acted, "first steps")
    assert SERVER._forkserver_pid != hung


def test_actors_of_a_fork_server_that_was_killed_are_killed_and_come_back(learner, caplog):
    """They live, but count as ended: two in one place would take each other's answers."""
    made = learner(num_actors=2)
    made.take_until(made.all_acted, "first steps")
    before = [process.pid for process in made.manager.processes]
    end_server()
    made.take_until(lambda: made.manager.restarts == 2, "both being replaced")
    wait_for(lambda: all(has_ended(pid) for pid in before), "the end of those before")
    assert caplog.text.count("has lost its fork server and is killed") == 2


def test_an_actor_whose_end_nobody_tells_is_given_up(learner, monkeypatch):
    made = learner(num_actors=1)
    made.take_until(made.all_acted, "first steps")
    monkeypatch.setattr(helpers, "wake", lambda: None)
    monkeypatch.setattr("lrl.processes.supervised_process._END_SECONDS", 0.5)
    stop(SERVER._forkserver_pid)
    made.manager.stop(timeout=0.5)
    assert made.manager.processes[0].exitcode is None
    monkeypatch.undo()
    helpers.wake()
    wait_for(lambda: made.manager.processes[0].exitcode is not None, "the fork server's word")


def test_the_fork_servers_socket_has_no_name(learner, tmp_path, monkeypatch):
    """What has none cannot stay behind; processes start through it all the same."""
    learner(num_actors=1).stop()
    end_server()
    forkserver.ensure_running()  # by somebody else, who knows nothing of our socket
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        end_server()
        made = learner(num_actors=2)
        made.take_until(made.all_acted, "first steps")
        made.stop()
        assert list(tmp_path.iterdir()) == []
        assert len(sockets_by_name()) == 1


SCRIPT = """
import multiprocessing, os, signal, time
from multiprocessing import forkserver, resource_tracker
from lrl.processes import helpers
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=time.sleep, args=(100,), daemon=True)
    helpers.start(child, "forkserver", 60.0)
    for pid in (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid):
        os.kill(pid, signal.SIGSTOP)
"""


def test_helpers_that_are_stopped_at_the_end_of_a_script_end_with_it(tmp_path):
    """With a child that multiprocessing kills, and whose end the fork server has to tell."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment_for_subprocess(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=200)
        assert (process.returncode, said) == (0, "")
        wait_for(lambda: not process_group(process.pid), "the end of all")
    finally:
        kill_group(process.pid)


def test_no_thread_stays_from_a_start(learner):
    learner(num_actors=2)  # has returned from the start just now
    assert "lrl-helpers-awake" not in [thread.name for thread in threading.enumerate()]
