"""Settings as plain data: scripts may give the forms of YAML, and wrong types are named."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from lrl.types import ConfigError

T = TypeVar("T")

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    str: ((str,), "text"),
    dict: ((Mapping,), "a mapping"),
    list: ((list, tuple), "a list"),
    Callable: ((Callable,), "a function or class"),  # type: ignore[dict-item]
    NoneType: ((NoneType,), "null"),
}


def build(kind: type[T], value: T | Mapping[str, Any], name: str) -> T:
    """Return the settings of a section, which may be given as a mapping, as in YAML.

    Args:
        kind: Dataclass of the section.
        value: The section, or a mapping of its settings.
        name: What the section is called, such as `env.atari`.

    Raises:
        ConfigError: It is neither, or a setting is unknown or missing.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r:.100}, but must be a mapping of its settings.")
    settings: Any = fields(kind)  # type: ignore[arg-type]
    check_known(value, [field.name for field in settings], name)
    for field in settings:
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if not has_default and field.name not in value:
            raise ConfigError(f"{name} is {dict(value)!r:.100}, but must have a {field.name}.")
    return kind(**value)


def check_section(name: str, value: object, kind: type | UnionType) -> None:
    """Check that a section is an instance of its class, or None where `Class | None` allows it.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, kind):
        allowed = _parts(kind)[0].__name__
        raise ConfigError(
            f"{name} is {value!r:.100}, but must be of the class {allowed}: {allowed}(...)"
        )


def check_known(given: Iterable[str], known: list[str], name: str) -> None:
    """Check that a section has the settings that are given for it.

    Raises:
        ConfigError: One is not known; the message says which might be meant.
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise ConfigError(f"{name}.{key} is no setting: {meant}")


def check_types(settings: Any, name: str) -> None:
    """Check that the settings of a dataclass are of the types that it declares.

    Raises:
        ConfigError: One is not.
    """
    for key, hint in _hints(type(settings)).items():
        value = getattr(settings, key)
        allowed = [get_origin(part) or part for part in _parts(hint)]
        known = [kind for kind in allowed if kind in _KINDS]
        if len(known) < len(allowed) or any(is_a(value, kind) for kind in known):
            continue
        words = " or ".join(_KINDS[kind][1] for kind in known)
        raise ConfigError(f"{name}.{key} is {value!r:.100}, but must be {words}.")


def check_count(name: str, value: object, least: int, meaning: str = "") -> None:
    """Check that a setting is a whole number, and not below the least that it may be.

    Args:
        name: What it is called.
        value: Its value.
        least: Its minimum.
        meaning: What that means, or why it is the least, for the message.

    Raises:
        ConfigError: It is not.
    """
    if not is_a(value, int):
        raise ConfigError(f"{name} is {value!r:.100}, but must be a whole number.")
    if int(value) < least:  # type: ignore[call-overload]
        raise ConfigError(f"{name} must be at least {least}{meaning}, got {value}")


def check_positive(name: str, value: object, otherwise: str = "") -> None:
    """Check that a setting is a finite number above 0.

    Args:
        name: What it is called.
        value: Its value.
        otherwise: What else it may be, or why it must be above 0, for the message.

    Raises:
        ConfigError: It is not.
    """
    if not (is_a(value, float) and 0.0 < value < float("inf")):  # type: ignore[operator]
        raise ConfigError(f"{name} must be a finite number above 0{otherwise}, got {value!r}")


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Refuse a value of an environment's setting, in words that say what is allowed."""
    if not condition:
        raise ConfigError(f"env.{name} is {value!r}, but must be {allowed}.")


def is_a(value: object, kind: Any) -> bool:
    """Return whether a value is of a kind; a truth value is no number."""
    if isinstance(value, (bool, np.bool_)):
        return kind is bool
    return isinstance(value, _KINDS[kind][0])


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
