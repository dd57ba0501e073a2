"""A stage: one evaluation environment, and pictures of it for people."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace

import gymnasium
import numpy as np
import numpy.typing as npt

from lrl.envs import EnvConfig, EnvStep, StreamEnvs, make_envs
from lrl.envs.gym import SingleEnvs
from lrl.envs.make import make_single
from lrl.types import ConfigError

ATARI_FRAMES_PER_SECOND = 60
_PICTURES = {"render_mode": "rgb_array"}
_DEFAULT_FPS = 30.0


class Stage(ABC):
    """One environment as evaluation builds it, which can be looked at while an agent acts in it.

    Attributes:
        envs: What the agent acts in; has one environment.
        action_names: A name for each action.
        fps: Environment steps in a second, if the game is played at its own speed.
    """

    envs: StreamEnvs
    action_names: list[str]
    fps: float

    def reset(self, seed: int) -> npt.NDArray[np.generic]:
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


class AtariStage(Stage):
    """An Atari game and its twin, which sees the whole screen in colour.

    Both get the same seeds and actions, and what ale-py answers depends on nothing else, so they
    play the same game. That they do is checked at every step.
    """

    def __init__(self, config: EnvConfig) -> None:
        # ale-py, which other environments do without
        from lrl.envs.atari import AtariEnvs, game_of, screen_size

        height, width = screen_size(game_of(config.id))
        screen = replace(
            config.atari, image_height=height, image_width=width, grayscale=False, frame_stack=1
        )
        self.envs = make_envs(config, 1, training=False)
        self._twin = make_envs(replace(config, atari=screen), 1, training=False)
        assert isinstance(self.envs, AtariEnvs)
        self.action_names = self.envs.action_names
        self.fps = ATARI_FRAMES_PER_SECOND / config.atari.frame_skip
        self._screen: npt.NDArray[np.generic] | None = None

    def reset(self, seed: int) -> npt.NDArray[np.generic]:
        """Begin the episode of a seed in both."""
        self._screen = self._twin.reset([seed])
        return super().reset(seed)

    def step(self, actions: npt.NDArray[np.int32]) -> EnvStep:
        """Step both.

        Raises:
            RuntimeError: They do not play the same game.
        """
        step, twin = super().step(actions), self._twin.step(actions)
        for name in ("reward", "terminated", "truncated"):
            if getattr(step, name) != getattr(twin, name):
                raise RuntimeError(
                    f"the pictures are of another game: {name} is {getattr(step, name)[0]} where "
                    f"the agent acts, but {getattr(twin, name)[0]} in the copy that is filmed; "
                    "this version of ale-py does not depend on seeds and actions alone"
                )
        self._screen = twin.observation
        return step

    def picture(self) -> npt.NDArray[np.uint8]:
        """Return the screen, `[height, width, 3]`; most games have 210 and 160 pixels."""
        assert self._screen is not None, "reset comes first"
        return self._screen[0, 0].astype(np.uint8)

    def close(self) -> None:
        """Release both."""
        super().close()
        self._twin.close()


class GymStage(Stage):
    """A Gymnasium environment with `render_mode="rgb_array"`.

    Actions are called what the environment's `get_action_meanings` says, if it has one, otherwise
    by their numbers.

    Raises:
        ConfigError: It draws no pictures.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._source = config.source
        if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else SDL complains of no screen
        with warnings.catch_warnings():  # what follows says it better
            warnings.filterwarnings("ignore", message=".*initialised with render_mode")
            try:
                self._env = make_single(replace(config, kwargs={**config.kwargs, **_PICTURES}))
            except ConfigError as error:
                make_envs(config, 1, training=False).close()  # raises if it cannot be made at all
                raise self._no_pictures("it does not take render_mode='rgb_array'") from error
        self.envs = SingleEnvs([self._env], config.frame_stack, config.action_masks)
        self.fps = float(self._env.metadata.get("render_fps") or _DEFAULT_FPS)
        meanings = getattr(self._env.unwrapped, "get_action_meanings", None)
        numbers = map(str, range(self.envs.spec.num_actions))
        self.action_names = [str(name) for name in (meanings() if meanings else numbers)]
        self.reset(0)
        self.picture()

    def picture(self) -> npt.NDArray[np.uint8]:
        """Return what the environment draws."""
        try:
            picture = self._env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise self._no_pictures(f"{error} (pip install 'lrl[video]')") from error
        except (NotImplementedError, gymnasium.error.Error) as error:
            raise self._no_pictures(str(error) or "it has no method render") from error
        if not isinstance(picture, np.ndarray) or picture.shape[2:] != (3,):
            what = getattr(picture, "shape", type(picture).__name__)
            raise self._no_pictures(f"render returned {what} instead of [height, width, 3]")
        return picture.astype(np.uint8)

    def _no_pictures(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._source} cannot be filmed: {reason}")


def make_stage(config: EnvConfig) -> Stage:
    """Build the stage of an environment.

    Raises:
        ConfigError: It draws no pictures, or cannot be made.
    """
    return AtariStage(config) if config.is_atari else GymStage(config)
