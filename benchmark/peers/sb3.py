"""Stable-Baselines3's DQN, as installed."""

from __future__ import annotations

from stable_baselines3 import DQN

from benchmark.peers.window import Window
from benchmark.peers.workloads import Task, make_env


def train(task: Task, window: Window) -> None:
    """Train until the window is over, which it raises."""
    model = DQN(
        "CnnPolicy" if task.is_atari else "MlpPolicy",
        make_env(task, window),
        learning_rate=task.learning_rate,
        buffer_size=task.capacity,
        learning_starts=task.warm_up,
        batch_size=task.batch_size,
        gamma=task.gamma,
        train_freq=task.train_period,
        gradient_steps=1,
        target_update_interval=task.target_period,
        exploration_initial_eps=task.epsilon,
        exploration_final_eps=task.epsilon,
        policy_kwargs=None if task.is_atari else {"net_arch": [120, 84]},
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=10**9)
