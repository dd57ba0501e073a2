"""What a test may leave behind: processes, threads, file descriptors and named shared memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Set
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

_PROC, _SHARED_MEMORY = Path("/proc"), Path("/dev/shm")


@dataclass(frozen=True)
class Inventory:
    """What this process and its descendants hold at one moment."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    segments: frozenset[str]


def take_inventory() -> Inventory:
    """Look at what there is now, after collecting garbage and finished children."""
    gc.collect()
    multiprocessing.active_children()  # joins the finished ones
    helpers = _helper_processes()
    return Inventory(
        frozenset((descendants(os.getpid()) | _orphans()) - helpers),
        frozenset(threading.enumerate()),
        frozenset(_descriptors()),
        named_segments(),
    )


def left_since(before: Inventory, patience_seconds: float = 5.0) -> list[str]:
    """Describe what is there now but was not before; what is just going away gets some time."""
    deadline = time.monotonic() + patience_seconds
    while True:
        found = _compare(before, take_inventory())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def named_segments() -> frozenset[str]:
    """Return the names in /dev/shm, whoever made them."""
    return frozenset(path.name for path in _SHARED_MEMORY.glob("*"))


def segments_since(before: Set[str], patience_seconds: float = 30.0) -> list[str]:
    """Return names in /dev/shm that are new and used by no process outside this family.

    What is just coming or going gets some time: other programs may do so at any moment. Names of
    one that was killed are used by nobody, and stay until its helpers have started and ended.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        family = descendants(os.getpid()) | _orphans()
        new = named_segments() - before
        found = new - _mapped_elsewhere(new, family) if new else new
        if not found or time.monotonic() > deadline:
            return sorted(found)
        time.sleep(0.02)


def _compare(before: Inventory, now: Inventory) -> list[str]:
    segments = now.segments - before.segments
    foreign = _mapped_elsewhere(segments, now.processes) if segments else set()
    return [
        *(f"process {pid}: {_command(pid)}" for pid in sorted(now.processes - before.processes)),
        *(f"thread {thread.name}" for thread in now.threads - before.threads),
        *(f"descriptor {fd}: {name}" for fd, name in sorted(now.descriptors - before.descriptors)),
        *(f"shared memory /dev/shm/{name}" for name in sorted(segments - foreign)),
    ]


def _helper_processes() -> set[int]:
    """Return multiprocessing's own processes, which stay until the interpreter ends."""
    pids = (
        getattr(forkserver._forkserver, "_forkserver_pid", None),  # pyright: ignore[reportAttributeAccessIssue]
        getattr(resource_tracker._resource_tracker, "_pid", None),  # pyright: ignore[reportAttributeAccessIssue]
    )
    return {pid for pid in pids if pid is not None}


def _helper_descriptors() -> set[int]:
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    tracker: Any = resource_tracker._resource_tracker  # pyright: ignore[reportAttributeAccessIssue]
    found = {server._forkserver_alive_fd, tracker._fd}
    address = Path(server._forkserver_address or "")
    if address.parent == Path("/proc/self/fd"):  # see lrl.processes.helpers
        found.add(int(address.name))
    return found - {None}


def descendants(ancestor: int) -> set[int]:
    """Return the living descendants of a process; zombies do not count."""
    family = _family()
    found, frontier = set(), {ancestor}
    while frontier:
        frontier = {pid for pid, (parent, _) in family.items() if parent in frontier}
        found |= frontier
    return found


def _orphans() -> set[int]:
    """Return the processes of this one's group whose parents have ended: another took them over."""
    family, own = _family(), os.getpgrp()
    members = {pid for pid, (_, group) in family.items() if group == own}
    return {pid for pid in members if family[pid][0] not in members} - {os.getpid()}


def _family() -> dict[int, tuple[int, int]]:
    """Return the parent and the process group of every living process."""
    found: dict[int, tuple[int, int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # "pid (command) state parent group ...", where a command may hold spaces and brackets
            fields = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if fields[0] not in "ZX":
                found[int(entry.name)] = int(fields[1]), int(fields[2])
    return found


def _descriptors() -> list[tuple[int, str]]:
    helpers = _helper_descriptors()
    found = []
    for path in (_PROC / "self/fd").glob("*"):
        with contextlib.suppress(OSError):  # the one of this very listing is gone by now
            if int(path.name) not in helpers:
                found.append((int(path.name), str(path.readlink())))
    return found


def _mapped_elsewhere(segments: Set[str], family: Set[int]) -> set[str]:
    """Return the segments that a process outside this family uses: they are not this test's."""
    found: set[str] = set()
    for entry in _PROC.glob("[0-9]*"):
        if int(entry.name) not in family | {os.getpid()}:
            with contextlib.suppress(OSError):
                maps = (entry / "maps").read_text()
                found |= {name for name in segments if f"{_SHARED_MEMORY}/{name}" in maps}
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_text().replace("\0", " ").strip()
    return "gone"
