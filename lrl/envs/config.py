"""Settings of an environment: plain frozen dataclasses, readable from YAML and picklable."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from lrl.types import ConfigError

ATARI_PREFIX = "ALE/"


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
    at the start and game over as the only end. `repeat_action_probability: 0.25`,
    `full_action_space: true` and `max_frames_per_episode: 18000` make it the protocol of Machado
    et al. 2018. Rewards come raw: `EnvConfig.reward_clip` clips them for training.
    """

    frame_skip: int = 4
    """Emulator frames per environment step; their rewards are summed (Mnih et al. 2015)."""
    max_pool: bool = True
    """Take the maximum of the last two frames of a step, against flicker (Mnih et al. 2015)."""
    image_height: int = 84
    """Height of a frame in pixels, by area interpolation (Mnih et al. 2015)."""
    image_width: int = 84
    """Width of a frame in pixels, by area interpolation (Mnih et al. 2015)."""
    grayscale: bool = True
    """Luminance (0.299 R + 0.587 G + 0.114 B) instead of a last axis with 3 colours."""
    frame_stack: int = 4
    """Frames in one observation, newest last; an episode's first stack is filled up with zeros."""
    repeat_action_probability: float = 0.0
    """Chance per frame that the previous action is repeated ("sticky"; 0.25 in Machado 2018)."""
    noop_max: int = 30
    """An episode starts after 0 to noop_max - 1 frames without action, drawn evenly."""
    fire_reset: bool = False
    """Press FIRE once at an episode's start. Off, as in Mnih 2015 and Machado 2018: after a lost
    life the agent has to press it itself anyway."""
    terminal_on_life_loss: bool = False
    """Training targets end at a lost life (Mnih et al. 2015). The game goes on, and evaluation and
    episode statistics never see it. Off, as recommended by Machado et al. 2018."""
    full_action_space: bool = False
    """All 18 actions instead of those the game uses."""
    max_frames_per_episode: int = 108_000
    """Emulator frames (30 minutes of play) after which an episode is truncated, no-op frames not
    counted."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive = ("frame_skip", "frame_stack", "max_frames_per_episode")
        for name in (*positive, "image_height", "image_width"):
            _require(getattr(self, name) >= 1, f"atari.{name}", getattr(self, name), "at least 1")
        _require(self.noop_max >= 0, "atari.noop_max", self.noop_max, "at least 0")
        sticky = self.repeat_action_probability
        _require(0 <= sticky < 1, "atari.repeat_action_probability", sticky, "in [0, 1)")


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how an agent sees it."""

    id: str = "CartPole-v1"
    """Gymnasium id, `module:Name-v0` to import a module first, or `ALE/<Game>-v5` for Atari, where
    only the game is taken from the id and the protocol from `atari`. CartPole needs no extra."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, by name (not for Atari)."""
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

    @property
    def is_atari(self) -> bool:
        """Whether the environment is one of ale-py's games."""
        return self.id.rpartition(":")[2].startswith(ATARI_PREFIX)

    def __post_init__(self) -> None:
        """Check the ranges, and that nothing is set that would be ignored."""
        _require(self.frame_stack >= 1, "frame_stack", self.frame_stack, "at least 1")
        steps, clip = self.max_episode_steps, self.reward_clip
        _require(steps is None or steps >= 1, "max_episode_steps", steps, "null or at least 1")
        valid_clip = clip is None or 0 < clip < math.inf
        _require(valid_clip, "reward_clip", clip, "null or a finite number above 0")
        legacy = re.fullmatch(r"(?:.*:)?(\w+?)(?:-ram)?(NoFrameskip|Deterministic)-v\d+", self.id)
        if legacy:
            raise ConfigError(
                f"env.id is {self.id!r}, an id of the old Atari interface. Use "
                f"'{ATARI_PREFIX}{legacy[1]}-v5' and set the protocol in env.atari."
            )
        if self.is_atari:
            self._refuse_ignored_by_atari()

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
