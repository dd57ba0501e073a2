"""The learner: dataset, datamodule, bootstrap rules and the DQN module."""

from lrl.learner.bootstrap import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
)
from lrl.learner.datamodule import ReplayDataModule
from lrl.learner.dataset import ReplayDataset
from lrl.learner.dqn import DQN

__all__ = [
    "DQN",
    "BootstrapRule",
    "DoubleBootstrap",
    "MaxBootstrap",
    "MunchausenBootstrap",
    "ReplayDataModule",
    "ReplayDataset",
]
