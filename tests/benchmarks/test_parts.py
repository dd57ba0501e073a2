"""The benchmark of all parts: its tables, its file, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmark.parts import acting, learner, replay, transport
from benchmark.parts.__main__ import _GROWING, main
from lrl.bench.measure import Measurement


@pytest.fixture(autouse=True)
def restored_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def instant(monkeypatch):
    """Stands for the measuring itself, which each part's own tests look at; notes what is asked."""
    asked: list[Any] = []

    def measure(name: str, sides: dict[str, Any], *numbers: Any) -> list[Measurement]:
        asked.append((name, *numbers))
        return [Measurement(name, side, "ms", (1.0, 2.0)) for side in sides]

    def fill(rows: int, calls: int, spec: Any = replay.ATARI) -> list[Measurement]:
        asked.append((rows, calls, spec.observation[""].shape))
        sections = (f"replay of {rows}: {what}" for what in ("append", "sample 32, 1-step"))
        return [Measurement(section, "uniform", "per second", (3.0,)) for section in sections]

    def grow(sizes: tuple[int, ...], calls: int, spec: Any) -> list[Measurement]:
        asked.append((sizes, calls, spec.observation[""].shape))
        return [Measurement("growth", f"{rows} rows", "batches/s", (3.0,)) for rows in sizes]

    def send(rows: int) -> list[transport.Result]:
        asked.append(rows)
        return [transport.Result("to array", "rows", 5.0, 7.0)]

    monkeypatch.setattr(learner, "measure", measure)
    monkeypatch.setattr(replay, "measure", fill)
    monkeypatch.setattr(replay, "measure_growth", grow)
    monkeypatch.setattr(transport, "run", send)

    monkeypatch.setattr(acting, "measure_side", lambda *_: {"steps/s": 9.0})
    return asked


def test_all_parts_are_measured(tmp_path, capsys, instant):
    path = tmp_path / "parts.json"
    main(["--rounds", "2", "--json", str(path)])
    out = capsys.readouterr().out
    written = json.loads(path.read_text())
    found = written["measurements"]
    assert {one["section"] for one in found if one["unit"] == "ms"} == set(learner.WORKLOADS)
    assert sum(one["section"].startswith("acting, ") for one in found) == 5 * 2
    assert [one["values"] for one in found if one["section"] == "transport"] == [[5.0, 5.0]]
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 * 6 + len(found)  # a table for each section
    assert written["machine"]["processor"] in out
    assert (written["machine"]["torch_threads"], written["rounds"], written["seconds"]) == (1, 2, 1)
    assert "torch_threads 1, rounds 2, seconds 1" in out.splitlines()[0]
    rows = [asked[0] for asked in instant if isinstance(asked, tuple)]
    assert [one for one in rows if not isinstance(one, str)] == [100_000, _GROWING]


def test_sections_can_be_chosen(capsys, instant):
    main(["--sections", "transport", "growth", "--seconds", "0.5"])
    assert instant[:5] == [50_000] * 5
    assert instant[5:] == [(_GROWING, 150, (42, 42))]
    assert capsys.readouterr().out.count("| growth |") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "0 is too few: it must be at least 1"),
        (["--seconds", "-1"], "-1 is no length of time: it must be above 0"),
        (["--sections", "everything"], "invalid choice: 'everything'"),
        (["--threads", "100000"], "100000 is too many: it must be at most 1024"),
        (["--sections"], "expected at least one argument"),
        (["--json", ""], "is a folder: name a file in it"),
        (["--json", "nowhere/bench.json"], "nowhere/bench.json: there is no folder nowhere"),
    ],
)
def test_a_mistake_measures_nothing(capsys, instant, arguments, words):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert words in capsys.readouterr().err
    assert not instant
