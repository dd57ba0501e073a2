"""The benchmark of the README's script: how it is run, and what is kept of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmark.scores import script

EXAMPLE = """
import sys
from pathlib import Path
if __name__ == "__main__":
    text = "seed_everything(0) seed=0"
    extra = 0.0 if hasattr(sys.modules["__main__"], "__file__") else 0.5
    print(text, file=sys.stderr)
    print("mean return of 100 episodes:", 400.0 + int(text[-1]) + extra)
"""


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(EXAMPLE)
    return path


@pytest.mark.parametrize("way", script.WAYS)
def test_the_script_runs_with_its_seed_from_everywhere(way, example, monkeypatch):
    clock = SimpleNamespace(perf_counter=iter([10.0, 12.5]).__next__)
    monkeypatch.setattr(script, "time", clock)
    row = script.run(way, 7, example)
    assert (row.way, row.seed) == (way, 7)
    assert row.score == (407.5 if way == "notebook" else 407.0)
    assert row.seconds == 2.5


def test_a_script_that_fails_is_shown(example):
    example.write_text(EXAMPLE.replace("mean return", "nothing"))
    with pytest.raises(RuntimeError, match=r"seed_everything\(1\) seed=1"):
        script.run("file", 1, example)


def test_runs_are_kept_and_those_of_other_ways_stay(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "EXAMPLE", example)
    monkeypatch.setattr(script, "run", lambda way, seed: script.Row(way, seed, 470.0 + seed, 20.0))
    path = tmp_path / "rows.csv"
    for ways in (["file"], ["notebook", "file"]):
        seeds = ["--seeds", "4", "5", "6"]
        arguments = ["script", "--csv", str(path), *seeds, "--ways", *ways]
        monkeypatch.setattr(sys, "argv", arguments)
        script.main()
    assert len(script.read(path)) == 6
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| file | 474.0, 475.0, 476.0 | 2 of 3 | 20 |",
        "| notebook | 474.0, 475.0, 476.0 | 2 of 3 | 20 |",
    ]


def test_the_recorded_runs_solve_cartpole():
    root = Path(__file__).parents[2]
    rows = script.read(root / "docs/script.csv")
    assert {(row.way, row.seed) for row in rows} == {(w, s) for w in script.WAYS for s in range(5)}
    assert all(row.score >= script.BAR and row.seconds <= script.SECONDS for row in rows)
    assert script.table(rows) in (root / "docs/benchmarks.md").read_text()
