"""Speed of evaluation, and what evaluation beside training costs the learner.

Run `python -m lrl.benchmark.evaluation`; about five minutes on two idle cores.

1. 100 episodes of CartPole by a policy that never fails (500 steps each, the longest there are),
   with the forward of a network in every step.
2. 8 games of Pong played in parallel to their ends with random actions, against the bare vector
   environment of ale-py with as many steps: what evaluation adds, the network apart. And with the
   Nature network.
3. Learner steps per second of a synchronous run whose evaluations take about 30 seconds, without
   them and with them in the background, in alternation.
"""

from __future__ import annotations

import argparse
import functools
import logging
import tempfile
import time
from statistics import median
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt

from lrl.actors.config import ActorConfig
from lrl.actors.policy import NetworkPolicy
from lrl.callbacks import ActorLearnerCallback
from lrl.envs import EnvConfig, make_envs, make_spec
from lrl.evaluation import EvaluationConfig, run_episodes
from lrl.learner import DQN, ReplayDataModule
from lrl.networks import MLPEncoder, NatureEncoder, NetworkRecipe, ScalarHead
from lrl.recipe import Recipe

_FOR_EVER = 10**9


def cartpole_seconds(repeats: int) -> list[float]:
    """Return how long 100 episodes of 500 steps take, once for each repeat."""
    env = EnvConfig("CartPole-v1")
    spec = make_spec(env)
    policy = NetworkPolicy(
        NetworkRecipe(spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead)).build()
    )

    def balance(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        """Push to the side to which the pole is falling, and to the middle."""
        policy(observation)
        lean = observation @ np.array([0.1, 0.5, 5.0, 1.0], np.float32)
        return np.stack([-lean, lean], axis=1)

    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        episodes = run_episodes(env, balance, range(100), epsilon=0.0, max_frames=_FOR_EVER)
        seconds.append(time.perf_counter() - started)
        assert (episodes.lengths == 500).all(), "the policy is meant to hold the pole to the end"
    return seconds


def pong_steps_per_second(network: bool, num_threads: int) -> tuple[float, float]:
    """Return the steps per second of evaluation, and of the bare environments for as long.

    Environments are built and reset by both. Games that are over are stepped on by both, too, until
    the longest is.
    """
    env, games = EnvConfig("ALE/Pong-v5"), 8
    spec = make_spec(env)
    recipe = NetworkRecipe(spec, Recipe.of(NatureEncoder), Recipe.of(ScalarHead))
    policy = NetworkPolicy(recipe.build())
    rng = np.random.default_rng(0)
    steps = 0

    def values(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        nonlocal steps
        steps += 1
        if network:
            policy(observation)
        return rng.random((games, spec.num_actions), np.float32)

    started = time.perf_counter()
    run_episodes(
        env, values, range(games), epsilon=0.0, max_frames=_FOR_EVER, num_threads=num_threads
    )
    evaluation = time.perf_counter() - started
    started = time.perf_counter()
    envs: Any = make_envs(env, games, training=False, num_threads=num_threads)
    envs.reset(range(games))
    for _ in range(steps):
        envs._backend.step(rng.integers(spec.num_actions, size=games))
    bare = time.perf_counter() - started
    envs.close()
    return games * steps / evaluation, games * steps / bare


class _Clock(L.Callback):
    """Times the learner steps after the first ones."""

    def __init__(self, skipped: int) -> None:
        self.skipped = skipped
        self.started = self.seconds = 0.0

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Start after the first steps."""
        if trainer.global_step == self.skipped:
            self.started = time.perf_counter()
        self.seconds = time.perf_counter() - self.started


def learner_steps_per_second(steps: int, episodes: int) -> tuple[float, float]:
    """Return the learner's speed in a synchronous run of MountainCar, and seconds an evaluation.

    Its episodes last 200 steps until something has been learnt, and nothing is in so few steps.

    Args:
        steps: Learner steps.
        episodes: Episodes of an evaluation; one after the other is played in the background. 0
            evaluates nothing.
    """
    clock = _Clock(skipped=steps // 10)
    callback = ActorLearnerCallback(100, 0, 0)
    if episodes:
        callback = ActorLearnerCallback(100, 500, 0, evaluation="background")
    data = ReplayDataModule(
        EnvConfig("MountainCar-v0"),
        ActorConfig(num_actors=0),
        evaluation=EvaluationConfig(episodes=episodes or 1),
        learner_threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_steps=steps,
            callbacks=[callback, clock],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(DQN(functools.partial(MLPEncoder, hidden_sizes=(256, 256))), datamodule=data)
    lasted = getattr(callback.evaluation, "seconds", 0.0)
    return (steps - clock.skipped) / clock.seconds, lasted


def main() -> None:
    """Print all figures, each a median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="Runs of each measurement.")
    parser.add_argument("--steps", type=int, default=40_000, help="Learner steps of a run.")
    parser.add_argument("--episodes", type=int, default=3000, help="Episodes in the background.")
    arguments = parser.parse_args()
    logging.getLogger("lrl").setLevel(logging.ERROR)  # evaluations that are left out
    repeats = range(arguments.repeats)
    seconds = median(cartpole_seconds(arguments.repeats))
    print(f"CartPole, 100 episodes of 500 steps: {seconds:.2f} s")
    for num_threads in (1, 2):
        for network in (False, True):
            speeds = [pong_steps_per_second(network, num_threads) for _ in repeats]
            share = median(evaluation / bare for evaluation, bare in speeds)
            speed, bare = (median(column) for column in zip(*speeds, strict=True))
            print(
                f"Pong, 8 games, {num_threads} thread(s){', Nature network' * network}: "
                f"{speed:,.0f} of {bare:,.0f} steps/s bare ({share:.0%})"
            )
    pairs = [
        (
            learner_steps_per_second(arguments.steps, 0)[0],
            *learner_steps_per_second(arguments.steps, arguments.episodes),
        )
        for _ in repeats
    ]
    share = median(beside / alone for alone, beside, _ in pairs)
    alone, beside, lasted = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"learner beside evaluations of {lasted:.0f} s: {beside:,.0f} of {alone:,.0f} learner "
        f"steps/s ({share:.0%})"
    )


if __name__ == "__main__":
    main()
