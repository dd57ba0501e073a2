"""Recipes: a class and its arguments as plain data, so that a part can be saved and sent."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lrl.parts import safety
from lrl.types import ConfigError

TRUSTED_PACKAGES = ("lrl", "torch")
"""Whose classes a checkpoint may name as parts without their being imported before."""
_PLAIN = (bool, int, float, str, type(None))  # exactly: their subclasses do not load safely


@dataclass(frozen=True)
class Recipe:
    """A class path and keyword arguments of plain types: pickles, and fits in a checkpoint.

    Users pass a class or a `functools.partial` of one; YAML gives a `class_path` with `init_args`.
    Arguments may be parts themselves, which the class gets as recipes.

    Example:
        >>> recipe = Recipe.of(functools.partial(dict, size=3))
        >>> recipe.as_dict()
        {'class_path': 'builtins.dict', 'init_args': {'size': 3}}
        >>> recipe([("name", "a")])
        {'name': 'a', 'size': 3}
    """

    class_path: str
    init_args: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        part: Recipe | Mapping[str, Any] | Callable[..., Any],
        name: str = "part",
        base: type = object,
    ) -> Recipe:
        """Describe a class, a partial of a class, or what `as_dict` returned.

        Args:
            part: What to describe.
            name: The setting's name, for error messages.
            base: What the class must be or inherit from. It is checked before anything is called,
                because a checkpoint may come from anyone.

        Raises:
            ConfigError: It is something else, a local class, or an argument is not plain data.
        """
        if isinstance(part, Recipe):
            target, arguments = part.find(), part.init_args
        elif isinstance(part, Mapping):
            target, arguments = _find(part, name), part.get("init_args", {})
        else:
            target, arguments = _unwrap(part)
        # Only such a class can be found again by its path.
        if not isinstance(target, type) or "." in target.__qualname__:
            raise ConfigError(
                f"{name} must be a class at the top level of a module, or a partial of one with "
                f"keyword arguments, got {part!r}"
            )
        if not issubclass(target, base):
            raise ConfigError(
                f"{name} must be a subclass of {base.__module__}.{base.__qualname__}, "
                f"got {target.__module__}.{target.__qualname__}"
            )
        return cls(f"{target.__module__}.{target.__qualname__}", _plain(arguments, name))

    def as_dict(self) -> dict[str, Any]:
        """Return `class_path` and `init_args`, as YAML and checkpoints hold them."""
        return {"class_path": self.class_path, "init_args": _as_data(self.init_args)}

    def find(self) -> Any:
        """Import the class."""
        safety.check_path(self.class_path, "class_path")
        module, _, attribute = self.class_path.rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    def is_as_by_default(self, kind: type) -> bool:
        """Return whether it is a class with the arguments that the class has without any.

        The command line gives all arguments, whether somebody set them or not.
        """
        defaults = inspect.signature(kind).parameters
        return self.class_path == f"{kind.__module__}.{kind.__qualname__}" and all(
            name in defaults and value == defaults[name].default
            for name, value in self.init_args.items()
        )

    def __call__(self, *args: Any) -> Any:
        """Build the part from the arguments only known at run time, followed by its own."""
        return self.find()(*args, **self.init_args)


@contextlib.contextmanager
def blamed_on(name: str) -> Iterator[None]:
    """Turn what the constructor of a part raises into a `ConfigError` that names the setting."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} cannot be built: {type(error).__name__}: {error}") from error


def _unwrap(part: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the class that would be called, and its keyword arguments."""
    if not isinstance(part, functools.partial):
        return part, {}
    if isinstance(part.func, type):  # positional arguments come at run time
        return (None if part.args else part.func), part.keywords
    # jsonargparse wraps the class in helper functions; the class is among the arguments.
    target = next((item for item in part.args if isinstance(item, type)), None)
    return target, part.keywords


def _find(mapping: Mapping[str, Any], name: str) -> Any:
    """Return the class that a checkpoint names, from a module that is loaded or trusted."""
    path = str(mapping.get("class_path"))
    safety.check_path(path, name)
    module, _, attribute = path.rpartition(".")
    if path.partition(".")[0] not in TRUSTED_PACKAGES and module not in sys.modules:
        raise ConfigError(
            f"{name} is a {path}: import {module} before loading the checkpoint (on the command "
            f"line: --modules {module})"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name} is a {path}, which cannot be imported: {error}") from error


def _as_data(value: Any) -> Any:
    """Return arguments with the recipes among them as `as_dict` returns them."""
    if isinstance(value, Recipe):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _as_data(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_data, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value


def _is_part(value: Any) -> bool:
    """Return whether an argument is itself a part, in one of the forms that `Recipe.of` takes."""
    if isinstance(value, Mapping):
        return "class_path" in value and value.keys() <= {"class_path", "init_args"}  # pyright: ignore[reportUnknownMemberType]
    return isinstance(value, (Recipe, functools.partial, type))


def _plain(value: Any, name: str) -> Any:
    if _is_part(value):
        return Recipe.of(value, name)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(_plain(item, name) for item in value)
    if isinstance(value, Mapping):
        return {_plain(key, name): _plain(item, f"{name}.{key}") for key, item in value.items()}
    raise ConfigError(
        f"{name} must hold numbers, strings, booleans, lists, tuples and dicts only, so that "
        f"checkpoints load without running code; got {value!r}"
    )
