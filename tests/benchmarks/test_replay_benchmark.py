from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.parts import leaves, replay
from benchmark.parts.replay import REPETITIONS, main


def test_benchmark_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--rows", "640", "--calls", "2", "--json", str(tmp_path / "replay.json")])
    found = json.loads((tmp_path / "replay.json").read_text())["measurements"]
    sampled = [one for one in found if "sample" in one["section"]]
    assert [(one["section"], one["name"]) for one in sampled] == [
        (f"replay of 640: sample {batch}, {n}-step", name)
        for n in (1, 3)
        for batch in (32, 256)
        for name in ("uniform", "prioritised")
    ]
    assert all(len(one["values"]) == REPETITIONS for one in sampled)
    assert [one["ratio"] is None for one in sampled] == [True, False] * 4
    (row,) = (one["values"][0] for one in found if one["name"] == "a row")
    assert 7056 < row < 7500
    assert all(min(one["values"]) > 0 for one in found)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(found)


def test_buffers_of_several_sizes_are_sampled_by_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[int] = []
    monkeypatch.setattr(
        replay, "sample_and_update", lambda buffer, size: sampled.append(buffer.capacity)
    )
    sizes = ["640", "1280", "2560", "--frame_side", "8"]
    main(["--calls", "2", "--json", str(tmp_path / "replay.json"), "--rows", *sizes])
    found = json.loads((tmp_path / "replay.json").read_text())["measurements"]
    assert [one["section"] for one in found[::3]] == [
        *(f"growth: numpy copies {batch}" for batch in (32, 256)),
        *(
            f"growth: sample {batch}, {n}-step, {sampler}"
            for sampler in ("uniform", "prioritised")
            for n in (1, 3)
            for batch in (32, 256)
        ),
    ]
    a_turn = [640, 640, 1280, 1280, 2560, 2560]
    assert sampled[: 2 * len(a_turn)] == 2 * a_turn
    names = ["640 rows", "1,280 rows", "2,560 rows"]
    assert [one["name"] for one in found] == names * 10
    assert all(len(one["values"]) == REPETITIONS for one in found)
    assert [one["ratio"] is None for one in found] == [True, False, False] * 10
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(found)


def test_a_dict_of_one_leaf_is_compared_with_its_leaf(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "_seconds", {"AsItIs": 10.0, "OneLeaf": 11.0}.__getitem__)
    leaves.main(["--rows", "640", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()
    compared = [line.split(" | ")[:2] for line in lines if "one leaf" in line]
    assert [what for what, _ in compared] == [
        f"| {what}, {sampler}"
        for sampler in ("uniform", "prioritised")
        for what in ("append", "replay: sample 32", "replay: sample 256")
    ]
    assert lines[-1].endswith("| OneLeaf | 11.00 s | 11.00 to 11.00 | 1.10 |")
