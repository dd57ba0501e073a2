from __future__ import annotations

import json
from pathlib import Path

import pytest

from lrl.benchmark.replay import main


def test_benchmark_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--rows", "640", "--calls", "2", "--json", str(tmp_path / "replay.json")])
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["settings"]["rows"] == 640
    assert 7056 < report["figures"]["bytes_per_row"] < 7500
    ratios = [name for name in report["figures"] if name.endswith("_times_uniform")]
    assert ratios == [f"prioritized_n{n}_batch{b}_times_uniform" for n in (1, 3) for b in (32, 256)]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(report["figures"])
    assert all(value > 0 for value in report["figures"].values())
