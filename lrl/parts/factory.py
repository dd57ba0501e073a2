"""Environments made by a function or class of the user's, which is known by its import path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from lrl.parts import safety
from lrl.types import ConfigError

_MAIN = "__main__"
_ELSEWHERE = "actors and checkpoints know it only by its path"


def path_of(factory: str | Callable[..., Any]) -> str:
    """Return the import path of a factory, which may be given itself.

    Raises:
        ConfigError: It cannot be found again by a path: it is a lambda, a function within another
            one, a partial or another object.
    """
    if isinstance(factory, str):
        if not all(factory.rpartition(".")[::2]):
            raise ConfigError(
                f"env.factory is {factory!r}, but must be a full import path such as "
                "'my_module.make_env'."
            )
        return factory
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if getattr(sys.modules.get(str(module)), name, None) is not factory:
        raise ConfigError(
            f"env.factory is {factory!r}, but must be a function or class at the top level of a "
            f"module, since {_ELSEWHERE}: write `def make_env(...)` there, and give its arguments "
            "in env.kwargs."
        )
    return f"{module}.{name}"


def find(path: str) -> Callable[..., Any]:
    """Import a factory.

    Raises:
        ConfigError: There is none, or `--safe` is on: a function may do anything.
    """
    if safety.is_enabled():
        raise ConfigError(
            f"env.factory names {path!r}, but --safe allows environments by their ids only: leave "
            "--safe out if you trust whoever wrote it"
        )
    module, _, name = path.rpartition(".")
    factory = getattr(import_module(module), name, None)
    if factory is None and module == _MAIN:
        raise ConfigError(
            f"env.factory is {path!r}, a function of the script that was started, which this "
            f"process cannot find, and {_ELSEWHERE}: put it into a module of its own."
        )
    if not callable(factory):
        raise ConfigError(
            f"env.factory is {path!r}, but {module} has no function or class {name!r}."
        )
    return factory
