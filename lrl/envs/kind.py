"""What a kind of environment answers for: whoever depends on the kind asks it here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lrl.envs.config import EnvConfig
from lrl.envs.protocols import CUSTOM
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.types import ConfigError, Observation


class RenderedEnv(ABC):
    """One environment as evaluation builds it, with pictures for people of what happens in it.

    Attributes:
        envs: What the agent acts in; has one environment.
        action_names: A name for each action.
        fps: Environment steps in a second, if the game is played at its own speed.
    """

    envs: StreamEnvs
    action_names: list[str]
    fps: float

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed and return its observation, `[1, *observation_shape]`."""
        return self.envs.reset([seed])

    def step(self, actions: npt.NDArray[np.int32]) -> EnvStep:
        """Take an action, `[1]`."""
        return self.envs.step(actions)

    @abstractmethod
    def picture(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the present, `[height, width, 3]`."""

    def close(self) -> None:
        """Release the environment."""
        self.envs.close()


class EnvKind(ABC):
    """A kind of environment: how one is made, evaluated and drawn.

    `kind_of` finds the kind of an environment. A script may bring its own: `env.factory` names the
    subclass, whose settings are `env.kwargs` (docs/environments.md).

    Args:
        env: Settings of the environment.
    """

    reads: ClassVar[tuple[str, ...]] = ("kwargs",)
    """Names of the settings that an environment made by a factory reads, of those that Gymnasium's
    have; others are refused."""
    default_epsilon: ClassVar[float] = 0.0
    """Probability of a random action in evaluation, unless `evaluation.epsilon` says another."""
    training_only: ClassVar[tuple[str, ...]] = ("reward_clip",)
    """Dotted names of the settings that evaluation never sees."""
    frames_limit_setting: ClassVar[str] = ""
    """Dotted name of the setting that limits the frames of an episode, if there is one. An episode
    that ends there counts as cut off, not as the environment's own ending."""

    def __init__(self, env: EnvConfig) -> None:
        self.env = env

    @abstractmethod
    def make(self, num_envs: int, *, training: bool, num_threads: int) -> StreamEnvs:
        """Build environments; `make_envs` says what the arguments mean."""

    def make_rendered(self) -> RenderedEnv:
        """Build one environment that can be filmed."""
        raise ConfigError(f"{self.env.source} cannot be filmed: {type(self).__name__} cannot draw")

    @property
    def frames_limit(self) -> int | None:
        """Frames at which the environment itself cuts an episode off, None for no such limit."""
        name = self.frames_limit_setting
        return self.env.setting(name) if name else None

    def protocol(self, epsilon: float, max_frames: int) -> str:
        """Return the name of the protocol of scores.

        Args:
            epsilon: Probability of a random action in evaluation.
            max_frames: Frames after which evaluation cuts an episode off.
        """
        return CUSTOM

    def human_normalised(self, score: float, cut_off_at: int | None) -> float | None:
        """Return a mean return between random play (0) and a human (1); None if one is unknown.

        Args:
            score: Mean return of the episodes.
            cut_off_at: Frames after which some episode was cut off; None if all ended.
        """
        return None
