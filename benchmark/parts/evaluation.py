"""Speed of evaluation, and what evaluation beside training costs the learner.

Run `python -m benchmark.parts.evaluation`; about ten minutes on two idle cores.

1. 100 episodes of CartPole by a policy that never fails (500 steps each, the longest there are),
   with the forward of a network in every step.
2. 8 games of Pong played in parallel to their ends with random actions, against the bare vector
   environment of ale-py with as many steps: what evaluation adds, the network apart. And with the
   Nature network.
3. Learner steps per second of a synchronous run while an evaluation of about 30 seconds runs in the
   background, against the same run before and after it.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from statistics import median
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt

from benchmark.arguments import count
from lrl.actors.actor import FunctionPolicy
from lrl.actors.config import ActorConfig
from lrl.actors.policy import NetworkPolicy
from lrl.callbacks import ActorLearnerCallback
from lrl.envs import EnvConfig, make_envs, make_spec
from lrl.evaluation.episodes import EvaluationConfig, run_episodes
from lrl.learner import DQN, ReplayDataModule
from lrl.networks import MLPEncoder, NatureEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe

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
        holding = FunctionPolicy(balance)
        episodes = run_episodes(env, holding, range(100), epsilon=0.0, max_frames=_FOR_EVER)
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
        env, FunctionPolicy(values), range(games),
        epsilon=0.0, max_frames=_FOR_EVER, num_threads=num_threads,
    )  # fmt: skip
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
    """Counts the learner steps of each stretch with evaluation, and of each without.

    Args:
        evaluation: What runs or rests.
    """

    def __init__(self, evaluation: Any) -> None:
        self.evaluation = evaluation
        self.stretches: list[tuple[bool, int, float]] = []  # evaluated, learner steps, seconds
        self._began: tuple[bool, int, float] | None = None

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Begin another stretch whenever an evaluation begins or ends."""
        now = (self.evaluation._is_awaiting, trainer.global_step, time.perf_counter())
        if self._began is None:
            self._began = now
        elif now[0] != self._began[0]:
            evaluated, step, started = self._began
            self.stretches.append((evaluated, now[1] - step, now[2] - started))
            self._began = now


def shares_of_learner(evaluations: int, period: int, episodes: int) -> tuple[list[float], float]:
    """Return the share of its speed that the learner keeps beside evaluations, and their seconds.

    One synchronous run of MountainCar, in which stretches with an evaluation alternate with
    stretches without: each evaluation is compared with the stretches before and after it, so that a
    machine that gets faster or slower meanwhile does not count. The episodes last 200 steps until
    something has been learnt, and nothing is in so few steps.

    Args:
        evaluations: How many are compared.
        period: Learner steps from one to the next; as long again as an evaluation should be left.
        episodes: Episodes of an evaluation; one after the other is played in the background.
    """
    steps = (evaluations + 1) * period + 1  # the last stretch is ended by an evaluation
    callback = ActorLearnerCallback(100, period, 0, evaluation="background")
    clock = _Clock(callback.evaluation)
    data = ReplayDataModule(
        EnvConfig("MountainCar-v0"),
        ActorConfig(num_actors=0),
        evaluation=EvaluationConfig(episodes=episodes),
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
    if len(clock.stretches) != 2 * evaluations + 1:
        raise ValueError(
            f"period={period} learner steps is over before {episodes} episodes are: raise it"
        )
    speeds = [steps / seconds for _, steps, seconds in clock.stretches]
    busy = range(1, 2 * evaluations, 2)
    shares = [2 * speeds[index] / (speeds[index - 1] + speeds[index + 1]) for index in busy]
    return shares, median(clock.stretches[index][2] for index in busy)


def main() -> None:
    """Print all figures, each a median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=count, default=3, help="Runs of each measurement.")
    parser.add_argument("--evaluations", type=count, default=5, help="Evaluations to compare.")
    parser.add_argument("--period", type=count, default=24_000, help="Learner steps to the next.")
    parser.add_argument("--episodes", type=count, default=8000, help="Episodes of an evaluation.")
    arguments = parser.parse_args()
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
    shares, lasted = shares_of_learner(arguments.evaluations, arguments.period, arguments.episodes)
    print(
        f"learner beside evaluations of {lasted:.0f} s: {median(shares):.1%} of its steps/s; "
        f"one by one {', '.join(f'{share:.1%}' for share in shares)}"
    )


if __name__ == "__main__":
    main()
