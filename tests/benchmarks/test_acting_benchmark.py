from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmark.parts.acting import Side, main, sides, table


def test_local_inference_comes_before_central_in_as_many_processes() -> None:
    assert sides([1, 2], [1, 2], [1], [4]) == [
        Side(1),
        Side(2),
        Side(1, 1, 1, 4),
        Side(1, 2, 1, 4),
        Side(3),
        Side(2, 1, 1, 4),
        Side(2, 2, 1, 4),
    ]


@pytest.mark.parametrize(
    ("side", "envs_per_actor", "processes"),
    [(Side(3), 11, 3), (Side(5), 6, 5), (Side(1, 2, 1), 32, 2), (Side(6, 2, 2), 6, 8)],
)
def test_every_side_has_about_32_environments(
    side: Side, envs_per_actor: int, processes: int
) -> None:
    assert side.config.envs_per_actor == envs_per_actor
    assert side.processes == processes


def test_table_rounds_and_leaves_out_what_is_missing() -> None:
    lines = table([{"of": "a", "count": 3, "us": 1234.6}, {"of": "b", "count": 4, "us": math.nan}])
    assert lines.splitlines() == [
        "| of | count | us |",
        "| --- | --- | --- |",
        "| a | 3 | 1,235 |",
        "| b | 4 |  |",
    ]


@pytest.mark.slow  # starts servers and actors, which import torch
def test_benchmark_prints_its_tables_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.parts.acting.BATCHES", ((2, 4),))
    path = tmp_path / "acting.json"
    narrow = ["--networks", "mlp", "--actors", "1", "--groups", "2"]
    brief = ["--seconds", "1", "--repeats", "1", "--requests", "5"]
    main([*narrow, *brief, "--json", str(path)])
    report = json.loads(path.read_text())
    acting = {(line["inference"], line["actors"]): line for line in report["acting"]}
    assert list(acting) == [("local", "1 x 32"), ("local", "2 x 16"), ("central", "1 x 32")]
    central, local = acting["central", "1 x 32"], acting["local", "2 x 16"]
    assert (central["processes"], central["groups"]) == (2, 2)
    assert central["batch"] == 16
    assert central["times local"] == pytest.approx(central["steps/s"] / local["steps/s"])
    full, lone = report["requests"]
    assert (full["requests"], lone["requests"]) == (2, 1)
    assert full["overhead us"] < full["p50 us"]
    assert lone["p50 us"] >= 5000  # the delay, in vain
    acting_table, requests_table = capsys.readouterr().out.strip().split("\n\n")
    assert acting_table.count("| mlp |") == 3
    assert requests_table.count("| mlp | 2 x 4 |") == 2
