"""Atari's settings, and the named ones under which others published scores, with their sources.

Two scores compare only if they were measured under one protocol: with repeated actions, all 18
actions or an episode six times as long, an equal agent scores differently. A recipe takes a
protocol as an overlay, `--config recipe:protocol/machado_2018`, a script from `PROTOCOLS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lrl.parts.settings import check_types, require

CUSTOM = "custom"
GYMNASIUM = "gymnasium"
ATARI_PREFIX = "ALE/"

FIVE_MINUTES_FRAMES = 18_000
"""Limits of an episode in use: 5 and 30 minutes of play, at 60 emulator frames a second."""
THIRTY_MINUTES_FRAMES = 108_000


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
        check_types(self, "env.atari")
        for name in ("frame_skip", "frame_stack", "image_height", "image_width"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require(
            "repeat_action_probability", 0 <= self.repeat_action_probability < 1, "in [0, 1)"
        )
        pools = not self.max_pool or self.frame_skip > 1
        self._require("max_pool", pools, "false with frame_skip 1, where a step has one frame")
        fewest, fire = (3, ", and fire_reset takes one of them") if self.fire_reset else (2, "")
        drawn = f"0 (none) or at least {fewest}: 0 to noop_max - 1 frames are drawn{fire}"
        self._require("noop_max", self.noop_max == 0 or self.noop_max >= fewest, drawn)
        limited = f"at least frame_skip, {self.frame_skip}: no step would be complete"
        lasts = self.max_frames_per_episode >= self.frame_skip
        self._require("max_frames_per_episode", lasts, limited)

    def _require(self, name: str, condition: bool, allowed: str) -> None:
        require(condition, f"atari.{name}", getattr(self, name), allowed)


@dataclass(frozen=True)
class Protocol:
    """What belongs to a score on an Atari game."""

    atari: AtariConfig
    """The environment. Its limit of frames holds in training and in evaluation; a lost life ends
    targets in training only."""
    reward_clip: float | None
    """Bound of training rewards (`EnvConfig.reward_clip`); evaluation is always raw."""
    evaluation_epsilon: float
    """Probability of a random action in evaluation (`EvaluationConfig.epsilon`)."""


_DQN_2015 = Protocol(  # places in Methods of Mnih et al. 2015, doi 10.1038/nature14236
    AtariConfig(
        frame_skip=4,  # Training details: k = 4
        max_pool=True,  # Preprocessing: maximum over a frame and the one before it
        image_height=84,  # Preprocessing
        image_width=84,
        grayscale=True,  # Preprocessing: the Y channel
        frame_stack=4,  # Preprocessing: m = 4
        repeat_action_probability=0.0,  # that emulator had no such option
        noop_max=30,  # Extended Data Table 1: at most 30; ale-py draws 0 to 29 frames
        fire_reset=False,  # not in the paper
        terminal_on_life_loss=True,  # Training details: the life counter marks an episode's end
        full_action_space=False,  # Model architecture: 4 to 18 valid actions, by game
        # Evaluation procedure: up to 5 minutes. A limit of training is not in the paper.
        max_frames_per_episode=FIVE_MINUTES_FRAMES,
    ),
    reward_clip=1.0,  # Training details
    evaluation_epsilon=0.05,  # Evaluation procedure
)

_MACHADO_2018 = Protocol(  # Machado et al. 2018, arXiv 1709.06009
    replace(
        _DQN_2015.atari,  # image, pooling and stack: not confirmed, the paper tests DQN as it is
        # The paper recommends no number. Its results were made with 5 and most later papers use 4,
        # says the emulator's maintainer (Arcade-Learning-Environment, issue 443).
        frame_skip=5,
        repeat_action_probability=0.25,  # Section 5.2
        noop_max=0,  # Section 5.3: repeated actions replace them
        terminal_on_life_loss=False,  # recommended: game over alone ends an episode
        full_action_space=True,  # recommended
        max_frames_per_episode=FIVE_MINUTES_FRAMES,  # by others' citations, its text unconfirmed
    ),
    reward_clip=1.0,  # as DQN, not confirmed
    evaluation_epsilon=0.01,  # the last of training, whose episodes are the score: no evaluation
)

_ALE_V5 = Protocol(
    replace(
        _DQN_2015.atari,  # image, pooling and stack: the registration has none
        repeat_action_probability=0.25,  # these four: ale_py/registration.py, register_v5_envs
        frame_skip=4,
        full_action_space=False,
        max_frames_per_episode=THIRTY_MINUTES_FRAMES,
        noop_max=0,  # ale_py/env.py has no such option
        terminal_on_life_loss=False,  # nor this
    ),
    # As Dopamine plays on this environment: atari_lib.py and dqn.gin.
    reward_clip=1.0,
    evaluation_epsilon=0.001,
)

_ATARI_100K = Protocol(  # Kaiser et al. 2020, arXiv 1903.00374, by BBF.gin of Schwarzer et al. 2023
    replace(
        _DQN_2015.atari,  # image, pooling, stack and minimal actions: Dopamine's atari_lib.py
        repeat_action_probability=0.0,  # sticky_actions = False
        noop_max=30,  # max_noops = 30, drawn from 0 to 29
        terminal_on_life_loss=True,  # terminal_on_life_loss = True
        max_frames_per_episode=THIRTY_MINUTES_FRAMES,  # max_steps_per_episode = 27000, of 4 frames
    ),
    reward_clip=1.0,  # eval_run_experiment.py clips what the agent learns from
    evaluation_epsilon=0.001,  # epsilon_eval = 0.001
)

PROTOCOLS: dict[str, Protocol] = {
    "dqn_2015": _DQN_2015,
    "machado_2018": _MACHADO_2018,
    "ale_v5": _ALE_V5,
    "atari_100k": _ATARI_100K,
}
