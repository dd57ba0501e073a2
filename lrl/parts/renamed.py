"""Settings and arguments that had another name in version 0.1.0."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lrl.types import ConfigError

RENAMED = {
    "actor_learner.eval_interval_learner_steps": "actor_learner.eval_period_learner_steps",
    "actor_learner.save_interval_learner_steps": "actor_learner.save_period_learner_steps",
    "actor_learner.video_interval_learner_steps": "actor_learner.video_period_learner_steps",
    "data.actors.groups": "data.inference.groups_per_actor",
    "data.inference.broadcast_period_seconds": "data.inference.sync_period_seconds",
    "data.inference.delay_seconds": "data.inference.max_batch_delay_seconds",
    "data.rate.error_buffer": "data.rate.max_samples_ahead",
    "data.rate.min_size_env_steps": "data.rate.warm_up_env_steps",
    "model.compile_loss": "model.updater",
    "interval_learner_steps": "period_learner_steps",  # an argument of several callbacks
}
"""New keys by old ones."""

T = TypeVar("T")


def new_name(key: str) -> str | None:
    """Return the new name of an old setting, or None.

    Args:
        key: Whole key as in YAML, or the name of an argument.

    Example:
        >>> new_name("data.rate.error_buffer"), new_name("delay_seconds"), new_name("capacity")
        ('data.rate.max_samples_ahead', 'max_batch_delay_seconds', None)
    """
    for old, new in RENAMED.items():
        section, _, name = old.rpartition(".")
        if key == old:
            return new
        if key == name:
            return new.removeprefix(f"{section}.")
    return None


def knows_old_names(cls: type[T]) -> type[T]:
    """Let a class, as its decorator, answer the old name of an argument with the new one."""
    init: Callable[..., None] = cls.__init__

    @functools.wraps(init)
    def checked(self: T, *args: Any, **arguments: Any) -> None:
        for name in arguments:
            if new := new_name(name):
                raise ConfigError(f"{cls.__name__}: {name} is called {new} now")
        init(self, *args, **arguments)

    cls.__init__ = checked
    return cls


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole configuration that an earlier version saved, with its settings' new names."""
    config = copy.deepcopy(dict(config))
    for old, new in RENAMED.items():
        section, name = _section(config, old)
        if name in section:
            value = section.pop(name)
            there, name = _section(config, new)
            there[name] = value
    callbacks = (config.get("trainer") or {}).get("callbacks")
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        if isinstance(callback, dict) and str(callback.get("class_path")).startswith("lrl."):
            arguments = callback.get("init_args") or {}
            callback["init_args"] = {new_name(name) or name: v for name, v in arguments.items()}
    model = config.get("model") or {}
    if isinstance(model.get("updater"), bool):  # it said whether the loss was compiled
        model["updater"] = "compiled" if model["updater"] else "eager"
    data = config.get("data") or {}
    if (data.get("inference") or {}).get("num_servers") == 0:
        data["inference"] = None
    return config


def _section(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the mapping that holds a setting, empty where there is none, and its name in it."""
    *path, name = key.split(".")
    for part in path:
        inner = config.get(part)
        config = inner if isinstance(inner, dict) else {}
    return config, name
