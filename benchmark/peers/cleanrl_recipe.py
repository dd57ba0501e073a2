"""CleanRL's DQN, written anew after its recipe: a loop, one environment, SB3's replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from torch import Tensor, nn

from benchmark.peers.window import Window, WindowOver
from benchmark.peers.workloads import Task, make_env


class _Scale(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        return frames / 255.0


def make_network(task: Task, num_actions: int) -> nn.Module:
    """Return CleanRL's network."""
    if not task.is_atari:
        return nn.Sequential(
            nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_actions)
        )
    return nn.Sequential(
        _Scale(),
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, num_actions),
    )  # fmt: skip


def train(
    task: Task, window: Window, epsilon: Callable[[int], float] | None = None, seed: int = 0
) -> nn.Module:
    """Train until the window is over; return the network.

    Args:
        task: What is learnt.
        window: Ends it.
        epsilon: Of an environment step; None for the task's own.
        seed: Of everything random.
    """
    torch.manual_seed(seed)
    envs = gym.vector.SyncVectorEnv(
        [lambda: make_env(task, window)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    space: Any = envs.single_action_space
    online, target = make_network(task, space.n), make_network(task, space.n)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=task.learning_rate)
    replay = ReplayBuffer(
        task.capacity, envs.single_observation_space, space, "cpu",
        optimize_memory_usage=task.is_atari, handle_timeout_termination=False,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    space.seed(seed)
    observation, _ = envs.reset(seed=seed)
    step = 0
    while True:
        chance = epsilon(step) if epsilon else task.epsilon
        if step < task.warm_up or rng.random() < chance:
            action = np.array([space.sample()])
        else:
            with torch.no_grad():
                action = online(torch.as_tensor(observation)).argmax(dim=1).numpy()
        try:
            following, reward, terminated, truncated, infos = envs.step(action)
        except WindowOver:
            return online
        last = following.copy()
        if truncated.any():
            last[0] = infos["final_obs"][0]
        replay.add(observation, last, action, reward, terminated, [{}])
        observation, step = following, step + 1
        if step <= task.warm_up:
            continue
        if step % task.train_period == 0:
            _update(task, online, target, optimizer, replay)
        if step % task.target_period == 0:
            target.load_state_dict(online.state_dict())


def _update(
    task: Task, online: nn.Module, target: nn.Module, optimizer: Any, replay: ReplayBuffer
) -> None:
    data = replay.sample(task.batch_size)
    with torch.no_grad():
        best = target(data.next_observations).max(dim=1).values
        goal = data.rewards.flatten() + task.gamma * best * (1 - data.dones.flatten())
    value = online(data.observations).gather(1, data.actions).squeeze()
    loss = nn.functional.mse_loss(goal, value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
