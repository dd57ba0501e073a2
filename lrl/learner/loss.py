"""The loss of a batch: a function of tensors alone, which torch can compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor

from lrl.learner.bootstrap import BootstrapRule
from lrl.networks import QNetwork
from lrl.networks.heads import TDLoss
from lrl.types import Batch, ConfigError

LossFunction = Callable[[Batch, QNetwork, QNetwork, BootstrapRule], tuple[Tensor, TDLoss]]


def weighted_loss(
    batch: Batch, online: QNetwork, target: QNetwork, bootstrap: BootstrapRule
) -> tuple[Tensor, TDLoss]:
    """Return the mean loss, weighted by importance, and the losses of the rows."""
    with torch.no_grad():
        goal = bootstrap(batch, online, target)
    td = online.head.td_loss(online(batch.observation), batch.action, goal)
    return (batch.weights * td.loss).mean(), td  # the only place where importance weights act


def compiled_loss(device: torch.device) -> LossFunction:
    """Return `weighted_loss` as torch compiles it, at its first call, which takes half a minute.

    Raises:
        ConfigError: There is no compiler for a learner on a CPU.
    """
    if device.type == "cpu" and not any(
        shutil.which(name) for name in (os.environ.get("CXX") or "g++", "g++", "clang++", "cl")
    ):
        raise ConfigError(
            "model.compile_loss is true, but there is no C++ compiler: install g++ or clang++, or "
            "set it to false"
        )
    return torch.compile(weighted_loss)
