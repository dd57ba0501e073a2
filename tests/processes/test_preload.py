"""The fork server ends with the learner, also while it imports."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from helpers.training_runs import environment_for_subprocess, kill_group, process_group
from helpers.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can be asked for it")

IMPORTING = """
import multiprocessing, time
from multiprocessing import forkserver
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["lrl.processes.preload", "helpers.endless_import"])
forkserver.ensure_running()
time.sleep(60)
"""

OUTLIVING = """
import multiprocessing, threading, time
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["lrl.processes.preload"])
process = context.Process(target=time.sleep, args=(60,), daemon=True)
thread = threading.Thread(target=process.start)
thread.start()
thread.join()
time.sleep(1)
print(process.is_alive(), flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def learner(script: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a script in a process group of its own; gives it with its first word."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment_for_subprocess(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            kill_group(process.pid)


def test_a_learner_killed_meanwhile_leaves_nothing():
    with learner(IMPORTING) as (process, said):
        assert said == "importing"
        assert len(process_group(process.pid)) > 1
        process.kill()
        process.wait()
        wait_for(lambda: not process_group(process.pid), "all gone", seconds=10.0)


def test_actors_outlive_the_thread_that_started_them():
    with learner(OUTLIVING) as (_, said):
        assert said == "True"
