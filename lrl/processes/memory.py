"""How much memory this process may still take: asked before anything large is allocated."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_KEEPING = {-3: 2**25, -1: 2**29, -2: 2**26}
"""Options of glibc's `mallopt` in bytes: a block above the first (its largest value) is mapped by
itself; free memory above the second goes back; so much is asked for beyond what is needed."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory in bytes that can still be taken, or None where the system does not say.

    It is the smallest of `MemAvailable` in /proc/meminfo (Linux), of what this process's own limits
    leave (`ulimit -v` and `ulimit -d`) and, for every control group of versions 1 and 2 that holds
    the process, its limit minus its usage. Page cache that the kernel gives back under pressure
    (`inactive_file`) is not counted as usage.

    Args:
        root: Where /proc and /sys are found; tests pass a folder of their own.
    """
    candidates = [_meminfo(root), *_own_limits(root), *_cgroup_v2(root), *_cgroup_v1(root)]
    known = [candidate for candidate in candidates if candidate is not None]
    return max(0, min(known)) if known else None


def format_bytes(count: float) -> str:
    """Write a size for a person.

    Example:
        >>> format_bytes(7_500_000_000)
        '7.50 GB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def _meminfo(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _own_limits(root: Path) -> list[int]:
    used = {}
    for line in _read(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmSize", "VmData"):
            used[name] = int(value.split()[0]) * 1024
    left = []
    for line in _read(root / "proc/self/limits").splitlines():
        for limit, usage in (("Max address space", "VmSize"), ("Max data size", "VmData")):
            soft = line.removeprefix(limit).split()[:1]
            if line.startswith(limit) and soft[0].isdigit():  # else "unlimited"
                left.append(int(soft[0]) - used.get(usage, 0))
    return left


def _cgroup_v2(root: Path) -> list[int | None]:
    return [
        _headroom(folder, "memory.max", "memory.current", "inactive_file")
        for folder in control_groups(root, root / "sys/fs/cgroup", controller="")
    ]


def _cgroup_v1(root: Path) -> list[int | None]:
    return [
        _headroom(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in control_groups(root, root / "sys/fs/cgroup/memory", controller="memory")
    ]


def control_groups(root: Path, mount: Path, controller: str) -> list[Path]:
    """List the control group of this process and its ancestors: each of them may set a limit.

    Args:
        root: Where /proc is found.
        mount: Where the groups are.
        controller: Of version 1; empty for version 2.
    """
    folders = [mount]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = mount / path.lstrip("/")
            folders += [group, *(parent for parent in group.parents if mount in parent.parents)]
    return folders


def _headroom(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():  # no such group, or its limit is "max"
        return None
    cache = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cache_name:
            cache = int(value)
    return int(limit) - (int(usage) - cache)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, for what it allocates next; glibc alone can.

    Otherwise it is given back to the system, which hands it out again page by page: at every
    learner step, where tensors are larger than 128 kB. `MALLOC_TRIM_THRESHOLD_` and its like, in
    the environment, are left as they are.

    Returns:
        Whether anything was set.
    """
    chosen = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}
    if chosen & os.environ.keys():
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return min(set_option(option, size) for option, size in _KEEPING.items()) == 1
