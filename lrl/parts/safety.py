"""`lrl --safe`: configurations and checkpoints may name the code of a few packages only.

Without it a configuration is as powerful as a script, since `class_path` may name any class that
Python can import. docs/security.md says what is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lrl.types import ConfigError

PACKAGES = ("lrl", "lightning", "torch.optim")
"""What may be named by its import path; a dotted name stands for all below it."""

WRAPPERS = ("lrl", "gymnasium.wrappers")
"""Where wrappers of environments may come from."""

ENVIRONMENTS = ("lrl", "gymnasium", "ale_py", "minatar")
"""Whose environments may be named by their ids."""

_VARIABLE = "LRL_SAFE"
_trusted: set[str] = set()
_CALLS_ANYTHING = ("lightning.pytorch.callbacks.lambda_function", "lrl.parts.recipe")
_READS_ELSEWHERE = ("://", "::")


def enable() -> None:
    """Restrict this process and all that it starts, for good."""
    os.environ[_VARIABLE] = "1"


def is_enabled() -> bool:
    """Return whether code is restricted; the variable LRL_SAFE=1 does what `--safe` does."""
    return os.environ.get(_VARIABLE, "") not in ("", "0")


def trust(module: str) -> None:
    """Let checkpoints name functions of a module as factories of environments, in this process.

    It is what `--modules` does, beside importing the module. Parts and environments that are
    classes need no trust: what they are is checked before they are built.
    """
    _trusted.add(module)


def is_trusted(module: str) -> bool:
    """Return whether `trust` was asked for a module."""
    return module in _trusted


def parser_settings() -> dict[str, Any]:
    """Return what `jsonargparse.set_parsing_settings` has to be told.

    jsonargparse then checks every import path that a value holds before it imports anything, and
    once more where the object was defined, so that `lrl.parts.recipe.sys` is found to be `sys`.
    """
    if not is_enabled():
        return {}
    return {
        "import_path_denylist": ["*", *_CALLS_ANYTHING],
        "import_path_allowlist": list(PACKAGES),
        "instantiate_subclass_spec_in_any": False,
        "config_read_mode_fsspec_enabled": False,
    }


def check_path(path: str, key: str, packages: Sequence[str] = PACKAGES) -> None:
    """Check that an import path may be named.

    Args:
        path: Such as `lrl.networks.MLPEncoder`, a class's or a module's.
        key: The setting that holds it, for the message.
        packages: What is allowed, with all below it.

    Raises:
        ConfigError: It may not, with `--safe`.
    """
    if is_enabled() and not any(f"{path}.".startswith(f"{package}.") for package in packages):
        raise refusal(key, path, packages)


def check_entry_point(entry_point: object, key: str, value: str) -> None:
    """Check that an environment's class, as Gymnasium's registry names it, may be built.

    Args:
        entry_point: `module:Class`, the class itself or another callable, or None.
        key: The setting that names the environment.
        value: Its value.

    Raises:
        ConfigError: It may not, with `--safe`.
    """
    if entry_point is None or not is_enabled():
        return
    named = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    if str(named).partition(".")[0].partition(":")[0] not in ENVIRONMENTS:
        raise refusal(key, value, ENVIRONMENTS)


def check_values(config: Mapping[str, Any]) -> None:
    """Check that no setting is an address, of which fsspec opens kinds that run code.

    Raises:
        ConfigError: One is, with `--safe`.
    """
    if not is_enabled():
        return
    for key, value in strings(config):
        if any(mark in value for mark in _READS_ELSEWHERE):
            raise ConfigError(f"{key} is {value!r}, but --safe allows files of this machine only")


def refusal(key: str, value: str, packages: Sequence[str] = PACKAGES) -> ConfigError:
    """Return the error for code that may not be named."""
    allowed = ", ".join(f"{package}.*" for package in packages)
    return ConfigError(
        f"{key} names {value!r}, but --safe allows {allowed} only: leave --safe out if you trust "
        "whoever wrote it"
    )


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings in nested settings, each with its dotted key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from strings(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from strings(item, f"{key}[{index}]")
