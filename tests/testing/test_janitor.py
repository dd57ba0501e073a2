"""The janitor fixture must see what is left behind, and nothing else."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.waiting import wait_for

from benchmark.leftovers import left_since, named_segments, segments_since, take_inventory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /dev/shm")


def sleep_long() -> None:
    time.sleep(60)


def leave_process() -> Callable[[], object]:
    process = subprocess.Popen(["sleep", "60"])
    return lambda: (process.kill(), process.wait())


def leave_thread() -> Callable[[], object]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten", daemon=True)
    thread.start()
    return lambda: (stop.set(), thread.join())


def leave_orphan() -> Callable[[], object]:
    """Its parent, a shell, is gone; an environment's helpers are such when their actor dies."""
    shell = ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]
    orphan = int(subprocess.run(shell, capture_output=True, check=True).stdout)
    return lambda: os.kill(orphan, signal.SIGKILL)


def leave_descriptor() -> Callable[[], object]:
    reader, writer = os.pipe()
    os.close(writer)
    return lambda: os.close(reader)


def leave_segment() -> Callable[[], object]:
    descriptor, path = tempfile.mkstemp(dir="/dev/shm")
    os.close(descriptor)
    return Path(path).unlink


@pytest.mark.parametrize(
    ("leave", "message"),
    [
        (leave_process, "process"),
        (leave_orphan, "process"),
        (leave_thread, "thread forgotten"),
        (leave_descriptor, "descriptor"),
        (leave_segment, "shared memory"),
    ],
)
def test_reports_exactly_what_is_left(leave: Callable, message: str):
    before = take_inventory()
    clean_up = leave()

    def is_reported_alone() -> bool:
        found = left_since(before, patience_seconds=0.0)
        return len(found) == 1 and found[0].startswith(message)

    try:
        wait_for(is_reported_alone, message)  # another worker's orphans may be going away
    finally:
        clean_up()
    assert left_since(before) == []


def test_children_of_the_fork_server_count_but_the_server_does_not():
    before = take_inventory()
    process = multiprocessing.get_context("forkserver").Process(target=sleep_long)
    process.start()

    def is_reported_alone() -> bool:
        found = left_since(before, patience_seconds=0.0)
        processes = [line.split(":")[0] for line in found if line.startswith("process")]
        return processes == [f"process {process.pid}"]

    try:
        wait_for(is_reported_alone, "the process")
    finally:
        process.kill()
        process.join()
        process.close()
    assert left_since(before) == []


MAPPED = """
import mmap, os, sys
if os.fork() == 0:
    os.setsid()
    file = open(sys.argv[1], "r+b")
    memory = mmap.mmap(file.fileno(), 64)
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_a_segment_that_another_program_uses_is_not_counted_until_it_is_left():
    before = named_segments()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as segment:
        segment.truncate(64)
        name = Path(segment.name).name
        assert segments_since(before, patience_seconds=0.0) == [name]
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", MAPPED, segment.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.wait() == 0
        assert process.stdout is not None
        assert process.stdin is not None
        other = int(process.stdout.readline())  # an orphan in a group of its own
        assert segments_since(before) == []
        process.stdin.close()
        process.stdout.close()
        while Path(f"/proc/{other}/maps").exists() and Path(f"/proc/{other}/maps").read_text():
            time.sleep(0.01)
        assert segments_since(before, patience_seconds=0.0) == [name]
    assert segments_since(before) == []
