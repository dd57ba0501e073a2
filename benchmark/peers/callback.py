"""The window as a callback of lrl: named in the configurations of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L

from benchmark.peers.window import Window
from lrl.learner.datamodule import datamodule_of, dataset_of


class WindowCallback(L.Callback):
    """Measure lrl; see `Window`.

    Environment steps count as many as the updates pay for, so that actors that are ahead of the
    learner gain nothing by it.
    """

    def __init__(self, path: str, first_env_step: int, seconds: float) -> None:
        self.window = Window(Path(path), first_env_step, seconds)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Look at the counts, and end the run with the window."""
        dataset, updates = dataset_of(trainer), trainer.global_step
        rate = datamodule_of(trainer).rate
        assert rate.samples_per_insert is not None
        paid = int(updates * dataset.experience.batch_size / rate.samples_per_insert)
        if self.window.is_over(rate.warm_up_env_steps + paid, updates):
            trainer.should_stop = True
