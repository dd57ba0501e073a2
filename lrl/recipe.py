"""Recipes: a class and its arguments as plain data, so that a part can be saved and sent."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lrl.types import ConfigError

_TRUSTED_PACKAGES = ("lrl", "torch")
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Recipe:
    """A class path and keyword arguments of plain types: pickles, and fits in a checkpoint.

    Users pass a class or a `functools.partial` of one; YAML gives a `class_path` with `init_args`.

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
        cls, part: Recipe | Mapping[str, Any] | Callable[..., Any], name: str = "part"
    ) -> Recipe:
        """Describe a class, a partial of a class, or what `as_dict` returned.

        Args:
            part: What to describe.
            name: The setting's name, for error messages.

        Raises:
            ConfigError: It is something else, a local class, or an argument is not plain data.
        """
        if isinstance(part, Recipe):
            return part
        if isinstance(part, Mapping):
            return cls._from_mapping(part, name)
        arguments: dict[str, Any] = {}
        target: Any = part
        if isinstance(part, functools.partial):
            # jsonargparse wraps the class in helper functions; the class is among the arguments.
            candidates = [part.func, *part.args]
            target = next((item for item in candidates if isinstance(item, type)), part.func)
            arguments = dict(part.keywords)
        if not isinstance(target, type) or "<locals>" in target.__qualname__:
            raise ConfigError(
                f"{name} must be a class at the top level of a module, or a partial of one, "
                f"got {part!r}"
            )
        return cls(f"{target.__module__}.{target.__qualname__}", _plain(arguments, name))

    @classmethod
    def _from_mapping(cls, mapping: Mapping[str, Any], name: str) -> Recipe:
        path = str(mapping["class_path"])
        module = path.rpartition(".")[0]
        if path.partition(".")[0] not in _TRUSTED_PACKAGES and module not in sys.modules:
            raise ConfigError(f"{name} is a {path}: import {module} before loading the checkpoint")
        return cls(path, dict(mapping.get("init_args", {})))

    def as_dict(self) -> dict[str, Any]:
        """Return `class_path` and `init_args`, as YAML and checkpoints hold them."""
        return {"class_path": self.class_path, "init_args": dict(self.init_args)}

    def __call__(self, *args: Any) -> Any:
        """Build the part from the arguments only known at run time, followed by its own."""
        module, _, attribute = self.class_path.rpartition(".")
        return getattr(importlib.import_module(module), attribute)(*args, **self.init_args)


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, name) for item in value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    raise ConfigError(
        f"{name} must hold numbers, strings, booleans, lists and dicts only, so that checkpoints "
        f"load without running code; got {value!r}"
    )
