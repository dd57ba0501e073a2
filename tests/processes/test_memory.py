from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay import Replay
from lrl.types import ConfigError, EnvSpec


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n"}


def test_this_machine_has_some() -> None:
    available = available_bytes()
    assert available is None or available > 2**20


def test_meminfo_alone(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO)
    assert available_bytes(tmp_path) == 1000 * 1024


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


def test_version_2_group_of_a_container(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory.max": "500000\n",
        "sys/fs/cgroup/memory.current": "400000\n",
        "sys/fs/cgroup/memory.stat": "anon 100\ninactive_file 50000\n",
        "proc/self/cgroup": "0::/\n",
    }
    write(tmp_path, MEMINFO | group)
    assert available_bytes(tmp_path) == 150_000


def test_every_ancestor_of_a_group_may_set_the_limit(tmp_path: Path) -> None:
    group = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "10\n",
        "sys/fs/cgroup/a/memory.max": "3000\n",
        "sys/fs/cgroup/a/memory.current": "1000\n",
    }
    write(tmp_path, MEMINFO | group)
    assert available_bytes(tmp_path) == 2000


@pytest.mark.parametrize("folder", ["", "job/"])
def test_version_1_group(tmp_path: Path, folder: str) -> None:
    group = {
        "proc/self/cgroup": "5:cpu:/job\n4:memory,hugetlb:/job\n",
        f"sys/fs/cgroup/memory/{folder}memory.limit_in_bytes": "5000\n",
        f"sys/fs/cgroup/memory/{folder}memory.usage_in_bytes": "4000\n",
        f"sys/fs/cgroup/memory/{folder}memory.stat": "total_inactive_file 100\n",
    }
    write(tmp_path, MEMINFO | group)
    assert available_bytes(tmp_path) == 1100


def test_over_the_limit_is_zero(tmp_path: Path) -> None:
    group = {"sys/fs/cgroup/memory.max": "5", "sys/fs/cgroup/memory.current": "9"}
    write(tmp_path, MEMINFO | group)
    assert available_bytes(tmp_path) == 0


def test_sizes_for_people() -> None:
    assert [format_bytes(size) for size in (12, 3400, 5.6e6)] == ["12 B", "3.40 kB", "5.60 MB"]


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused(device):
    spec = EnvSpec.box((2,), "float32", num_actions=2)
    with pytest.raises(
        ConfigError, match=f"replay.device '{device}' cannot be used here, 'cpu' can"
    ):
        Replay(spec, 100, 1, device=device)


# --- Keeping what was freed -----------------------------------------------------------------

FAULTS = """
import resource, sys
import numpy as np
from lrl.processes.memory import keep_freed_memory
print(keep_freed_memory() if sys.argv[1:] else None)
def touch():
    [np.ones(2**23, np.uint8) for _ in range(8)]  # 16,384 pages at once
for _ in range(3):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str, **environment: str) -> tuple[str, int]:
    """Return what `keep_freed_memory` says, and the pages handed out again in ten allocations."""
    output = subprocess.run(
        [sys.executable, "-c", FAULTS, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    said, count = output.split()
    return said, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone can keep it")
def test_freed_memory_is_not_handed_out_page_by_page_again():
    (_, without), (said, count) = faults(), faults("keep")
    assert said == "True"
    assert count < 100 < without / 10  # fewer than 163,840 where pages are huge


def test_what_the_user_set_stays():
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="65536")[0] == "False"
