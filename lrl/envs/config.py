"""Settings of an environment: plain frozen dataclasses, readable from YAML and picklable."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import gymnasium

from lrl.envs.factory import path_of
from lrl.envs.settings import build, check_known, check_types
from lrl.types import ConfigError

ATARI_PREFIX = "ALE/"
FIVE_MINUTES_FRAMES = 18_000
"""Limits of an episode in use: 5 and 30 minutes of play, at 60 emulator frames a second."""
THIRTY_MINUTES_FRAMES = 108_000


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"env.{name} is {value!r}, but must be {allowed}.")


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
        """Check that the class has a module."""
        check_types(self, "env.wrappers")
        _require(
            "." in self.path,
            "wrappers.path",
            self.path,
            "a full import path such as 'gymnasium.wrappers.ClipReward'",
        )


@dataclass(frozen=True)
class AtariConfig:
    """The Atari protocol, used by ids that start with `ALE/` only.

    Every option of the backend (`ale_py.AtariVectorEnv`) is stated here, none is inherited from
    the version suffix of the id. The default is deterministic, with 0 to 29 frames without action
    at the start and game over as the only end. `lrl.envs.protocols` names the usual combinations.
    Rewards come raw: `EnvConfig.reward_clip` clips them for training. The autoreset mode is no
    option: streams need NEXT_STEP. docs/environments.md compares the options.
    """

    frame_skip: int = 4
    """Emulator frames per environment step; their rewards are summed (Mnih et al. 2015)."""
    max_pool: bool = True
    """Take the maximum of the last two frames of a step, against flicker (Mnih et al. 2015). Not
    with frame_skip 1."""
    image_height: int = 84
    """Height of a frame in pixels, by area interpolation; 84 as in Mnih et al. 2015, at most the
    screen's (210, in some games up to 250)."""
    image_width: int = 84
    """Width of a frame in pixels, by area interpolation; 84 as in Mnih et al. 2015, at most 160."""
    grayscale: bool = True
    """Luminance (0.299 R + 0.587 G + 0.114 B) instead of a last axis with 3 colours."""
    frame_stack: int = 4
    """Frames in one observation, newest last; an episode's first stack is filled up with zeros."""
    repeat_action_probability: float = 0.0
    """Chance per frame that the previous action is repeated ("sticky"; 0.25 in Machado 2018)."""
    noop_max: int = 30
    """An episode starts after 0 to noop_max - 1 emulator frames without action, drawn evenly; 0 for
    none."""
    fire_reset: bool = False
    """Press FIRE for one frame at an episode's start, in place of one without action. Off, as in
    Mnih 2015 and Machado 2018: after a lost life the agent has to press it itself anyway."""
    terminal_on_life_loss: bool = False
    """Training targets end at a lost life (Mnih et al. 2015). The game goes on, and evaluation and
    episode statistics never see it. Off, as recommended by Machado et al. 2018. Games without lives
    have none to lose."""
    full_action_space: bool = False
    """All 18 actions instead of those the game uses."""
    max_frames_per_episode: int = THIRTY_MINUTES_FRAMES
    """Emulator frames after which an episode is truncated, no-op frames not counted: 108000 (30
    minutes of play) or 18000 (5 minutes, Mnih et al. 2015) in most publications."""

    def __post_init__(self) -> None:
        """Check types and ranges."""
        check_types(self, "env.atari")
        positive = ("frame_skip", "frame_stack", "max_frames_per_episode")
        for name in (*positive, "image_height", "image_width"):
            _require(getattr(self, name) >= 1, f"atari.{name}", getattr(self, name), "at least 1")
        sticky = self.repeat_action_probability
        _require(0 <= sticky < 1, "atari.repeat_action_probability", sticky, "in [0, 1)")
        self._refuse_what_would_do_nothing()

    def _refuse_what_would_do_nothing(self) -> None:
        _require(
            not self.max_pool or self.frame_skip > 1,
            "atari.max_pool",
            self.max_pool,
            "false with frame_skip 1, where a step has one frame",
        )
        fewest = 3 if self.fire_reset else 2
        _require(
            self.noop_max == 0 or self.noop_max >= fewest,
            "atari.noop_max",
            self.noop_max,
            f"0 (none) or at least {fewest}: 0 to noop_max - 1 frames are drawn"
            + (", and fire_reset takes one of them" if self.fire_reset else ""),
        )
        limit = self.max_frames_per_episode
        _require(
            limit >= self.frame_skip,
            "atari.max_frames_per_episode",
            limit,
            f"at least frame_skip, {self.frame_skip}: no step would be complete",
        )


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how an agent sees it.

    Scripts may give `wrappers` and `atari` as YAML does, as mappings of their settings, and the
    factory itself instead of its path.
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
    atari: AtariConfig = AtariConfig()
    """The Atari protocol, used by ids that start with ALE/ only."""
    factory: str | Callable[..., Any] | None = None
    """Import path of a function or class that returns a `gymnasium.Env`, a new one at each call,
    such as my_module.make_env; `kwargs` are its arguments. Null makes the environment by `id`."""

    @property
    def is_atari(self) -> bool:
        """Whether the environment is one of ale-py's games."""
        return self.id.rpartition(":")[2].startswith(ATARI_PREFIX)

    @property
    def source(self) -> str:
        """What the environment is made by, for messages: `env.id 'CartPole-v1'`."""
        name = "id" if self.factory is None else "factory"
        return f"env.{name} {getattr(self, name)!r}"

    def __post_init__(self) -> None:
        """Take the forms of YAML; check types and ranges, and that nothing would be ignored."""
        check_types(self, "env")
        object.__setattr__(self, "atari", build(AtariConfig, self.atari, "env.atari"))
        wrappers = [
            build(WrapperConfig, wrapper, f"env.wrappers[{index}]")
            for index, wrapper in enumerate(self.wrappers)
        ]
        object.__setattr__(self, "wrappers", wrappers)
        self._name_factory()
        _require(self.frame_stack >= 1, "frame_stack", self.frame_stack, "at least 1")
        steps, clip = self.max_episode_steps, self.reward_clip
        _require(steps is None or steps >= 1, "max_episode_steps", steps, "null or at least 1")
        valid_clip = clip is None or 0 < clip < math.inf
        _require(valid_clip, "reward_clip", clip, "null or a finite number above 0")
        legacy = re.fullmatch(r"(?:.*:)?(\w+?)(?:-ram)?(NoFrameskip|Deterministic)-v\d+", self.id)
        if legacy:
            raise old_atari_id(self.id, legacy[1])
        if self.is_atari:
            self._refuse_ignored_by_atari()
        else:
            self._refuse_atari_options()

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
        for name in changes.keys() & {"atari", "kwargs"}:
            if isinstance(changes[name], Mapping):
                own = vars(self.atari) if name == "atari" else settings[name]
                changes[name] = {**own, **changes[name]}
        return EnvConfig(**{**settings, **changes})

    def _name_factory(self) -> None:
        if self.factory is None:
            return
        path = path_of(self.factory)
        object.__setattr__(self, "factory", path)
        if self.id == EnvConfig.id:
            object.__setattr__(self, "id", path)
        is_taken = self.is_atari or ":" in self.id or self.id in gymnasium.registry
        _require(
            not is_taken,
            "id",
            self.id,
            f"a name of your own, not that of another environment, since env.factory is {path!r}",
        )

    def _refuse_ignored_by_atari(self) -> None:
        for name, unset, instead in (
            ("kwargs", {}, "use the options of env.atari"),
            ("wrappers", [], "use the options of env.atari"),
            ("frame_stack", 1, "use env.atari.frame_stack"),
            ("max_episode_steps", None, "use env.atari.max_frames_per_episode"),
            ("action_masks", False, "the games allow every action at any time"),
        ):
            value = getattr(self, name)
            _require(value == unset, name, value, f"{unset!r} for {self.id}: {instead}")

    def _refuse_atari_options(self) -> None:
        for option in fields(self.atari):
            value = getattr(self.atari, option.name)
            _require(
                value == option.default,
                f"atari.{option.name}",
                value,
                f"{option.default!r} for {self.id}: env.atari acts only on games, whose ids "
                f"start with {ATARI_PREFIX}",
            )


def old_atari_id(env_id: str, game: str) -> ConfigError:
    """Return the error for an id of the interface before `ALE/`, which hides its options."""
    return ConfigError(
        f"env.id is {env_id!r}, an id of the old Atari interface. Use '{ATARI_PREFIX}{game}-v5' "
        "and set the protocol in env.atari."
    )
