"""The learner: dataset, datamodule, bootstrap rules and the DQN module."""

from lrl.learner.bootstrap import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
    NoBootstrap,
)
from lrl.learner.datamodule import ReplayDataModule
from lrl.learner.dataset import ReplayDataset
from lrl.learner.dqn import DQN
from lrl.pools.pool import ActorPool, Delivery, Episode

__all__ = [
    "DQN",
    "ActorPool",
    "BootstrapRule",
    "Delivery",
    "DoubleBootstrap",
    "Episode",
    "MaxBootstrap",
    "MunchausenBootstrap",
    "NoBootstrap",
    "ReplayDataModule",
    "ReplayDataset",
]
