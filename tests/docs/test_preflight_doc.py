"""docs/preflight.md lists every check of lrl/preflight, in its own words, and a test of it."""

from __future__ import annotations

import importlib
import pkgutil
import re

from helpers.named_tests import REFERENCE, ROOT, functions_of

from lrl import preflight

TEXT = (ROOT / "docs/preflight.md").read_text()
ROWS = [line.split(" | ") for line in TEXT.splitlines() if line.startswith("| `check_")]


def checks() -> dict[str, str]:
    """Return what each check checks, the first line of its docstring, by its name."""
    found = {}
    for module in pkgutil.iter_modules(preflight.__path__, "lrl.preflight."):
        for name, member in vars(importlib.import_module(module.name)).items():
            if name.startswith("check_") and member.__module__ == module.name:
                found[name] = member.__doc__.partition("\n")[0]
    return found


def test_every_check_is_listed_in_its_own_words():
    assert {row[0][3:-1]: f"Check that {row[1]}." for row in ROWS} == checks()


def test_every_check_is_asked():
    code = "".join(path.read_text() for path in (ROOT / "lrl").rglob("*.py"))
    asked = set(re.findall(r"(?<!def )\b(check_\w+)\(", code))
    assert checks().keys() - asked == set()


def test_every_check_is_proved():
    for row in ROWS:
        ((path, name),) = REFERENCE.findall(row[-1])
        assert name in functions_of(path)
