"""Tests that a page names as proof: `tests/path.py::test_name`."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"`(tests/[^`:]+)::(\w+)`")


@functools.cache
def functions_of(path: str) -> set[str]:
    """Return the names of a file's test functions, without importing it."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
