"""The work that all sides do, and how each of them counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from benchmark.peers.window import Window, WindowOver


@dataclass(frozen=True)
class Task:
    """One agent and environment; hyperparameters are those of CleanRL's script for it.

    But for three on which the pace does not depend: the replay and the warm-up of Pong are shorter,
    so that its window begins soon, and epsilon stays the same.

    Attributes:
        env: Gymnasium's name.
        is_atari: Whether observations are stacks of four frames of 84x84.
        learning_rate: Of Adam.
        capacity: Environment steps that the replay keeps.
        batch_size: Transitions of an update.
        train_period: Environment steps between two updates.
        warm_up: Environment steps before the first update.
        target_period: Environment steps between two target networks.
        first_env_step: Where the window begins.
    """

    env: str
    is_atari: bool
    learning_rate: float
    capacity: int
    batch_size: int
    train_period: int
    warm_up: int
    target_period: int
    first_env_step: int
    gamma: float = 0.99
    epsilon: float = 0.1


TASKS = {
    # CleanRL's replay of a million steps would take 28 GB.
    "pong": Task("ALE/Pong-v5", True, 1e-4, 50_000, 32, 4, 1000, 1000, 1400),
    "cartpole": Task("CartPole-v1", False, 2.5e-4, 10_000, 128, 10, 10_000, 500, 15_000),
}


class CountedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Tells the window of every environment step; the updates follow from their period."""

    def __init__(self, env: gym.Env[Any, Any], task: Task, window: Window) -> None:
        super().__init__(env)
        self.task, self.window, self.env_steps = task, window, 0

    def step(self, action: Any) -> Any:
        """Step, or end the training."""
        updates = max(0, self.env_steps - self.task.warm_up) // self.task.train_period
        if self.window.is_over(self.env_steps, updates):
            raise WindowOver
        self.env_steps += 1
        return super().step(action)


def make_env(task: Task, window: Window) -> gym.Env[Any, Any]:
    """Return the environment as Stable-Baselines3 and CleanRL build it, of one game."""
    if not task.is_atari:
        return CountedEnv(gym.make(task.env), task, window)
    import ale_py
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gym.register_envs(ale_py)
    env = gym.make(task.env, frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.TransformObservation(
        AtariWrapper(env), lambda frame: frame[..., 0], gym.spaces.Box(0, 255, (84, 84), "uint8")
    )
    counted: gym.Env[Any, Any] = CountedEnv(env, task, window)
    return gym.wrappers.FrameStackObservation(counted, 4)
