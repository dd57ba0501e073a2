"""What the other libraries need."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib.util import find_spec

_MODULES = {"cleanrl": "stable_baselines3", "sb3": "stable_baselines3", "tianshou": "tianshou"}
"""CleanRL's recipe takes Stable-Baselines3's wrappers of Atari, as CleanRL does."""


def check_installed(parser: argparse.ArgumentParser, sides: Iterable[str]) -> None:
    """End with a sentence if a side cannot run, before the others have taken their time."""
    for side in sides:
        module = _MODULES.get(side.partition(",")[0])
        if module is not None and find_spec(module) is None:
            parser.error(
                f"argument --sides: {side} needs {module}: run "
                "`pip install -c constraints.txt -e '.[bench]'`, or leave it out"
            )
