"""`lrl evaluate`: scores of any number of checkpoints, on equal seeds and under one protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.checkpoints.compatibility import weights_digest
from lrl.checkpoints.stamp import env_of, trained_in
from lrl.envs import make_spec
from lrl.evaluation.episodes import (
    TEST_SEED,
    common_protocol,
    differing_spaces,
    run_episodes,
)
from lrl.learner.agent import Agent, find_device, load_agent
from lrl.processes.interrupt import interrupt
from lrl.report.scores import (
    HUMAN_NORMALISED,
    Score,
    aggregate,
    disagreements,
    independent,
    score_files,
    write_scores,
)
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

    A checkpoint knows its environment and protocol, so no configuration is needed. All are loaded
    and checked before the first episode.

    Args:
        ckpt_path: Checkpoints that lrl wrote.
        episodes: Episodes of each checkpoint.
        first_seed: Seed of the first episode, from those of `lrl test`; the others count up.
        epsilon: Probability of a random action; null takes that of the checkpoint's evaluation.
        max_frames_per_episode: Frames after which an episode is cut off, at most the game's own
            limit; null is as epsilon's.
        out: After every checkpoint, write OUT.csv with a row per episode, and OUT.json with
            statistics and stamps.
        overwrite: Replace these files if they are there already.
        mix_protocols: Go on where checkpoints would not be measured alike.
        device: Where the networks act: auto, cpu, cuda, ...

    Returns:
        The scores, in the order of the checkpoints.

    Raises:
        ConfigError: An argument is wrong, a checkpoint cannot be used, or protocols differ.
    """
    _check_seeds(first_seed, episodes)
    seeds = range(first_seed, first_seed + episodes)
    files = score_files(out, overwrite) if out is not None else None
    found = find_device(device)
    agents = _load(ckpt_path, epsilon, max_frames_per_episode, seeds)
    _check_alike({str(agent.path): agent.stamp for agent in agents}, mix_protocols)
    print(_HEADER)
    scores: list[Score] = []
    interrupt.install()
    try:
        while agents:
            scores.append(_play(agents.pop(0), seeds, found))
            print(_score_line(scores[-1]), flush=True)
            if files:
                write_scores(files, scores, str(found))
    finally:
        interrupt.uninstall()
    if len(scores) > 1:
        _print_aggregate(scores)
    if files:
        print(f"written: {files[0]}, {files[1]}")
    return scores


def _play(agent: Agent, seeds: range, device: torch.device) -> Score:
    agent.module.to(device)
    policy = agent.policy()
    started = time.perf_counter()
    episodes = run_episodes(
        agent.env,
        policy,
        seeds,
        epsilon=agent.stamp["evaluation"]["epsilon"],
        max_frames=agent.stamp["evaluation"]["max_frames_per_episode"],
        num_threads=torch.get_num_threads(),
    )
    seconds = time.perf_counter() - started
    weights = weights_digest(agent.module.state_dict())
    return Score(str(agent.path), agent.stamp, episodes, seconds, weights)


def _check_seeds(first_seed: int, episodes: int) -> None:
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if first_seed < TEST_SEED or first_seed + episodes > TRAINING_SEED_FLOOR:
        raise ConfigError(
            f"first_seed is {first_seed} and episodes {episodes}, but only the seeds from "
            f"{TEST_SEED} to {TRAINING_SEED_FLOOR - 1} may be used: those below chose the best "
            "checkpoint, those above are training's"
        )


def _load(
    paths: Sequence[str], epsilon: float | None, max_frames: int | None, seeds: range
) -> list[Agent]:
    """Load all checkpoints, once: training may replace a file before its turn to play comes."""
    agents: list[Agent] = []
    specs: dict[str, EnvSpec] = {}
    for path in paths:
        if Path(path).resolve() in [other.path.resolve() for other in agents]:
            raise ConfigError(f"ckpt_path: {path} is given twice, and would count twice")
        agent = load_agent(path)
        del agent.module.target  # half of the memory, and for learning only
        env = repr(agent.env)
        if env not in specs:
            try:
                specs[env] = make_spec(agent.env)
            except ConfigError as error:
                raise ConfigError(f"checkpoint {path}: {error}") from error
        _check_spec(agent, specs[env])
        agents.append(_measured(agent, agent.evaluation(epsilon, max_frames), seeds))
    if not agents:
        raise ConfigError("ckpt_path must name at least one checkpoint")
    return agents


def _check_spec(agent: Agent, found: EnvSpec) -> None:
    trained = agent.module.env_spec
    assert trained is not None
    if other := differing_spaces(trained, found):
        raise ConfigError(
            f"checkpoint {agent.path}: {agent.env.id} has {', '.join(other)} here: use the "
            "versions of its stamp"
        )


def _measured(agent: Agent, evaluation: Mapping[str, Any], seeds: range) -> Agent:
    """Return the agent with the stamp of its score."""
    limits = evaluation["epsilon"], evaluation["max_frames_per_episode"]
    trained = env_of({**agent.stamp, "environment": trained_in(agent.stamp)})
    stamp = {
        **agent.stamp,
        "protocol": common_protocol((trained, agent.env), *limits),
        "evaluation": {**evaluation, "episodes": len(seeds), "first_seed": seeds[0]},
    }
    return replace(agent, stamp=stamp)


def _check_alike(stamps: Mapping[str, Mapping[str, Any]], mix_protocols: bool) -> None:
    found = disagreements(stamps)
    if not found:
        return
    parts = [
        f"{path} has "
        + ", ".join(f"{name} {own} instead of {others}" for name, (others, own) in settings.items())
        for path, settings in found.items()
    ]
    message = f"protocols differ, so that scores do not compare: {'; '.join(parts)}"
    if not mix_protocols:
        raise ConfigError(f"{message}: --mix_protocols true goes on all the same")
    print(message)


def _score_line(score: Score) -> str:
    human = score.human_normalised
    return (
        _statistics(score.summary)
        + f"{score.episodes.lengths.mean():>9.1f}{score.episodes.timed_out.sum():>11}"
        + f"{'-' if human is None else f'{human:.0%}':>8}  {score.checkpoint}"
    )


def _statistics(summary: Summary) -> str:
    low, high, digits = summary.iqm_low, summary.iqm_high, summary.digits
    interval = "" if low is None else f"[{low:.{digits}f}, {high:.{digits}f}]"
    return (
        f"{summary.mean:>10.{digits}f} ± {summary.std:<9.{digits}f}{summary.median:>10.{digits}f}"
        f"{summary.iqm:>10.{digits}f} {interval:<22}"
    )


def _print_aggregate(scores: Sequence[Score]) -> None:
    print("over checkpoints, each with its mean:")
    for name, summary in aggregate(scores).items():
        runs = [score for score in scores if name in (score.environment, HUMAN_NORMALISED)]
        note = "" if independent(runs) else " (no interval: training seeds repeat)"
        print(f"{_statistics(summary)}{'':28}  {name}, {summary.count} checkpoints{note}")
