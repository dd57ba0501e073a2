"""Mean and deviation of every parameter, for a look at what the network becomes."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch

from lrl.callbacks.logging import log_metrics
from lrl.learner.checks import is_logging_step


class ParameterStatistics(L.Callback):
    """Log `parameter_mean/NAME` and `parameter_std/NAME` with the other metrics of training.

    They are of the online network after the update, every `log_every_n_steps` learner steps. It
    is one more callback of the Trainer: `trainer.callbacks: [lrl.callbacks.ParameterStatistics]`.
    """

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log, if this learner step is one that is logged."""
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if trainer.is_global_zero and stepped and is_logging_step(trainer, trainer.global_step):
            module: Any = pl_module
            log_metrics(trainer, _statistics(module.online))


@torch.no_grad()
def _statistics(network: torch.nn.Module) -> dict[str, float]:
    names, parameters = zip(*network.named_parameters(), strict=True)
    means = torch.stack([parameter.mean() for parameter in parameters])
    deviations = torch.stack([parameter.std(correction=0) for parameter in parameters])
    logged: dict[str, float] = {}
    for kind, values in zip(
        ("mean", "std"), torch.stack([means, deviations]).tolist(), strict=True
    ):
        logged |= {f"parameter_{kind}/{n}": v for n, v in zip(names, values, strict=True)}
    return logged
