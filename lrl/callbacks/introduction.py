"""What a run says before it begins: what is trained, by whom, and where it is kept."""

from __future__ import annotations

from collections.abc import Mapping

import lightning as L
from lightning.pytorch.callbacks import (
    ModelSummary,
    RichModelSummary,
    RichProgressBar,
    TQDMProgressBar,
)

from lrl.callbacks.progress import RLProgressBar
from lrl.learner.checks import callbacks_of
from lrl.learner.datamodule import ReplayDataModule, datamodule_of, dataset_of
from lrl.learner.threads import available_cores

_BARS = (TQDMProgressBar, RichProgressBar)
_SUMMARIES = (ModelSummary, RichModelSummary)


def replace_defaults(trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
    """Put lrl's bar and introduction in the place of Lightning's bar and table of layers.

    Lightning's count epochs and layers, of which there are none worth counting. A subclass of them
    was chosen by the user, and stays.
    """
    callbacks = [c for c in callbacks_of(trainer) if type(c) not in _SUMMARIES]
    for index, callback in enumerate(callbacks):
        if type(callback) in _BARS:
            callbacks[index] = RLProgressBar()
            callbacks[index].setup(trainer, pl_module, stage)
    trainer.callbacks = callbacks  # pyright: ignore[reportAttributeAccessIssue]


def introduction(trainer: L.Trainer, pl_module: L.LightningModule) -> str:
    """Return the lines with which a run begins."""
    data = datamodule_of(trainer)
    parameters = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)
    what = f"{type(pl_module).__name__} on {_environment(data)}: {_parts(trainer, pl_module)}"
    where = trainer.log_dir or trainer.default_root_dir
    lines = (
        f"{what}; {parameters:,} parameters",
        f"{_acting(data)}; {_learner(trainer, data)}",
        f"kept in {where}",
    )
    return "\n".join(lines)


def _environment(data: ReplayDataModule) -> str:
    if not data.env.is_atari:
        return data.env.id
    return f"{data.env.id} (protocol {data.evaluation.protocol_for(data.env)})"


def _parts(trainer: L.Trainer, pl_module: L.LightningModule) -> str:
    parts = (pl_module.hparams.get(part) for part in ("encoder", "head", "bootstrap"))
    names = [str(p["class_path"]).rpartition(".")[2] for p in parts if isinstance(p, Mapping)]
    replay = "prioritised" if dataset_of(trainer).replay.needs_priorities else "uniform"
    return ", ".join((*names, f"{replay} replay"))


def _acting(data: ReplayDataModule) -> str:
    actors, envs = data.actors.num_actors, _count(data.actors.envs_per_actor, "environment")
    if actors == 0:
        return f"{envs} in this process"
    servers = data.inference.num_servers
    asked = f" that ask {_count(servers, 'inference server')}" if servers else ""
    return f"{_count(actors, 'actor')} with {envs} each{asked}"


def _learner(trainer: L.Trainer, data: ReplayDataModule) -> str:
    threads = f"{_count(data.threads, 'thread')} ({_count(available_cores(), 'core')})"
    ranks = f", {trainer.world_size} ranks" if trainer.world_size > 1 else ""
    return f"the learner on {trainer.strategy.root_device} with {threads}{ranks}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
