"""A Trainer that trains and does nothing else, and a callback that looks at every step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import nn

from helpers.tiny_networks import random_batch
from lrl.learner.dqn import DQN
from lrl.types import Batch

SGD = functools.partial(torch.optim.SGD, lr=0.1)
Weights = list[torch.Tensor]


def weights_of(network: nn.Module) -> Weights:
    return [tensor.clone() for tensor in network.state_dict().values()]


def equal(first: Weights, second: Weights) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def batches(count: int) -> list[Batch]:
    return [random_batch(seed=seed) for seed in range(count)]


@dataclass(frozen=True)
class Loader:
    """Batches as a dataloader; Lightning would take a list for several dataloaders."""

    batches: Sequence[Batch]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Recorder(L.Callback):
    """Remembers both networks, the learning rate and the statistics after every batch."""

    def __init__(self) -> None:
        self.online: list[Weights] = []
        self.target: list[Weights] = []
        self.learning_rates: list[float] = []
        self.statistics: list[dict[str, float]] = []
        self.global_steps: list[int] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._note(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._note(trainer, pl_module)

    def _note(self, trainer: L.Trainer, agent: Any) -> None:
        self.online.append(weights_of(agent.online))
        self.target.append(weights_of(agent.target))
        self.learning_rates.append(float(trainer.optimizers[0].param_groups[0]["lr"]))
        self.statistics.append({name: float(value) for name, value in agent.statistics.items()})
        self.global_steps.append(trainer.global_step)


def quiet_trainer(num_batches: int, *callbacks: L.Callback, **settings: Any) -> L.Trainer:
    """Return a Trainer for epochs of so many batches, on the CPU, without files and bars."""
    return L.Trainer(
        accelerator=settings.pop("accelerator", "cpu"),
        devices=1,
        max_epochs=settings.pop("max_epochs", 1),
        limit_train_batches=num_batches,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **settings,
    )


def train(agent: DQN, batches: Sequence[Batch], *callbacks: L.Callback, **settings) -> L.Trainer:
    """Fit an agent to a list of batches, each of them once."""
    trainer = quiet_trainer(len(batches), *callbacks, **settings)
    trainer.fit(agent, train_dataloaders=Loader(batches))
    return trainer
