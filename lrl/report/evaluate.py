"""`lrl evaluate`: scores of any number of checkpoints, on equal seeds and under one protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.envs import make_spec
from lrl.evaluation import TEST_SEED, EvaluationConfig, run_episodes
from lrl.learner.agent import Agent, find_device, load_agent
from lrl.report.scores import Score, aggregate, disagreements, score_files, write_scores
from lrl.report.statistics import Summary
from lrl.types import ConfigError, EnvSpec

_HEADER = (
    f"{'mean':>10} ± {'std':<9}{'median':>10}{'IQM':>10} {'[95 %]':<22}"
    f"{'length':>9}{'time-outs':>11}{'human':>8}  checkpoint"
)


def evaluate(
    ckpt_path: Sequence[str],
    episodes: int = 100,
    first_seed: int = TEST_SEED,
    epsilon: float | None = None,
    max_frames_per_episode: int | None = None,
    out: str | None = None,
    overwrite: bool = False,
    mix_protocols: bool = False,
    device: str = "auto",
) -> list[Score]:
    """Evaluate checkpoints on equal seeds, with raw rewards, as `lrl test` does.

    A checkpoint knows its environment and protocol, so no configuration is needed. All are checked
    before the first episode.

    Args:
        ckpt_path: Checkpoints that lrl wrote.
        episodes: Episodes of each checkpoint.
        first_seed: Seed of the first episode, from those of `lrl test`; the others count up.
        epsilon: Probability of a random action; null takes that of the checkpoint's evaluation.
        max_frames_per_episode: Frames after which an episode is cut off; null is as epsilon's.
        out: Write OUT.csv with a row per episode, and OUT.json with statistics and stamps.
        overwrite: Replace these files if they are there already.
        mix_protocols: Go on where checkpoints would not be measured alike.
        device: Where the networks act: auto, cpu, cuda, ...

    Returns:
        The scores, in the order of the checkpoints.

    Raises:
        ConfigError: An argument is wrong, a checkpoint cannot be used, or protocols differ.
    """
    _check_seeds(first_seed, episodes)
    files = score_files(out, overwrite) if out else None
    found = find_device(device)
    stamps = _check_checkpoints(ckpt_path, epsilon, max_frames_per_episode)
    _check_alike(stamps, mix_protocols)
    print(_HEADER)
    scores = []
    for path, stamp in stamps.items():
        agent = load_agent(path, found)  # again: one at a time in memory
        scores.append(_play(agent, stamp, range(first_seed, first_seed + episodes)))
        print(_score_line(scores[-1]), flush=True)
    if len(scores) > 1:
        _print_aggregate(scores)
    if files:
        write_scores(files, scores, str(found))
        print(f"written: {files[0]}, {files[1]}")
    return scores


def _play(agent: Agent, stamp: Mapping[str, Any], seeds: range) -> Score:
    policy = agent.policy()
    started = time.perf_counter()
    episodes = run_episodes(
        agent.env,
        lambda observation: policy(observation)[0],
        seeds,
        epsilon=stamp["evaluation"]["epsilon"],
        max_frames=stamp["evaluation"]["max_frames_per_episode"],
        num_threads=torch.get_num_threads(),
    )
    return Score(str(agent.path), stamp, episodes, seeds[0], time.perf_counter() - started)


def _check_seeds(first_seed: int, episodes: int) -> None:
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if first_seed < TEST_SEED or first_seed + episodes > TRAINING_SEED_FLOOR:
        raise ConfigError(
            f"first_seed is {first_seed} and episodes {episodes}, but only the seeds from "
            f"{TEST_SEED} to {TRAINING_SEED_FLOOR - 1} may be used: those below chose the best "
            "checkpoint, those above are training's"
        )


def _check_checkpoints(
    paths: Sequence[str], epsilon: float | None, max_frames: int | None
) -> dict[str, Mapping[str, Any]]:
    """Load every checkpoint once; return the stamps of what will be measured, by path."""
    stamps: dict[str, Mapping[str, Any]] = {}
    specs: dict[str, EnvSpec] = {}
    for path in paths:
        if Path(path).resolve() in [Path(other).resolve() for other in stamps]:
            raise ConfigError(f"ckpt_path: {path} is given twice, and would count twice")
        agent = load_agent(path)
        measured = dict(agent.stamp["evaluation"])
        if epsilon is not None:
            measured["epsilon"] = epsilon
        if max_frames is not None:
            measured["max_frames_per_episode"] = max_frames
        EvaluationConfig(**measured)  # checks their ranges
        stamps[path] = {**agent.stamp, "evaluation": measured}
        env = repr(agent.env)
        if env not in specs:
            specs[env] = make_spec(agent.env)
        if specs[env] != agent.module.env_spec:
            raise ConfigError(
                f"checkpoint {path} was trained on {agent.module.env_spec}, but here "
                f"{agent.env.id} is {specs[env]}: use the versions of its stamp"
            )
    if not stamps:
        raise ConfigError("ckpt_path must name at least one checkpoint")
    return stamps


def _check_alike(stamps: Mapping[str, Mapping[str, Any]], mix_protocols: bool) -> None:
    found = disagreements(stamps)
    if not found:
        return
    parts = [
        f"{path} has {name} {value} instead of {others}"
        for path, settings in found.items()
        for name, (others, value) in settings.items()
    ]
    message = f"protocols differ, so that scores do not compare: {', '.join(parts)}"
    if not mix_protocols:
        raise ConfigError(f"{message}: --mix_protocols true goes on all the same")
    print(message)


def _score_line(score: Score) -> str:
    human = score.human_normalised
    return (
        _statistics(score.summary())
        + f"{score.episodes.lengths.mean():>9.1f}{score.episodes.timed_out.sum():>11}"
        + f"{'-' if human is None else f'{human:.0%}':>8}  {score.checkpoint}"
    )


def _statistics(summary: Summary, digits: int = 1) -> str:
    low, high = summary.iqm_low, summary.iqm_high
    interval = "" if low is None else f"[{low:.{digits}f}, {high:.{digits}f}]"
    return (
        f"{summary.mean:>10.{digits}f} ± {summary.std:<9.{digits}f}{summary.median:>10.{digits}f}"
        f"{summary.iqm:>10.{digits}f} {interval:<22}"
    )


def _print_aggregate(scores: Sequence[Score]) -> None:
    print("over checkpoints, each with its mean:")
    for name, summary in aggregate(scores).items():
        digits = 3 if name == "human-normalised" else 1
        print(f"{_statistics(summary, digits)}{'':28}  {name}, {summary.count} checkpoints")
