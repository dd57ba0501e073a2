"""Metrics of acting, learning and the machinery between them; docs/metrics.md lists them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from typing_extensions import override

from lrl.callbacks.feedback import WeightSync
from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.learner.dataset import ReplayDataset
from lrl.learner.statistics import mean
from lrl.loggers.records import log_metrics
from lrl.parts.device_copies import floats_of
from lrl.preflight.callbacks import GuardsLosses, parts_of
from lrl.preflight.settings import is_logging_step
from lrl.video.tensorboard import EpisodeVideo


class Throughput(L.Callback):
    """Write all metrics every `log_every_n_steps` learner steps, and touch nothing in between.

    Of several ranks, counts (but of learner steps) and env steps per second are sums, `*_max` is
    the largest, and all else is the mean of those that have it. Time in which training stopped for
    an evaluation or a film is in no speed and in no share of time.

    Attributes:
        optimise_seconds: Time of all updates of this session.
        evaluate_seconds: Time of all evaluations that stopped training.
    """

    def __init__(
        self, weight_sync: WeightSync | None = None, video: EpisodeVideo | None = None
    ) -> None:
        self.weight_sync, self.video = weight_sync, video
        self.latest: dict[str, float] = {}
        self.optimise_seconds = self.evaluate_seconds = 0.0
        self._optimise_seconds = self._validation_started = 0.0
        self._batch_started = 0.0
        self._last: dict[str, float] = {}
        self._guards: tuple[GuardsLosses, ...] = ()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last = self._totals(trainer, dataset_of(trainer))
        self._optimise_seconds = 0.0
        self._guards = tuple(parts_of(trainer, GuardsLosses))

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch_started = time.perf_counter()

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        seconds = time.perf_counter() - self._batch_started
        self._optimise_seconds += seconds
        self.optimise_seconds += seconds
        step = trainer.global_step
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and is_logging_step(trainer, step):
            for guard in self._guards:  # it has more to say of a NaN than an index on the device
                guard.check_pending(step)
            collected = self._collect(trainer, pl_module)
            own = {name: float(value) for name, value in collected.items()}
            self.latest = of_all_ranks(datamodule_of(trainer).ranks.gathered(own))
            log_metrics(trainer, self.latest)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validation_started = time.perf_counter()

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.evaluate_seconds += time.perf_counter() - self._validation_started

    def _collect(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, float]:
        dataset = dataset_of(trainer)
        assert dataset.pool is not None
        pool, rollout = dataset.pool.counts(), dataset.rollout
        module: Any = pl_module
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        metrics = floats_of({**module.statistics, "train/lr": rate})
        data = datamodule_of(trainer)
        if data.pool is None:
            acted = dataset.env_steps * trainer.world_size
            metrics["train/epsilon"] = data.epsilon_mean(acted)
        metrics["count/env_steps"] = float(dataset.env_steps)
        metrics["count/frames"] = float(dataset.env_steps * data.env_spec.frame_skip)
        metrics["count/learner_steps"] = float(trainer.global_step)
        metrics["count/rows_received"] = float(dataset.rows_received)
        metrics["count/rows_dropped"] = float(pool.rows_dropped)
        metrics["count/actor_restarts"] = float(pool.restarts)
        metrics["rollout/episodes"] = float(dataset.episodes)
        if rollout.returns:
            metrics["rollout/return_mean"] = mean(rollout.returns)
            metrics["rollout/length_mean"] = mean(rollout.lengths)
        if rollout.start_values:
            metrics["rollout/start_value_mean"] = mean(rollout.start_values)
        metrics.update(dataset.experience.metrics())
        metrics.update(dataset.pool.metrics())
        metrics["transport/queue_fill"] = pool.queue_fill
        metrics["sync/policy_version"] = float(
            self.weight_sync.policy_version if self.weight_sync else trainer.global_step
        )
        metrics["sync/policy_lag_mean"] = rollout.take_lag_mean()
        metrics.update(self._speeds(trainer, dataset))
        return metrics

    def _totals(self, trainer: L.Trainer, dataset: ReplayDataset) -> dict[str, float]:
        statistics = dataset.pool.counts().actors if dataset.pool else []
        stopped = self.evaluate_seconds + (self.video.seconds if self.video else 0.0)
        return {
            "seconds": time.perf_counter() - stopped,
            "learner_steps": float(trainer.global_step),
            "env_steps": float(dataset.env_steps),
            "wait": dataset.wait_seconds,
            "sample": dataset.sample_seconds,
            "actor_wait": sum(actor.wait_seconds for actor in statistics),
            "actor_seconds": sum(actor.seconds for actor in statistics),
        }

    def _speeds(self, trainer: L.Trainer, dataset: ReplayDataset) -> dict[str, float]:
        now = self._totals(trainer, dataset)
        delta = {name: now[name] - self._last[name] for name in now}
        self._last = now
        seconds = max(delta["seconds"], 1e-9)
        steps = max(delta["learner_steps"], 1.0)
        optimise, self._optimise_seconds = self._optimise_seconds, 0.0
        return {
            "speed/env_steps_per_second": delta["env_steps"] / seconds,
            "speed/learner_steps_per_second": delta["learner_steps"] / seconds,
            "speed/samples_per_insert": dataset.limiter.samples_per_insert,
            "speed/learner_wait_fraction": delta["wait"] / seconds,
            # A wait counts where it ends, and may have begun before the row before.
            "speed/actor_wait_fraction": min(
                1.0, delta["actor_wait"] / max(delta["actor_seconds"], 1e-9)
            ),
            "speed/optimise_ms": 1e3 * optimise / steps,
            "speed/sample_ms": 1e3 * delta["sample"] / steps,
        }


_SUMS = ("count/", "rollout/episodes", "speed/env_steps_per_second")


def of_all_ranks(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return one row of metrics for those of all ranks.

    Example:
        >>> of_all_ranks([{"count/env_steps": 4.0, "train/loss": 1.0}, {"count/env_steps": 6.0}])
        {'count/env_steps': 10.0, 'train/loss': 1.0}
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: _combined(name, values) for name, values in found.items()}


def _combined(name: str, values: Sequence[float]) -> float:
    if name.endswith("_max") or name == "count/learner_steps":  # which are equal
        return max(values)
    return sum(values) if name.startswith(_SUMS) else mean(values)


class ParameterStatistics(L.Callback):
    """Log `parameter_mean/NAME` and `parameter_std/NAME` with the other metrics of training.

    They are of the online network after the update, every `log_every_n_steps` learner steps. It
    is one more callback of the Trainer: `trainer.callbacks: [lrl.callbacks.ParameterStatistics]`.
    """

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
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
