"""Settings of an environment: plain frozen dataclasses, readable from YAML and picklable."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import gymnasium

from lrl.envs.protocols import ATARI_PREFIX, GYMNASIUM, AtariConfig
from lrl.parts.factory import path_of
from lrl.parts.settings import build, check_known, check_types, require
from lrl.types import ConfigError

SECTIONS = {"atari": (ATARI_PREFIX, AtariConfig)}
"""Kinds with settings of their own: the section in `EnvConfig`, how ids begin, the class."""
_OF_GYMNASIUM = ("kwargs", "wrappers", "frame_stack", "max_episode_steps", "action_masks")
"""Settings that other kinds than Gymnasium's need not read."""


_NORMALIZERS = (".NormalizeObservation", ".NormalizeReward")


@dataclass(frozen=True)
class WrapperConfig:
    """One `gymnasium.Wrapper` around each single environment.

    The fields are not called class_path and init_args, which jsonargparse keeps for itself.
    """

    path: str
    """Import path of the wrapper, such as gymnasium.wrappers.RescaleObservation."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the wrapper after the environment, by name."""

    def __post_init__(self) -> None:
        check_types(self, "env.wrappers")
        allowed = "a full import path such as 'gymnasium.wrappers.ClipReward'"
        require("." in self.path, "wrappers.path", self.path, allowed)
        if self.path.startswith("gymnasium.") and self.path.endswith(_NORMALIZERS):
            raise ConfigError(
                f"env.wrappers has {self.path}, whose statistics are of one environment and in no "
                "checkpoint: evaluation and resumed runs would have others. Scale by constants, "
                "observations with gymnasium.wrappers.RescaleObservation"
            )
        if self.path.startswith("gymnasium.") and self.path.endswith(".RecordVideo"):
            raise ConfigError(
                f"env.wrappers has {self.path}, whose files every process would write over the "
                "others': leave it out. lrl.callbacks.EpisodeVideo films evaluations, and "
                "`lrl play` makes a film of a checkpoint"
            )


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how an agent sees it.

    Scripts may give `wrappers` and `atari` as YAML does, as mappings of their settings, and the
    factory itself instead of its path. What depends on the kind is asked of `lrl.envs.kind_of`.
    """

    id: str = "CartPole-v1"
    """Gymnasium id, `module:Name-v0` to import a module first, or `ALE/<Game>-v5` for Atari, where
    only the game is taken from the id and the protocol from `atari`. CartPole needs no extra. With
    a factory it is a name for logs and stamps; left alone, that is the factory's path."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor or factory, by name (not for Atari)."""
    wrappers: list[WrapperConfig] = field(default_factory=list)
    """Wrappers around each single environment, innermost first (not for Atari)."""
    frame_stack: int = 1
    """Frames in one observation, along a new first axis, newest last; an episode's first stack
    repeats its first frame. 1 (no stack) suits environments with the Markov property. Atari has its
    own: atari.frame_stack."""
    max_episode_steps: int | None = None
    """Environment steps after which an episode is truncated; null keeps the environment's own
    limit. Atari has its own: atari.max_frames_per_episode."""
    reward_clip: float | None = None
    """Training rewards are clipped to [-reward_clip, reward_clip]; evaluation and statistics are
    raw. Null trains on raw rewards; Mnih et al. 2015 use 1 for Atari."""
    action_masks: bool = False
    """The environment gives info["action_mask"] with every reset and step, 1 for allowed actions:
    others are never taken, and no target counts on them (not for Atari)."""
    atari: AtariConfig | None = None
    """The Atari protocol, of ids that start with ALE/ only; null is its defaults there."""
    factory: str | Callable[..., Any] | None = None
    """Import path of a function or class that returns a `gymnasium.Env`, a new one at each call,
    such as my_module.make_env, or of a subclass of `lrl.envs.EnvKind`; `kwargs` are its arguments.
    Null makes the environment by `id`."""

    @property
    def kind(self) -> str:
        """Name of the kind of environments in lrl that it is, `gymnasium` with any factory."""
        return next((name for name in SECTIONS if getattr(self, name) is not None), GYMNASIUM)

    @property
    def source(self) -> str:
        """What the environment is made by, for messages: `env.id 'CartPole-v1'`."""
        name = "id" if self.factory is None else "factory"
        return f"env.{name} {getattr(self, name)!r}"

    def __post_init__(self) -> None:
        check_types(self, "env")
        given = enumerate(self.wrappers)
        wrappers = [build(WrapperConfig, each, f"env.wrappers[{index}]") for index, each in given]
        object.__setattr__(self, "wrappers", wrappers)
        self._name_factory()
        require(self.frame_stack >= 1, "frame_stack", self.frame_stack, "at least 1")
        steps, clip = self.max_episode_steps, self.reward_clip
        require(steps is None or steps >= 1, "max_episode_steps", steps, "null or at least 1")
        valid_clip = clip is None or 0 < clip < math.inf
        require(valid_clip, "reward_clip", clip, "null or a finite number above 0")
        for name in SECTIONS:
            self._take_section(name)

    def setting(self, name: str) -> Any:
        """Return a setting by its dotted name, such as `atari.frame_skip`, or None."""
        value: Any = self
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        return value

    def overridden(self, changes: Mapping[str, Any]) -> EnvConfig:
        """Return these settings with some changed.

        Args:
            changes: The settings that differ, nested as in YAML. `atari` and `kwargs` are changed
                setting by setting, lists as a whole. With another `id` or `factory` the `kwargs`
                begin empty: those of one constructor are not another's.

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        check_known(changes, [setting.name for setting in fields(self)], "env")
        changes = {**changes}
        if changes.get("factory") is not None:
            changes["factory"] = path_of(changes["factory"])
        settings = dict(vars(self))
        if any(changes.get(name, settings[name]) != settings[name] for name in ("id", "factory")):
            settings.update(id=EnvConfig.id, factory=None, kwargs={})
        for name in changes.keys() & {*SECTIONS, "kwargs"}:
            if isinstance(changes[name], Mapping):
                own = settings[name]
                own = own if isinstance(own, Mapping) else vars(own) if own else {}
                changes[name] = {**own, **changes[name]}
        return EnvConfig(**{**settings, **changes})

    def refuse_unread(self, read: Collection[str], why: str) -> None:
        """Refuse all settings of Gymnasium's environments but those that its kind reads."""
        usual = EnvConfig()
        for name in _OF_GYMNASIUM:
            value, unset = getattr(self, name), getattr(usual, name)
            allowed = name in read or value == unset
            require(allowed, name, value, f"{unset!r} for {self.id}, {why}")

    def _name_factory(self) -> None:
        if self.factory is None:
            return
        path = path_of(self.factory)
        object.__setattr__(self, "factory", path)
        if self.id == EnvConfig.id:
            object.__setattr__(self, "id", path)
        is_taken = self.id.startswith(ATARI_PREFIX) or ":" in self.id
        is_taken |= self.id in gymnasium.registry
        allowed = "a name of your own, not that of another environment, since env.factory is"
        require(not is_taken, "id", self.id, f"{allowed} {path!r}")

    def _take_section(self, section: str) -> None:
        """Give an environment the settings of its kind; refuse those that would do nothing."""
        prefix, kind = SECTIONS[section]
        given = getattr(self, section)
        settings = build(kind, {} if given is None else given, f"env.{section}")
        if self.id.rpartition(":")[2].startswith(prefix):
            object.__setattr__(self, section, settings)
            self.refuse_unread((), f"whose settings are those of env.{section}")
            return
        object.__setattr__(self, section, None)
        for option in fields(kind):
            name, value = f"{section}.{option.name}", getattr(settings, option.name)
            instead = f"{option.default!r} for {self.id}: env.{section} is for ids that start with"
            require(value == option.default, name, value, f"{instead} {prefix}")


def without_unused(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's settings as plain data without the sections that it has none of.

    Args:
        settings: Plain data, of any version of lrl: all once held the section `atari`.
    """
    kind = EnvConfig(id=settings["id"]).kind
    optional = {"factory", *SECTIONS}
    unused = {name for name in optional if settings.get(name) is None} | (SECTIONS.keys() - {kind})
    return {name: value for name, value in settings.items() if name not in unused}
