"""From batches to updates: what happens around an agent's loss, whoever optimises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lrl.learner.bootstrap import BootstrapRule, NextValues, ask_target
from lrl.networks import QNetwork, onednn_products
from lrl.networks.heads import TDLoss
from lrl.types import Batch, ConfigError

_ROWS_ASKED_AT_ONCE = 512  # on a CPU, twice as many of Atari's take longer for each
_COMPILERS = {"darwin": "clang++", "win32": "cl"}  # those that torch looks for


class Losses(NamedTuple):
    """The loss of a batch.

    Attributes:
        loss: What is optimised, a scalar with a gradient.
        td: What the head says of each row.
    """

    loss: Tensor
    td: TDLoss


class Updated(NamedTuple):
    """What learner steps leave, in the order of their batches; on the learner's device.

    Attributes:
        loss: The last loss, a scalar without a gradient.
        keys: Keys of all rows, `[updates * batch]`.
        priorities: Their new priorities, `[updates * batch]`.
    """

    loss: Tensor
    keys: Tensor
    priorities: Tensor


class Agent(Protocol):
    """What an updater needs of the module whose networks it updates."""

    online: QNetwork
    target: QNetwork
    bootstrap: BootstrapRule

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        """Return the loss of a batch."""
        ...

    def look_at(self, batch: Batch, losses: Losses) -> None:
        """Take note of a loss before it is optimised: for guards and logs."""
        ...

    def optimize(self, loss: Tensor) -> None:
        """Make one learner step of a loss."""
        ...

    def steps_until_target_moves(self) -> int:
        """Return for how many learner steps the target network certainly stays as it is."""
        ...


class Updater:
    """Asks the target network, computes losses and, for several updates a step, optimises them.

    Args:
        agent: The module.
        compiles: Whether its loss and the question to the target network are compiled, at the
            first call, which takes half a minute.
    """

    def __init__(self, agent: Agent, compiles: bool = False) -> None:
        self._agent = agent
        self._compiled = torch.compile(self._ask_and_compute) if compiles else None

    def losses(self, batch: Batch, next_values: NextValues | None = None) -> Losses:
        """Return the loss of a batch.

        Args:
            batch: The transitions.
            next_values: What the target network says of them; None asks it now.
        """
        self._agent.online.sample_noise()
        self._agent.target.sample_noise()
        with onednn_products():
            losses = (self._compiled or self._ask_and_compute)(batch, next_values)
        if not isinstance(losses, Losses):
            raise TypeError(
                f"compute_loss must return Losses(loss, td), got {type(losses).__name__}: change "
                "what super().compute_loss returns with ._replace(loss=...)"
            )
        self._agent.look_at(batch, losses)
        return losses

    def __call__(self, batches: Sequence[Batch]) -> Updated:
        """Make one learner step with each batch, in turn."""
        losses: list[Losses] = []
        for batch, next_values in zip(batches, self._next_values(batches), strict=True):
            losses.append(self.losses(batch, next_values))
            self._agent.optimize(losses[-1].loss)
        keys = torch.cat([batch.keys for batch in batches])
        priorities = torch.cat([one.td.priority for one in losses])
        return Updated(losses[-1].loss.detach(), keys, priorities)

    def _ask_and_compute(self, batch: Batch, next_values: NextValues | None) -> Losses:
        agent = self._agent
        if next_values is None:
            (next_values,) = ask_target(agent.bootstrap, agent.target, batch)
        return agent.compute_loss(batch, next_values)

    def _next_values(self, batches: Sequence[Batch]) -> Iterator[NextValues | None]:
        """Ask the target network for as many batches at once as come before it moves.

        Asked for many rows it takes less time for each. None leaves the question to the loss: it is
        part of what was compiled, and noise is new for every batch.
        """
        agent, first = self._agent, 0
        if self._compiled is not None or agent.target.is_noisy:
            yield from [None] * len(batches)
            return
        most = max(1, _ROWS_ASKED_AT_ONCE // len(batches[0].action))
        while first < len(batches):
            group = batches[first : first + min(most, agent.steps_until_target_moves())]
            with onednn_products():
                yield from ask_target(agent.bootstrap, agent.target, *group)
            first += len(group)


def check_compiler(device: torch.device) -> None:
    """Check that a loss can be compiled on a device.

    Raises:
        ConfigError: There is no compiler for a learner on a CPU.
    """
    compiler = os.environ.get("CXX") or _COMPILERS.get(sys.platform, "g++")
    if device.type == "cpu" and (fault := _fault_of(compiler)):
        raise ConfigError(
            f"model.compile_loss is true, but {fault}: install one, name another in the "
            "environment variable CXX, or set compile_loss to false"
        )


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
