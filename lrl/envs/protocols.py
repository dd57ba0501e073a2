"""Named Atari protocols: settings under which others published scores, with their sources.

Two scores compare only if they were measured under one protocol: with repeated actions, all 18
actions or an episode six times as long, an equal agent scores differently. A recipe takes a
protocol as an overlay, `--config recipe:protocol/machado_2018`, a script from `PROTOCOLS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lrl.envs.config import FIVE_MINUTES_FRAMES, THIRTY_MINUTES_FRAMES, AtariConfig, EnvConfig

CUSTOM = "custom"
GYMNASIUM = "gymnasium"


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


def protocol_name(env: EnvConfig, epsilon: float, max_frames: int) -> str:
    """Return the name of the protocol that settings are, those of training too.

    Args:
        env: The environment.
        epsilon: Probability of a random action in evaluation.
        max_frames: Frames after which evaluation cuts an episode off.

    Returns:
        A name of `PROTOCOLS`, "custom" for an Atari game with other settings, or "gymnasium".

    Example:
        >>> ale_v5 = EnvConfig("ALE/Pong-v5", reward_clip=1.0, atari=PROTOCOLS["ale_v5"].atari)
        >>> protocol_name(ale_v5, epsilon=0.001, max_frames=108_000)
        'ale_v5'
        >>> protocol_name(ale_v5, epsilon=0.05, max_frames=108_000)
        'custom'
        >>> protocol_name(EnvConfig("CartPole-v1"), epsilon=0.0, max_frames=108_000)
        'gymnasium'
    """
    if not env.is_atari:
        return GYMNASIUM
    settings = (env.atari, env.reward_clip, epsilon)
    for name, known in PROTOCOLS.items():
        if settings == (known.atari, known.reward_clip, known.evaluation_epsilon):
            return name if max_frames >= env.atari.max_frames_per_episode else CUSTOM
    return CUSTOM
