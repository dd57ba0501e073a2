"""The recipes that come with lrl: `recipe:NAME` on the command line, and `lrl recipes`.

Nothing heavy is imported here: `lrl recipes` answers before Lightning could be loaded.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

PREFIX = "recipe:"
_INSTALLED = Path(__file__).parents[1] / "configs"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
"""Folder of all recipes: the wheel has it inside of the package, a clone at its root."""

_GROUPS = {
    "": "tasks",
    "algo": "algo: algorithms of papers, to go after a task",
    "protocol": "protocol: how Atari is played and scored, to go after the algorithm",
    "system": "system: where acting and learning happen, to go last",
}


def recipes() -> dict[str, Path]:
    """Return the file of each recipe by its name, such as `cartpole` or `algo/rainbow`."""
    paths = sorted(FOLDER.rglob("*.yaml"))
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in paths}


def find(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: Name of the recipe, with or without `recipe:`.

    Raises:
        ValueError: There is no such recipe; the message has the nearest names.
    """
    known, name = recipes(), name.removeprefix(PREFIX)
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name, known, 3, 0.4))
        meant = f"did you mean {near}? " if near else ""
        raise ValueError(f"there is no recipe {name!r}: {meant}`lrl recipes` lists all")
    return known[name]


def with_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with a path instead of each `recipe:NAME`.

    Args:
        arguments: Arguments as LightningCLI takes them: `--config VALUE`, `-c VALUE`, or either in
            one word. Values of other options stay as they are.

    Raises:
        ValueError: There is no such recipe.
    """
    translated = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        option, found, name = word.partition(PREFIX)
        is_value = not option and before in ("--config", "-c")
        is_both = option in ("--config=", "-c=", "-c")
        translated.append(f"{option}{find(name)}" if found and (is_value or is_both) else word)
    return translated


def answer(arguments: Sequence[str]) -> tuple[str, int]:
    """Return what `lrl recipes` prints, and the exit code.

    Args:
        arguments: Arguments after the command's name.
    """
    parser = _Parser(prog="lrl recipes", description="List, show or copy recipes.")
    parser.add_argument("name", nargs="?", help="Recipe to show; without one all are listed.")
    parser.add_argument("--copy", metavar="FILE", help="New file to copy the recipe to.")
    try:
        given = parser.parse_args(arguments)
        if given.name is None and given.copy is None:
            return overview(), 0
        if given.name is None:
            raise ValueError("--copy needs a recipe: lrl recipes NAME --copy FILE")
        text = find(given.name).read_text(encoding="utf-8")
        if given.copy is None:
            return text.rstrip(), 0
    except ValueError as error:
        return f"lrl: error: {error}", 2
    try:
        with Path(given.copy).expanduser().open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return f"lrl: error: --copy {given.copy} exists: choose another name", 2
    except OSError as error:
        return f"lrl: error: --copy {given.copy} cannot be written: {error.strerror}", 2
    return f"{given.copy} is a copy of {given.name}", 0


def overview() -> str:
    """Return the names of all recipes, each with its first line: what it trains or changes."""
    known = recipes()
    width = max(map(len, known))
    lines = []
    for group, title in _GROUPS.items():
        names = [name for name in known if name.rpartition("/")[0] == group]
        lines += [
            f"{title}:",
            *(f"  {name:<{width}}  {_first_line(known[name])}" for name in names),
        ]
        lines.append("")
    lines.append("lrl recipes NAME shows one, with --copy FILE it is copied. Later ones win:")
    return "\n".join([*lines, "  lrl fit --config recipe:pong --config recipe:algo/rainbow"])


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].strip("# .")


class _Parser(argparse.ArgumentParser):
    """Lets mistakes be answered with one line instead of usage and an exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
