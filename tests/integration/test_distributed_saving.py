"""Two ranks, of which the one that writes checkpoints cannot: they stay together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training_runs import environment_for_subprocess, process_group
from helpers.waiting import wait_for

from lrl.checkpoints.files import read_checkpoint

pytestmark = [pytest.mark.ddp, pytest.mark.slow]


@pytest.mark.parametrize(("until", "steps"), [(5, {"last": 8, "previous": 6}), (100, {})])
def test_ranks_go_on_together_when_saving_fails(tmp_path: Path, until: int, steps: dict[str, int]):
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.ddp_full_disk", str(tmp_path), str(until)],
        env=environment_for_subprocess(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output = process.communicate(timeout=120)[0]
    wait_for(lambda: not process_group(process.pid), "all processes gone", seconds=10)
    reports = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert [report["learner_steps"] for report in reports] == [8, 8], output
    assert [bool(report["error"]) for report in reports] == [not steps] * 2
    assert all("No space left on device" in report["error"] for report in reports if not steps)
    saved = (tmp_path / "run/version_0/checkpoints").glob("*.ckpt")
    assert {file.stem: read_checkpoint(file)["global_step"] for file in saved} == steps
