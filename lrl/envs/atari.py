"""Atari 2600 games, preprocessed inside ale-py's C++ vector environment.

What was measured of `ale_py.AtariVectorEnv` 0.12.1 and matters here: an action outside the space
or a step in a forked child blocks for ever; the limit of frames does not count the no-op frames;
`episodic_life` resets the game at a lost life and `life_loss_info` reports one as a termination,
so both stay off and lives are compared here; every step returns arrays of its own; seeds above
2**31 - 1 are refused; a seeded reset loads the game again, about 0.2 s an environment. Rewards,
ends, lives and observations equal those of Gymnasium's `AtariPreprocessing`, bit for bit.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from ale_py import Action, ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium.vector import AutoresetMode
from typing_extensions import override

from lrl.envs.kind import EnvKind, RenderedEnv
from lrl.envs.protocols import ATARI_PREFIX, CUSTOM, FIVE_MINUTES_FRAMES, PROTOCOLS, AtariConfig
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.parts import safety
from lrl.types import ConfigError, EnvSpec

_FRAMES_PER_SECOND = 60
_VERSION = "-v5"
_GAMES_FOR_TWO = ("combat", "joust", "maze_craze", "warlords")  # loading one ends the process
_SCREEN = (210, 160)  # of most games; some are up to 250 high


def game_of(env_id: str) -> str:
    """Return the backend's name of a game.

    Example:
        >>> game_of("ALE/MsPacman-v5")
        'ms_pacman'
    """
    games = {new: game for new, game in _games().items() if game not in _GAMES_FOR_TWO}
    env_id = env_id.rpartition(":")[2]
    if env_id not in games:
        nearest = difflib.get_close_matches(env_id, games, n=3, cutoff=0.0)
        raise ConfigError(
            f"env.id is {env_id!r}, which is none of ale-py's {len(games)} games for one player. "
            f"Nearest: {', '.join(nearest)}."
        )
    return games[env_id]


def refuse_old_id(env_id: str) -> None:
    """Raise `ConfigError` for an id of the interface before `ALE/`, which hides its options."""
    name = env_id.rpartition(":")[2]
    new = ATARI_PREFIX + re.sub(r"(-ram)?(NoFrameskip|Deterministic)?-v\d$", _VERSION, name)
    if new in _games():
        raise ConfigError(
            f"env.id is {env_id!r}, an id of the old Atari interface. Use {new!r} and set the "
            "protocol in env.atari."
        )


def _games() -> dict[str, str]:
    """Return the backend's names of all games, by their ids."""
    return {
        ATARI_PREFIX + game.title().replace("_", "") + _VERSION: game
        for game in roms.get_all_rom_ids()
    }


class Atari(EnvKind):
    """One of ale-py's games, under the protocol of `env.atari`."""

    default_epsilon = 0.001
    training_only = ("reward_clip", "atari.terminal_on_life_loss")
    frames_limit_setting = "atari.max_frames_per_episode"

    @property
    def settings(self) -> AtariConfig:
        """The protocol."""
        assert self.env.atari is not None
        return self.env.atari

    @override
    def make(self, num_envs: int, *, training: bool, num_threads: int) -> AtariEnvs:
        env_id = self.env.id
        safety.check_entry_point(env_id.rpartition(":")[0] or None, "env.id", env_id)
        threads = num_threads
        return AtariEnvs(env_id, self.settings, num_envs, training=training, num_threads=threads)

    @override
    def make_rendered(self) -> RenderedEnv:
        return RenderedAtari(self)

    @override
    def protocol(self, epsilon: float, max_frames: int) -> str:
        """Return a name of `PROTOCOLS`, or "custom" with other settings, those of training too.

        Example:
            >>> from lrl.envs import PROTOCOLS, EnvConfig
            >>> atari = PROTOCOLS["ale_v5"].atari
            >>> pong = Atari(EnvConfig("ALE/Pong-v5", reward_clip=1.0, atari=atari))
            >>> pong.protocol(0.001, 108_000), pong.protocol(0.05, 108_000)
            ('ale_v5', 'custom')
        """
        settings = (self.settings, self.env.reward_clip, epsilon)
        for name, known in PROTOCOLS.items():
            if settings == (known.atari, known.reward_clip, known.evaluation_epsilon):
                return name if max_frames >= self.settings.max_frames_per_episode else CUSTOM
        return CUSTOM

    @override
    def human_normalised(self, score: float, cut_off_at: int | None) -> float | None:
        if cut_off_at is not None and cut_off_at < FIVE_MINUTES_FRAMES:
            return None  # a game of seconds that nobody has lost yet would count as a human's
        return human_normalised(game_of(self.env.id), score)


class AtariEnvs(StreamEnvs):
    """A vector of one Atari game.

    Args:
        env_id: `ALE/<Game>-v5`.
        config: The protocol.
        num_envs: Number of environments.
        training: Report lost lives if the protocol says so; evaluation never does.
        num_threads: Threads that step the emulators.
    """

    def __init__(
        self, env_id: str, config: AtariConfig, num_envs: int, *, training: bool, num_threads: int
    ) -> None:
        game = game_of(env_id)
        _check_image(game, config)
        backend = _make_backend(game, config, num_envs, num_threads)
        if config.fire_reset and Action.FIRE not in backend.ale.get_action_set():
            raise ConfigError(
                f"env.atari.fire_reset is True, but {env_id} has no FIRE among its actions: set it "
                "to false, or env.atari.full_action_space to true."
            )
        shape = backend.single_observation_space.shape
        assert shape is not None
        spec = EnvSpec.box(
            observation_shape=shape,
            observation_dtype="uint8",
            num_actions=int(backend.single_action_space.n),
            frame_stack=config.frame_stack,
            frame_skip=config.frame_skip,
        )
        super().__init__(spec, num_envs)
        self._backend: AtariVectorEnv | None = backend
        self._report_life_loss = training and config.terminal_on_life_loss
        self._lives = np.zeros(num_envs, np.int32)
        self._pid = os.getpid()

    @property
    def action_names(self) -> list[str]:
        """The actions as ale-py calls them, such as `RIGHTFIRE`."""
        return [action.name for action in self._checked_backend().ale.get_action_set()]

    def _reset_envs(self, seeds: Sequence[int]) -> npt.NDArray[np.generic]:
        small = np.array([seed % 2**31 for seed in seeds])
        observation, info = self._checked_backend().reset(seed=small)
        self._lives = info["lives"]
        return observation

    def _step_envs(self, actions: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]) -> EnvStep:
        observation, reward, terminated, truncated, info = self._checked_backend().step(actions)
        life_lost = np.zeros(self.num_envs, np.bool_)
        if self._report_life_loss:
            life_lost = (info["lives"] < self._lives) & ~terminated & ~truncated
        self._lives = info["lives"]
        return EnvStep(observation, reward.astype(np.float64), terminated, truncated, life_lost)

    def _close_envs(self) -> None:
        if os.getpid() == self._pid:
            self._backend = None  # its destructor ends the threads

    def _checked_backend(self) -> AtariVectorEnv:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"These Atari environments were made in process {self._pid} and cannot be used in "
                f"its forked child {os.getpid()}, which has none of their threads: make them in "
                "the child, or start it with spawn or forkserver."
            )
        assert self._backend is not None
        return self._backend


class RenderedAtari(RenderedEnv):
    """An Atari game and its twin, which sees the whole screen in colour.

    Both get the same seeds and actions, and what ale-py answers depends on nothing else, so they
    play the same game. That they do is checked at every step.
    """

    def __init__(self, kind: Atari) -> None:
        height, width = screen_size(game_of(kind.env.id))
        screen = replace(
            kind.settings, image_height=height, image_width=width, grayscale=False, frame_stack=1
        )
        envs = kind.make(1, training=False, num_threads=1)
        twin = Atari(replace(kind.env, atari=screen))
        self._twin = twin.make(1, training=False, num_threads=1)
        self.envs = envs
        self.action_names = envs.action_names
        self.fps = _FRAMES_PER_SECOND / kind.settings.frame_skip
        self._screen: npt.NDArray[np.generic] | None = None

    @override
    def reset(self, seed: int) -> npt.NDArray[np.generic]:
        self._screen = self._twin.reset([seed])
        return super().reset(seed)

    @override
    def step(self, actions: npt.NDArray[np.int32]) -> EnvStep:
        """Step both; raise a RuntimeError if they do not play the same game."""
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

    @override
    def picture(self) -> npt.NDArray[np.uint8]:
        assert self._screen is not None, "reset comes first"
        return self._screen[0, 0].astype(np.uint8)

    @override
    def close(self) -> None:
        super().close()
        self._twin.close()


def screen_size(game: str) -> tuple[int, int]:
    """Return height and width of a game's screen in pixels, by ale-py's name of the game."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    emulator = ALEInterface()
    emulator.loadROM(str(roms.get_rom_path(game)))
    return emulator.getScreenDims()


def _check_image(game: str, config: AtariConfig) -> None:
    """Refuse an image larger than the screen, which cannot be interpolated by area."""
    if config.image_height <= _SCREEN[0] and config.image_width <= _SCREEN[1]:
        return
    height, width = screen_size(game)
    for name, screen in (("image_height", height), ("image_width", width)):
        if getattr(config, name) > screen:
            raise ConfigError(
                f"env.atari.{name} is {getattr(config, name)}, but must be at most {screen}: the "
                f"screen of {game} has {height}x{width} pixels."
            )


def _make_backend(
    game: str, config: AtariConfig, num_envs: int, num_threads: int
) -> AtariVectorEnv:
    return AtariVectorEnv(
        game,
        num_envs,
        num_threads=num_threads,
        max_num_frames_per_episode=config.max_frames_per_episode,
        repeat_action_probability=config.repeat_action_probability,
        full_action_space=config.full_action_space,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        img_height=config.image_height,
        img_width=config.image_width,
        grayscale=config.grayscale,
        stack_num=config.frame_stack,
        frameskip=config.frame_skip,
        maxpool=config.max_pool,
        noop_max=config.noop_max,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=config.fire_reset,
    )


RANDOM_AND_HUMAN: dict[str, tuple[float, float]] = {
    "alien": (227.8, 7127.7), "amidar": (5.8, 1719.5), "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3), "asteroids": (719.1, 47388.7), "atlantis": (12850.0, 29028.1),
    "bank_heist": (14.2, 753.1), "battle_zone": (2360.0, 37187.5), "beam_rider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4), "bowling": (23.1, 160.7), "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5), "centipede": (2090.9, 12017.0), "chopper_command": (811.0, 7387.8),
    "crazy_climber": (10780.5, 35829.4), "defender": (2874.5, 18688.9),
    "demon_attack": (152.1, 1971.0), "double_dunk": (-18.6, -16.4), "enduro": (0.0, 860.5),
    "fishing_derby": (-91.7, -38.7), "freeway": (0.0, 29.6), "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5), "gravitar": (173.0, 3351.4), "hero": (1027.0, 30826.4),
    "ice_hockey": (-11.2, 0.9), "jamesbond": (29.0, 302.8), "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5), "kung_fu_master": (258.5, 22736.3),
    "montezuma_revenge": (0.0, 4753.3), "ms_pacman": (307.3, 6951.6),
    "name_this_game": (2292.3, 8049.0), "phoenix": (761.4, 7242.6), "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6), "private_eye": (24.9, 69571.3), "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0), "road_runner": (11.5, 7845.0), "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7), "skiing": (-17098.1, -4336.9), "solaris": (1236.3, 12326.7),
    "space_invaders": (148.0, 1668.7), "star_gunner": (664.0, 10250.0), "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3), "time_pilot": (3568.0, 5229.2), "tutankham": (11.4, 167.6),
    "up_n_down": (533.4, 11693.2), "venture": (0.0, 1187.5), "video_pinball": (16256.9, 17667.9),
    "wizard_of_wor": (563.5, 4756.5), "yars_revenge": (3092.9, 54576.9), "zaxxon": (32.5, 9173.3),
}  # fmt: skip
"""Mean return of random play and of a human, by ale-py's name of the game.

Source: DQN Zoo (Quan and Ostrovski 2020, https://github.com/google-deepmind/dqn_zoo), file
`dqn_zoo/atari_data.py`: undiscounted returns, each the mean of at least 3 episodes that begin with
1 to 30 frames without action and are cut off at 108,000 frames (30 minutes). The human is a
professional tester of games. Other protocols (sticky actions, shorter episodes) are commonly
compared with the same figures.
"""


def human_normalised(game: str, score: float) -> float | None:
    """Return a score between random play (0) and a human (1); None where neither is known.

    Args:
        game: ale-py's name, as `game_of` gives it.
        score: A return, or a mean of returns.

    Example:
        >>> human_normalised("pong", 14.6)
        1.0
    """
    if game not in RANDOM_AND_HUMAN:
        return None
    random, human = RANDOM_AND_HUMAN[game]
    return (score - random) / (human - random)
