"""`lrl play`: watch a trained agent, in a film."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.envs import kind_of, make_rendered
from lrl.evaluation.episodes import TEST_SEED, Episodes
from lrl.learner.agent import Agent, find_device, load_agent
from lrl.processes.interrupt import interrupt
from lrl.types import ConfigError
from lrl.video.film import CUT_OFF, TRUNCATED, FilmedPolicy, FilmFrame, film_episode
from lrl.video.painter import Painter
from lrl.video.writers import open_video, shoot


def play(
    ckpt_path: str,
    video: str | None = None,
    episodes: int = 1,
    first_seed: int = TEST_SEED,
    epsilon: float | None = None,
    max_steps: int | None = None,
    fps: float | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> Episodes:
    """Film an agent that plays evaluation episodes.

    A checkpoint knows its environment and protocol, so no configuration is needed. Beside the game
    the film shows the value of each action, the one taken, the return so far and, if the agent
    learns one, the distribution of the returns it expects. Equal seeds and epsilon give the
    episodes that `lrl evaluate` scores. Ctrl-C ends the film and keeps it.

    Args:
        ckpt_path: Checkpoint that lrl wrote.
        video: A new file: .mp4 (extra `video`), .gif for short films, or .png for a still of the
            last step. Null is videos/CHECKPOINT-SEED.mp4 in the folder of the run, or in the
            current one for a checkpoint of no run, such as one from the hub.
        episodes: Episodes, one after the other.
        first_seed: Seed of the first episode, from those of `lrl test`; the others count up. From 0
            on lie the episodes of evaluation during training; those of training are refused.
        epsilon: Probability of a random action; null takes that of the checkpoint's evaluation.
        max_steps: Environment steps after which an episode is cut off; null leaves it to the cap of
            frames of the checkpoint's evaluation.
        fps: Environment steps shown in a second; null is the game's own speed.
        overwrite: Replace the file if it is there already.
        device: Where the network acts: auto, cpu, cuda, ...

    Returns:
        The episodes' returns and lengths, and which of them were cut off.

    Raises:
        ConfigError: An argument is wrong, the checkpoint cannot be used, or its environment draws
            no pictures.
    """
    _check(episodes, first_seed, max_steps, fps)
    found = find_device(device)
    agent = load_agent(ckpt_path, found)
    evaluation = agent.evaluation(epsilon)
    path = _default_path(agent.path, first_seed) if video is None else Path(video)
    rendered = make_rendered(agent.env)
    limit = max(1, evaluation["max_frames_per_episode"] // rendered.envs.spec.frame_skip)
    painter = Painter(agent.env.id, _subtitle(agent), rendered.action_names)
    policy = FilmedPolicy(agent.module.online, found)
    ends: list[FilmFrame] = []
    interrupt.install()
    try:
        with open_video(path, fps or rendered.fps, overwrite) as writer:
            for seed in range(first_seed, first_seed + episodes):
                frames = film_episode(
                    rendered, policy, seed,
                    epsilon=evaluation["epsilon"],
                    max_steps=min(limit, max_steps or limit),
                )  # fmt: skip
                ends.append(shoot(writer, frames, painter))
                print(_line(ends[-1]), flush=True)
    finally:
        interrupt.uninstall()
        rendered.close()
    return _episodes(ends, is_limited=kind_of(agent.env).frames_limit is not None)


def _episodes(ends: Sequence[FilmFrame], is_limited: bool) -> Episodes:
    """Return what `run_episodes` says of the episodes with these last frames."""
    timeouts = (CUT_OFF, TRUNCATED) if is_limited else (CUT_OFF,)
    return Episodes(
        np.array([end.total for end in ends]),
        np.array([end.step for end in ends]),
        np.array([end.ending in timeouts for end in ends]),
    )


def _check(episodes: int, first_seed: int, max_steps: int | None, fps: float | None) -> None:
    for name, value, least in (("episodes", episodes, 1), ("first_seed", first_seed, 0)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    if first_seed + episodes > TRAINING_SEED_FLOOR:
        raise ConfigError(
            f"first_seed is {first_seed} and episodes {episodes}, but seeds from "
            f"{TRAINING_SEED_FLOOR} on are for training: choose lower ones"
        )
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be at least 1, or null, got {max_steps}")
    if fps is not None and not 0.1 <= fps <= 1000:
        raise ConfigError(f"fps must be between 0.1 and 1000, or null, got {fps}")


def _default_path(checkpoint: Path, first_seed: int) -> Path:
    folder = checkpoint.parent
    # Of an agent from the hub the folder is the hub's own, where nobody looks.
    place = folder.parent if folder.name == "checkpoints" else Path()
    return place / "videos" / f"{checkpoint.stem}-{first_seed}.mp4"


def _subtitle(agent: Agent) -> str:
    return f"{agent.path.name}, {agent.stamp['training']['learner_steps']:,} learner steps"


def _line(end: FilmFrame) -> str:
    return f"seed {end.seed}: return {end.total:g}, {end.step} steps, {end.ending}"
