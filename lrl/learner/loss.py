"""The loss of a batch: a function of its own, which torch can compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lrl.functional.bootstrap import masked
from lrl.learner.bootstrap import BootstrapRule
from lrl.networks import QNetwork
from lrl.networks.heads import TDLoss
from lrl.types import Batch, ConfigError

if TYPE_CHECKING:
    from lrl.learner.dqn import DQN

_COMPILERS = {"darwin": "clang++", "win32": "cl"}  # those that torch looks for
LossFunction = Callable[[Batch, QNetwork, QNetwork, BootstrapRule, Any], tuple[Tensor, TDLoss]]
"""See `weighted_loss`."""


def weighted_loss(
    batch: Batch,
    online: QNetwork,
    target: QNetwork,
    bootstrap: BootstrapRule,
    answer: Any = None,
) -> tuple[Tensor, TDLoss]:
    """Return the mean loss, weighted by importance, and the losses of the rows.

    Args:
        batch: The transitions.
        online: The network that learns.
        target: The target network.
        bootstrap: The rule of the target.
        answer: What the rule has asked of the target network already; None asks now.
    """
    with torch.no_grad():
        answer = bootstrap.ask(batch, target) if answer is None else answer
        goal = bootstrap(batch, online, answer)
    td = online.head.td_loss(online(batch.observation), batch.action, goal)
    return (batch.weights * td.loss).mean(), td  # the only place where importance weights act


@torch.no_grad()
def batch_statistics(batch: Batch, online: QNetwork, loss: Tensor, td: TDLoss) -> dict[str, Tensor]:
    """Return what is logged of a batch, at the price of one more look at its observations.

    Args:
        batch: The transitions.
        online: The network that learns, before its update.
        loss: Of `weighted_loss`.
        td: Of `weighted_loss`.
    """
    best = masked(online.q_values(batch.observation), batch.action_mask).argmax(dim=1)
    return {
        "train/loss": loss.detach(),
        "train/td_error_mean": (td.prediction - td.target).abs().mean(),
        "train/q_mean": td.prediction.mean(),
        "train/target_mean": td.target.mean(),
        "train/target_minus_q_mean": (td.target - td.prediction).mean(),
        "train/reward_mean": batch.reward.mean(),
        "train/greedy_fraction": (best == batch.action).float().mean(),
    }


def compiled_loss(module: DQN) -> LossFunction:
    """Return `weighted_loss` as torch compiles it, at its first call, which takes half a minute.

    Raises:
        ConfigError: The module would not use it, or there is no compiler for a learner on a CPU.
    """
    if module.replaces("compute_loss"):
        raise ConfigError(
            f"model.compile_loss is true, but {type(module).__name__} has a compute_loss of its "
            "own, which it does not compile: set it to false, or decorate that with torch.compile"
        )
    compiler = os.environ.get("CXX") or _COMPILERS.get(sys.platform, "g++")
    if module.device.type == "cpu" and (fault := _fault_of(compiler)):
        raise ConfigError(
            f"model.compile_loss is true, but {fault}: install one, name another in the "
            "environment variable CXX, or set compile_loss to false"
        )
    return torch.compile(weighted_loss)


def _fault_of(compiler: str) -> str | None:
    if not shutil.which(compiler):
        return f"there is no C++ compiler {compiler}"
    if sys.platform == "win32":  # whose compiler knows no --version
        return None
    try:
        subprocess.run([compiler, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"the C++ compiler {compiler} does not work (`{compiler} --version` fails)"
    return None
