"""Ways to act in Atari games on a machine's cores: is asynchronous stepping worth its code?

Run `python -m benchmark.parts.stepping` on idle cores; under a minute.

All of them play Pong in 16 environments with a forward of the Nature network for every action:

- `one vector`: forward, then step all environments, as an actor of lrl does;
- `two groups`: one group's emulators run (`send`, `recv`) while the other's forward does;
- `half batches`: ale-py hands out the 8 environments of 16 that are ready first;
- `two processes`: two actors of 8 environments, each as in `one vector`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from statistics import median
from typing import Any

import torch
from ale_py import AtariVectorEnv

from benchmark.arguments import count, duration
from lrl.actors.policy import NetworkPolicy
from lrl.envs import EnvConfig, make_spec
from lrl.networks import NatureEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe

ENVS = 16


def _policy() -> NetworkPolicy:
    torch.set_num_threads(1)
    spec = make_spec(EnvConfig("ALE/Pong-v5"))
    return NetworkPolicy(
        NetworkRecipe(spec, Recipe.of(NatureEncoder), Recipe.of(ScalarHead)).build()
    )


def _vector(num_envs: int, **settings: Any) -> AtariVectorEnv:
    settings = {"num_threads": 1, **settings}
    return AtariVectorEnv("pong", num_envs, use_fire_reset=False, reward_clipping=False, **settings)


def one_vector(seconds: float, num_envs: int = ENVS) -> float:
    """Return environment steps per second of one process with one vector."""
    policy, envs = _policy(), _vector(num_envs)
    observation, _ = envs.reset(seed=0)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        q = policy(observation).values
        observation = envs.step(q.argmax(axis=1))[0]
        steps += num_envs
    return steps / (time.perf_counter() - started)


def two_groups(seconds: float) -> float:
    """Return the same with two groups whose emulators run during the other's forward."""
    policy = _policy()
    groups = [_vector(ENVS // 2) for _ in range(2)]
    for group in groups:
        observation, _ = group.reset(seed=0)
        group.send(policy(observation)[0].argmax(axis=1))
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for group in groups:
            observation = group.recv()[0]
            group.send(policy(observation)[0].argmax(axis=1))
            steps += ENVS // 2
    rate = steps / (time.perf_counter() - started)
    for group in groups:
        group.recv()
    return rate


def half_batches(seconds: float) -> float:
    """Return the same with ale-py's batches of those environments that are ready first."""
    policy, envs = _policy(), _vector(ENVS, batch_size=ENVS // 2)
    observation, _ = envs.reset(seed=0)  # of the first half; the other is waited for here
    envs.send(policy(observation)[0].argmax(axis=1))
    observation = envs.recv()[0]
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        envs.send(policy(observation)[0].argmax(axis=1))
        observation = envs.recv()[0]
        steps += ENVS // 2
    return steps / (time.perf_counter() - started)


def two_processes(seconds: float) -> float:
    """Return the sum of two processes that each step half of the environments."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(one_vector, [(0.1, ENVS // 2)] * 2)  # both have started
        return sum(pool.starmap(one_vector, [(seconds, ENVS // 2)] * 2))


def main() -> None:
    """Print the steps per second of each way, medians of runs in alternation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=duration, default=3.0, help="Seconds of a run.")
    parser.add_argument("--repeats", type=count, default=3, help="Runs of each way.")
    arguments = parser.parse_args()
    ways = [one_vector, two_groups, half_batches, two_processes]
    runs = [[way(arguments.seconds) for way in ways] for _ in range(arguments.repeats)]
    for way, rates in zip(ways, zip(*runs, strict=True), strict=True):
        print(f"{way.__name__.replace('_', ' ')}: {median(rates):,.0f} env steps/s")


if __name__ == "__main__":
    main()
