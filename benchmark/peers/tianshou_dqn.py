"""Tianshou's DQN, as installed: its policy, collector and replay buffer, driven step by step."""

from __future__ import annotations

from typing import Any

import torch
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.policy import DQNPolicy
from tianshou.utils.net.common import Net
from torch import nn

from benchmark.peers.cleanrl_recipe import make_network
from benchmark.peers.window import Window
from benchmark.peers.workloads import Task, make_env


class _Pixels(nn.Module):
    """Tianshou hands over arrays and expects a state beside the values."""

    def __init__(self, task: Task, num_actions: int) -> None:
        super().__init__()
        self.layers = make_network(task, num_actions)

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:
        return self.layers(torch.as_tensor(obs)), state


def train(task: Task, window: Window) -> None:
    """Train until the window is over, which it raises."""
    envs = DummyVectorEnv([lambda: make_env(task, window)])
    num_actions = int(envs.action_space[0].n)
    network: nn.Module
    if task.is_atari:
        network = _Pixels(task, num_actions)
    else:
        network = Net(4, num_actions, hidden_sizes=[120, 84])
    policy = DQNPolicy(
        network,
        torch.optim.Adam(network.parameters(), lr=task.learning_rate),
        discount_factor=task.gamma,
        target_update_freq=task.target_period // task.train_period,
        is_double=False,
    )
    policy.set_eps(task.epsilon)
    replay = VectorReplayBuffer(task.capacity, 1)
    collector = Collector(policy, envs, replay, exploration_noise=True)
    collector.collect(n_step=task.warm_up, random=True)
    while True:
        collector.collect(n_step=task.train_period)
        policy.update(task.batch_size, replay)
