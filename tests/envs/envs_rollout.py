"""Rollouts with random actions, shared by the environment tests."""

from typing import Any

import numpy as np

from lrl.envs import StreamEnvs


def rollout(envs: StreamEnvs, seeds, steps, seed=0) -> list[Any]:
    """Return the observations, rewards and end flags of random actions."""
    rng = np.random.default_rng(seed)
    observation = envs.reset(seeds)
    trace = [(observation, np.zeros(len(seeds)), *np.zeros((2, len(seeds)), bool))]
    for _ in range(steps):
        step = envs.step(rng.integers(envs.spec.num_actions, size=len(seeds)))
        trace.append(step[:4])
    return trace


def assert_same(trace, other):
    for row, other_row in zip(trace, other, strict=True):
        for value, other_value in zip(row, other_row, strict=True):
            np.testing.assert_array_equal(value, other_value)
