"""docs/reliability.md names tests that exist, every fault once, and the figures that were taken."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from helpers.named_tests import REFERENCE, ROOT, functions_of
from helpers.training_runs import environment_for_subprocess

from benchmark.chaos.figures import block, read
from benchmark.chaos.scenarios import SCENARIOS

TEXT = (ROOT / "docs/reliability.md").read_text()
FIGURES = read(ROOT / "docs/reliability.json")
# Cells of each row: number, fault, what happens, and proof.
ROWS = [
    [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
    for line in TEXT.splitlines()
    if re.match(r"\| \d+ \|", line)
]


@pytest.mark.parametrize("reference", sorted(set(REFERENCE.findall(TEXT))), ids="::".join)
def test_every_test_named_exists(reference):
    path, name = reference
    assert name.startswith("test_")
    assert name in functions_of(path)


def test_no_reference_is_written_in_another_way():
    assert TEXT.count("::") == len(REFERENCE.findall(TEXT))


def test_every_fault_is_there_once_with_a_test_or_the_reason_why_not():
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    proved = [row for row in ROWS if REFERENCE.search(row[3])]
    assert len(proved) >= 45
    assert [row[0] for row in ROWS if row not in proved and "not built: " not in row[2]] == []


def test_the_figures_are_those_that_were_taken():
    assert block(FIGURES) in TEXT
    assert {line["scenario"] for line in FIGURES["figures"]} <= set(SCENARIOS)


@pytest.mark.slow
def test_the_example_passes(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_example.py"],
        cwd=tmp_path,
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
