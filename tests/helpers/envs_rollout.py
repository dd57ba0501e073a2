"""Rollouts with random actions and Atari games, shared by the environment tests."""

from typing import Any

import numpy as np

from lrl.envs import AtariConfig, EnvConfig, StreamEnvs, make_envs


def rollout(envs: StreamEnvs, seeds, steps) -> list[Any]:
    """Return the observations, rewards and end flags of random actions."""
    rng = np.random.default_rng(0)
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


def record_info(envs) -> list[dict[str, Any]]:
    """Return a list that receives what the backend of Atari games tells about resets and steps."""
    backend, infos = envs._backend, []

    def recorded(method):
        def call(*args, **kwargs):
            answer = method(*args, **kwargs)
            infos.append(answer[-1])
            return answer

        return call

    backend.reset, backend.step = recorded(backend.reset), recorded(backend.step)
    return infos


def make_atari(game="Pong", num_envs=1, *, training=True, num_threads=1, **protocol):
    from lrl.envs.atari import AtariEnvs

    config = EnvConfig(f"ALE/{game}-v5", atari=AtariConfig(**protocol))
    envs = make_envs(config, num_envs, training=training, num_threads=num_threads)
    assert isinstance(envs, AtariEnvs)
    return envs
