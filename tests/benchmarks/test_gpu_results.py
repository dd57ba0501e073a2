"""What a run on a GPU found stands in the docs as it was measured; the script names what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.gpu.results import collect, main, section, written

ROOT = Path(__file__).parents[2]
COLUMNS = "step,speed/learner_steps_per_second,speed/env_steps_per_second,eval/return_mean"


def test_the_docs_say_what_was_measured():
    found = json.loads((ROOT / "docs/gpu.json").read_text())
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert written(page, found) == page
    assert "H200" in section(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "machine.txt").write_text(2 * "Some GPU, 580.1, 80 GiB\n" + "2.11.0\n")
    (tmp_path / "tests.txt").write_text(".....\n5 passed, 1 skipped in 9.50s\n")
    rows = ["500,250,4000,", "1000,500,6000,", "750,,,-3.5", "1500,500,8000,", "1501,,,18.5"]
    (tmp_path / "metrics.csv").write_text("\n".join([COLUMNS, *rows]))
    summary = {
        "learner_steps": 1500, "seconds": 6.5, "best_return_mean": 18.5, "outcome": "finished"
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_the_age_of_weights_is_how_long_they_had_learnt(folder: Path):
    found = collect(folder)
    assert (found["gpu"], found["tests"]) == ("Some GPU", "5 passed, 1 skipped in 9.50s")
    assert found["ladder"] is None
    pong = found["pong"]
    assert [each["seconds"] for each in pong["evaluations"]] == [2.5, 4.0]
    assert pong["training_seconds"] == 4.0
    assert pong["frames_per_second"] == 4 * 7000
    text = section(found)
    assert "the first of 18 or more was 18.5, after 4 s of learning" in text
    (folder / "metrics.csv").write_text(f"{COLUMNS}\n500,250,4000,\n500,,,17.9")
    assert "none reached 18" in section(collect(folder))


def test_a_run_that_ended_early_has_what_it_had(folder: Path):
    early = COLUMNS.removesuffix(",eval/return_mean")
    (folder / "metrics.csv").write_text(f"{early}\n500,250,4000")
    assert "No evaluation of Pong ended." in section(collect(folder))
    (folder / "metrics.csv").write_text("step,train/lr\n500,0.1")
    assert collect(folder)["pong"] is None
    assert "5 passed" in section(collect(folder))


@pytest.mark.parametrize("closing", ["5 errors in 3.1s", "1 error in 0.50s", "2 failed in 1.5s"])
def test_the_tests_closing_line_is_found_when_none_passed(folder: Path, closing: str):
    (folder / "tests.txt").write_text(f"EEEEE\nERROR test_on_gpu.py - no GPU\n{closing}\n")
    assert collect(folder)["tests"] == closing


def test_a_stage_that_failed_is_left_out(folder: Path):
    for name in ("tests.txt", "metrics.csv"):
        (folder / name).unlink()
    found = collect(folder)
    assert (found["tests"], found["pong"]) == (None, None)
    assert section(found).count("\n") == 2


def test_the_section_is_replaced_and_the_figures_are_kept(folder: Path):
    page = folder / "page.md"
    page.write_text("before\n<!-- gpu -->\nold\n<!-- end of gpu -->\nafter\n")
    main([str(folder), "--json", str(folder / "gpu.json"), "--page", str(page)])
    text = page.read_text()
    assert text.startswith("before\n<!-- gpu -->\nMachine: one Some GPU")
    assert text.endswith("<!-- end of gpu -->\nafter\n")
    assert "\nold\n" not in text
    assert json.loads((folder / "gpu.json").read_text()) == collect(folder)


@pytest.mark.slow
def test_the_script_goes_on_after_a_stage_that_fails(tmp_path: Path):
    """Without a GPU: the updates say so, and Pong is asked for a device that is not there."""
    ended = subprocess.run(
        [ROOT / "benchmark/gpu/run.sh", tmp_path, "ladder", "pong"],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "ladder: exit 2 after" in ended.stdout
    assert "--device is cuda, but torch finds no GPU here" in ended.stdout
    assert "pong: exit 2 after" in ended.stdout
