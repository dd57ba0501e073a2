"""docs/existing_systems.md names tests that exist, every row once, and counts its states right."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from helpers.named_tests import REFERENCE, ROOT, functions_of

TEXT = (ROOT / "docs/existing_systems.md").read_text()
# Cells of each row: number, demand, state, proof and remarks.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if re.match(r"\| \d", line)
]


@pytest.mark.parametrize("reference", sorted(set(REFERENCE.findall(TEXT))), ids="::".join)
def test_every_test_named_exists(reference):
    path, name = reference
    assert name.startswith("test_")
    assert name in functions_of(path)


def test_every_path_named_exists():
    paths = re.findall(r"(?:tests|configs)/[\w/]+\.(?:py|yaml)", TEXT)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_no_reference_is_written_in_another_way():
    assert TEXT.count("::") == len(REFERENCE.findall(TEXT))


def test_every_row_is_there_once():
    assert [int(row[0]) for row in ROWS] == list(range(1, 71))


def test_states_are_what_the_rows_show_and_add_up():
    states = Counter(row[2].strip("*") for row in ROWS)
    proved, partly, left = states["proved"], states["partly"], states["open"]
    assert f"\n{proved} proved, {partly} partly, {left} open, of 70.\n" in TEXT
    assert proved + partly + left == 70
    for number, _, state, proof in ROWS:
        assert proof, number
        assert bool(REFERENCE.search(proof)) == (state != "**open**"), number
        assert state != "**partly**" or "Open: " in proof, number
