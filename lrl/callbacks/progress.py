"""A progress bar made for reinforcement learning."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import (
    ModelSummary,
    ProgressBar,
    RichModelSummary,
    RichProgressBar,
    TQDMProgressBar,
)
from tqdm import tqdm
from typing_extensions import override

from lrl.callbacks.metrics import Throughput
from lrl.envs.protocols import GYMNASIUM
from lrl.learner.datamodule import ReplayDataModule, datamodule_of, dataset_of
from lrl.networks import QNetwork
from lrl.parts.settings import check_positive
from lrl.preflight.callbacks import callbacks_of, parts_of
from lrl.preflight.cores import available_cores
from lrl.replay import Replay

_BAR_FORMAT = "{desc} {n_fmt}/{total_fmt} [{percentage:.0f}% {elapsed}<{remaining}]{postfix}"


class _Bar(tqdm):
    """A bar without a thread that would refresh it: here every batch looks at the clock."""

    monitor_interval = 0


class RLProgressBar(ProgressBar):
    """One line: learner steps with ETA, speed, returns, epsilon, replay, and what is waited for.

    Of several ranks it shows the numbers of the last logged row, which are of all of them.

    Every number is one the host already has; nothing waits for the device. Without a terminal it
    prints a line every ten `refresh_seconds` instead.

    Args:
        refresh_seconds: Seconds between refreshes on a terminal; ten times as long elsewhere.
    """

    def __init__(self, refresh_seconds: float = 0.5) -> None:
        super().__init__()
        check_positive("refresh_seconds", refresh_seconds)
        self.refresh_seconds = refresh_seconds
        self._enabled = True
        self._bar: _Bar | None = None
        self._throughput: Throughput | None = None
        self._shown_at = 0.0

    def disable(self) -> None:
        """Show nothing (Lightning calls this on all ranks but the first)."""
        self._enabled = False

    @override
    def enable(self) -> None:
        self._enabled = True

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._enabled:
            return
        self._throughput = next(parts_of(trainer, Throughput), None)
        terminal = sys.stderr.isatty()
        self._period = self.refresh_seconds * (1 if terminal else 10)
        self._bar = _Bar(
            total=trainer.max_steps if trainer.max_steps > 0 else None,
            initial=trainer.global_step,
            unit="step",
            desc="learning",
            dynamic_ncols=terminal,
            miniters=1,  # when it is time is decided here
            mininterval=0,
            bar_format=_BAR_FORMAT,
        )

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        now = time.monotonic()
        if self._bar is None or now - self._shown_at < self._period:
            return
        self._shown_at = now
        self._bar.set_postfix_str(self.text(trainer), refresh=False)
        self._bar.update(trainer.global_step - self._bar.n)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close(trainer)

    @override
    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._close(trainer)

    def text(self, trainer: L.Trainer) -> str:
        """Return what follows the step count."""
        latest = self._throughput.latest if self._throughput else {}
        evaluation = trainer.callback_metrics.get("eval/return_mean")
        dataset = dataset_of(trainer)
        whose = " (rank 0)" if trainer.world_size > 1 else ""
        parts = [
            self._env_steps(trainer, latest),
            f"{latest.get('speed/env_steps_per_second', 0.0):,.0f}/s",
            f"rollout {latest['rollout/return_mean']:.1f}"
            if "rollout/return_mean" in latest
            else "",
            f"eval {float(evaluation):.1f}" if evaluation is not None else "",
            f"eps {latest['train/epsilon']:.3f}" if "train/epsilon" in latest else "",
            "" if dataset.experience.sets_pace else f"replay {dataset.experience.fill:.0%}{whose}",
            _waiting_for(latest),
        ]
        return " | ".join(part for part in parts if part)

    @staticmethod
    def _env_steps(trainer: L.Trainer, latest: dict[str, float]) -> str:
        """Return those of all ranks; of several, as they were last counted together."""
        own, ranks = dataset_of(trainer).env_steps, trainer.world_size
        if ranks == 1:
            return f"{own:,} env steps"
        if "count/env_steps" not in latest:
            return f"rank 0 of {ranks}: {own:,} env steps"
        return f"{ranks} ranks: {latest['count/env_steps']:,.0f} env steps"

    def _close(self, trainer: L.Trainer) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(self.text(trainer), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)
            self._bar.close()
            self._bar = None


def _waiting_for(latest: dict[str, float]) -> str:
    learner = latest.get("speed/learner_wait_fraction", 0.0)
    actors = latest.get("speed/actor_wait_fraction", 0.0)
    if max(learner, actors) < 0.1:
        return ""
    if learner > actors:
        return f"learner waits {learner:.0%}"
    return f"actors wait {actors:.0%}"


_BARS = (TQDMProgressBar, RichProgressBar)
_SUMMARIES = (ModelSummary, RichModelSummary)


def replace_defaults(trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
    """Put lrl's bar and introduction in the place of Lightning's bar and table of layers.

    Lightning's count epochs and layers, of which there are none worth counting. A subclass of them,
    or a table with a `max_depth` of its own, was chosen by the user and stays. A bar that is given
    cannot be told from Lightning's default, and is replaced.
    """
    callbacks = [c for c in callbacks_of(trainer) if not _is_default_summary(c)]
    for index, callback in enumerate(callbacks):
        if type(callback) in _BARS:
            callbacks[index] = RLProgressBar()
            callbacks[index].setup(trainer, pl_module, stage)
    trainer.callbacks = callbacks  # pyright: ignore[reportAttributeAccessIssue]


def _is_default_summary(callback: L.Callback) -> bool:
    return type(callback) in _SUMMARIES and getattr(callback, "_max_depth", 1) == 1


def introduction(trainer: L.Trainer, pl_module: L.LightningModule) -> str:
    """Return the lines with which a run begins."""
    data = datamodule_of(trainer)
    parameters = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)
    what = f"{type(pl_module).__name__} on {_environment(data)}: {_parts(trainer, pl_module)}"
    each = f"each of {trainer.world_size} ranks has " if trainer.world_size > 1 else ""
    acting = f"{each}{_acting(data)}; {_learner(trainer, data)}"
    lines = [f"{what}; {parameters:,} parameters", acting]
    network = getattr(pl_module, "online", None)
    if isinstance(network, QNetwork) and network.encoder.choice:
        lines.append(f"encoders where nothing is set: {network.encoder.choice}")
    if not getattr(trainer, "fast_dev_run", False):
        lines.append(f"files in {trainer.log_dir or trainer.default_root_dir}")
    return "\n".join(lines)


def _environment(data: ReplayDataModule) -> str:
    protocol = data.evaluation.protocol_for(data.env)
    return data.env.id if protocol == GYMNASIUM else f"{data.env.id} (protocol {protocol})"


def _parts(trainer: L.Trainer, pl_module: L.LightningModule) -> str:
    parts = (pl_module.hparams.get(part) for part in ("encoder", "core", "head", "bootstrap"))
    names = [str(p["class_path"]).rpartition(".")[2] for p in parts if isinstance(p, Mapping)]
    experience = dataset_of(trainer).experience
    kind = type(experience).__name__
    if isinstance(experience, Replay):
        kind = f"{'prioritised' if experience.is_prioritised else 'uniform'} replay"
        if datamodule_of(trainer).replay.sequences is not None:
            kind += " of sequences"
    return ", ".join((*names, kind))


def _acting(data: ReplayDataModule) -> str:
    if data.pool is not None:
        return f"{type(data.pool).__name__} with {_count(data.pool.num_streams, 'stream')}"
    actors, envs = data.actors.num_actors, _count(data.actors.envs_per_actor, "environment")
    if data.num_actors == 0:
        return f"{envs} in this process"
    if data.cluster is not None:
        where = f"at {data.cluster.address}" if data.cluster.address else "of this machine"
        here = f", and {_count(actors, 'actor')} in processes here," if actors else ""
        remote = _count(data.cluster.num_actors, "actor")
        acting = f"{remote} on the Ray cluster {where}{here} with {envs} each"
    else:
        acting = f"{_count(actors, 'actor')} with {envs} each"
    if data.inference is None:
        return acting
    return f"{acting} that ask {_count(data.inference.num_servers, 'inference server')}"


def _learner(trainer: L.Trainer, data: ReplayDataModule) -> str:
    threads = f"{_count(data.threads, 'thread')} ({_count(available_cores(), 'core')})"
    return f"the learner on {trainer.strategy.root_device} with {threads}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
