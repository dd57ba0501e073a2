from __future__ import annotations

from pathlib import Path

import pytest

from lrl.memory import available_bytes, format_bytes
from lrl.replay import ReplayBuffer
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
    spec = EnvSpec((2,), "float32", num_actions=2)
    with pytest.raises(ConfigError, match=f"replay.device is '{device}', which cannot be used"):
        ReplayBuffer(spec, 100, 1, device=device)
