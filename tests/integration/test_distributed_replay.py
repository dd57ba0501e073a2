"""Two ranks: each saves and restores a replay of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.training_runs import environment_for_subprocess

from lrl.checkpoints.saved_replay import read_manifest

pytestmark = [pytest.mark.ddp, pytest.mark.slow]


def fit(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """Run the script; return what each rank reported, and what was printed."""
    result = subprocess.run(
        [sys.executable, "-m", "helpers.ddp_replay_run", str(folder), *arguments],
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    reports = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]
    return reports, result.stderr


def test_each_rank_goes_on_with_its_own_replay(tmp_path):
    fit(tmp_path, "20")
    checkpoints = tmp_path / "run" / "version_0" / "checkpoints"
    manifests = [
        read_manifest(checkpoints / "replay" / f"rank-{rank}" / "manifest-20.json")
        for rank in range(2)
    ]
    assert manifests[0].saved_id == manifests[1].saved_id
    assert manifests[0].state.sha256 != manifests[1].state.sha256
    resumed, _ = fit(tmp_path, "30", str(checkpoints / "last.ckpt"))
    for rank in resumed:
        assert rank["first"][1] == 21 * 8
        assert rank["last"][1] == 30 * 8
        assert rank["first"][0] - rank["offset"] < 200  # not filled again
    (checkpoints / "replay" / "rank-1" / "manifest-20.json").unlink()
    resumed, printed = fit(tmp_path, "30", str(checkpoints / "last.ckpt"))
    assert "rank-1/manifest-20.json is missing" in printed
    assert resumed[0]["first"][1] == 21 * 8
    assert resumed[1]["first"][0] - resumed[1]["offset"] >= 200
