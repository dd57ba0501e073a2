"""Several ranks, one of which dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training_runs import environment_for_subprocess, process_group, wait_for

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def ranks(group: int) -> dict[int, int]:
    """Processes of the script itself, by rank."""
    found = {}
    for pid in process_group(group):
        folder = Path(f"/proc/{pid}")
        if b"helpers.endless_run" in (folder / "cmdline").read_bytes():
            environment = (folder / "environ").read_bytes().split(b"\0")
            found[1 if b"LOCAL_RANK=1" in environment else 0] = pid
    return found


@pytest.mark.parametrize("lost", [0, 1])
def test_when_a_rank_is_killed_everything_ends(tmp_path, lost):
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.endless_run", str(tmp_path), "2"],
        env=environment_for_subprocess(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for((tmp_path / "ready").exists, "the first steps", seconds=200.0)
        found = ranks(process.pid)
        assert set(found) == {0, 1}
        os.kill(found[lost], signal.SIGKILL)
        wait_for(lambda: not process_group(process.pid), "the end of all", seconds=65.0)
    finally:
        for pid in process_group(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert process.returncode != 0
