"""The rules of the house: who may know whom, and how large a room may be."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lrl"
FILES = {".".join(("lrl", *p.relative_to(PACKAGE).with_suffix("").parts)): p
         for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Return the modules of lrl that a file imports, for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & FILES.keys()


def test_no_two_files_import_each_other_for_types_or_otherwise():
    try:
        TopologicalSorter({name: imports(path) for name, path in FILES.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_tests_live_in_the_room_of_what_they_test():
    """At their root: those of what stands at the package's, and of the house itself."""
    here = Path(__file__).parent
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    more = {"benchmarks", "configs", "data", "docs", "helpers", "integration", "learning"}
    found = {path.name for path in here.iterdir() if path.is_dir()} - {"__pycache__"}
    assert found - more <= rooms
    assert {path.stem for path in here.glob("*.py")} == {
        "conftest", "test_house", "test_imports", "test_schedules",
    }  # fmt: skip


def test_one_module_lives_at_the_root_and_no_room_has_more_than_twelve_files():
    rooms = Counter(path.parent.name for path in FILES.values())
    root = {path.name for path in FILES.values() if path.parent == PACKAGE}
    assert root == {"__main__.py", "schedules.py"}
    assert {room: files for room, files in rooms.items() if files > 12} == {}


def test_the_tests_that_every_python_runs_exist():
    script = (PACKAGE.parent / ".ci" / "pythons").read_text(encoding="utf-8")
    rooms = re.findall(r'^rooms="(.+)"$', script, re.MULTILINE)
    assert rooms
    assert [name for name in rooms[0].split() if not (Path(__file__).parent / name).exists()] == []
