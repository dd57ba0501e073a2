"""`lrl dataset`: what a run experienced, or what its agent plays now, as a Minari dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.checkpoints.files import read_checkpoint
from lrl.checkpoints.runs import missing_replay, saved_replay_of
from lrl.checkpoints.saved_replay import (
    SavedReplayError,
    manifest_name,
    read_manifest,
    read_streams,
    replay_beside,
)
from lrl.checkpoints.stamp import trained_in
from lrl.deploy.policy import TrainedPolicy, load_policy
from lrl.offline.episodes import RecordedEpisode, episodes_of
from lrl.offline.minari_files import check_new, write_dataset
from lrl.types import ConfigError, EnvSpec, map_leaves


def dataset(
    ckpt_path: str,
    dataset_id: str,
    episodes: int | None = None,
    epsilon: float | None = None,
    seed: int = 0,
) -> tuple[int, int]:
    """Write the replay that was saved with a checkpoint, or fresh episodes, as a Minari dataset.

    The replay is there if the run had `actor_learner.checkpoint_replay: true`; no environment is
    made for it. Fresh episodes are played by the checkpoint's agent in that of its evaluation, with
    raw rewards. Observations have all preprocessing; actions are numbered from 0. The dataset lies
    where Minari's own lie (MINARI_DATASETS_PATH).

    Args:
        ckpt_path: Checkpoint that lrl wrote.
        dataset_id: Name of the new dataset, such as cartpole/own-v0.
        episodes: Fresh episodes to play; null takes the saved replay of rank 0.
        epsilon: Probability of a random action in fresh episodes; null takes that of the
            checkpoint's evaluation.
        seed: Of fresh episodes and their random actions: the first one's is this one's offset.

    Returns:
        The number of episodes and of steps.

    Raises:
        ConfigError: An argument is wrong, the name is taken, the extra `minari` is not installed,
            no replay was saved, or it holds no whole step.
    """
    check_new(dataset_id)
    if episodes is None:
        if epsilon is not None or seed != 0:
            raise ConfigError(
                f"epsilon {epsilon} and seed {seed} are of fresh episodes, and would do nothing to "
                "a saved replay: give --episodes N, or leave them out"
            )
        source, spec, environment = _saved(ckpt_path)
        origin = f"rows of the replay that was saved with {Path(ckpt_path).name}"
    else:
        _check_fresh(episodes, seed)
        policy = load_policy(ckpt_path, epsilon=epsilon, seed=seed)
        source, spec = _played(policy, episodes, seed), policy.spec
        environment = policy.agent.stamp["environment"]
        origin = f"{episodes} episodes of {Path(ckpt_path).name} with epsilon {policy.epsilon:g}"
    algorithm = _algorithm(read_checkpoint(ckpt_path)["hyper_parameters"])
    about = _described(origin, environment)
    found = write_dataset(dataset_id, spec, source, _made_by(environment, spec), algorithm, about)
    print(f"written: {dataset_id}, {found[0]:,} episodes, {found[1]:,} steps")
    return found


def _described(origin: str, environment: Mapping[str, Any]) -> str:
    return (
        f"Written by lrl: {origin}. Observations are those of this environment with all of lrl's "
        f"preprocessing, actions are numbered from 0: {json.dumps(environment, default=str)}"
    )


def _check_fresh(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, got {seed}")


def _saved(ckpt_path: str) -> tuple[Iterator[RecordedEpisode], EnvSpec, Mapping[str, Any]]:
    """Return the episodes of a saved replay, their specification and their environment."""
    path, content = Path(ckpt_path), read_checkpoint(ckpt_path)
    if not isinstance(content, Mapping) or not saved_replay_of(content):
        raise ConfigError(
            f"no replay was saved with {path}: train with actor_learner.checkpoint_replay true and "
            "take last.ckpt, or have fresh episodes played with --episodes N"
        )
    if missing := missing_replay(path, content):
        raise ConfigError(missing)
    folder = replay_beside(path)
    try:
        manifest = read_manifest(folder / manifest_name(content["global_step"]))
        streams, spec = read_streams(folder, manifest)
    except (SavedReplayError, OSError) as error:
        raise ConfigError(f"the replay of {path} cannot be read: {error}") from error
    return episodes_of(streams, spec), spec, trained_in(content["lrl"])


def _played(policy: TrainedPolicy, episodes: int, seed: int) -> Iterator[RecordedEpisode]:
    """Play episodes one after the other."""
    frames = policy.agent.evaluation()["max_frames_per_episode"]
    env = policy.make_env()
    limit = max(1, frames // env.env_spec.frame_skip)  # which may be another than training's
    try:
        for number in range(episodes):
            yield _play(policy, env, TRAINING_SEED_FLOOR + seed + number, limit)
    finally:
        env.close()


def _play(policy: TrainedPolicy, env: gymnasium.Env, seed: int, limit: int) -> RecordedEpisode:
    observation, info = env.reset(seed=seed)
    observations, steps, state = [observation], [], None
    masks: list[Any] = [info.get("action_mask")]
    is_over = False
    while not is_over:
        action, state = policy.predict(
            observation, state, deterministic=False, action_masks=masks[-1]
        )
        observation, reward, terminated, truncated, info = env.step(action)
        truncated = truncated or len(steps) + 1 == limit
        is_over = terminated or truncated
        observations.append(observation)
        masks.append(info.get("action_mask"))
        steps.append((action, reward, terminated, truncated))
    actions, rewards, terminated, truncated = map(np.array, zip(*steps, strict=True))
    seen = map_leaves(lambda *leaves: np.stack(leaves), *observations)
    mask = None if masks[0] is None else np.stack(masks)
    return RecordedEpisode(seen, actions, rewards, terminated, truncated, mask)


def _made_by(settings: Mapping[str, Any], spec: EnvSpec) -> str | None:
    """Return what Gymnasium alone makes the same environment from, as JSON; None if it cannot.

    It is looked up in the registry as it is: nothing is imported.
    """
    preprocessed = settings.get("wrappers") or settings.get("frame_stack", 1) > 1
    # Leaves of a Tuple are named by their numbers, those in other leaves by their paths.
    preprocessed = preprocessed or any("." in n or n.isdigit() for n in spec.observation)
    known = gymnasium.registry.get(settings["id"].rpartition(":")[2])
    if preprocessed or "factory" in settings or "atari" in settings or known is None:
        return None
    limit = settings["max_episode_steps"]
    made = replace(
        known,
        kwargs={**known.kwargs, **settings["kwargs"]},
        max_episode_steps=known.max_episode_steps if limit is None else limit,
    )
    try:
        return made.to_json()
    except (TypeError, ValueError):  # it was registered with a class, or holds other objects
        return None


def _algorithm(settings: Mapping[str, Any]) -> str:
    names = [settings[name]["class_path"].rpartition(".")[2] for name in ("head", "bootstrap")]
    return f"lrl agent with {names[0]} and {names[1]}"
