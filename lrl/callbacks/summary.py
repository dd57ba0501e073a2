"""What a run leaves behind when it ends: `summary.json`, the table of actors, the totals."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lrl.actors.handle import ActorStatistics
from lrl.callbacks.checkpoints import BestCheckpoint
from lrl.callbacks.metrics import Throughput
from lrl.checkpoints.atomic_files import replace_file
from lrl.checkpoints.runs import is_trial
from lrl.diagnosis.verdict import RATIO, time_shares, verdict
from lrl.diagnosis.watch import RunDiagnosis
from lrl.learner.datamodule import datamodule_of, dataset_of
from lrl.learner.statistics import mean
from lrl.preflight.callbacks import WritesFiles

_log = logging.getLogger(__name__)


class RunSummary(L.Callback, WritesFiles):
    """Write `summary.json` to the run's folder; log the table of actors, the totals, the verdict.

    What the diagnosis found, if there is one, is in both.

    All of it is of all ranks; rates are over the whole run, warm-up and evaluation included. Where
    ranks could not be asked, since the run ended with an error, rank 0 stands for each of them.

    Attributes:
        verdict: What held the run back; empty until it has ended.
    """

    def __init__(
        self,
        best: BestCheckpoint,
        throughput: Throughput,
        diagnosis: RunDiagnosis | None = None,
    ) -> None:
        self.best, self.throughput, self.diagnosis = best, throughput, diagnosis
        self.verdict = ""
        self._started = 0.0
        self._began: tuple[float, ...] | None = None
        self._ended: tuple[float, ...] | None = None
        self._first_learner_step = 0
        self._folder: Path | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._started = time.monotonic()
            self._began = self._ended = None
            self.written = []
            folder = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks must ask
            self._folder = None if is_trial(trainer) else folder

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note where a resumed run goes on."""
        self._first_learner_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Look where the time goes from the first batch on: filling the replay is not counted."""
        if self._began is None:
            self._began = self._clocks(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look again, before anything is closed."""
        self._ended = self._clocks(trainer)

    def _clocks(self, trainer: L.Trainer) -> tuple[float, ...]:
        """Return the time, and the seconds that were spent on each thing so far."""
        dataset, throughput = dataset_of(trainer), self.throughput
        return (
            time.monotonic(), dataset.wait_seconds, dataset.sample_seconds,
            throughput.optimise_seconds, throughput.evaluate_seconds,
        )  # fmt: skip

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write the summary of a finished run."""
        if stage == "fit":
            reports = datamodule_of(trainer).ranks.gathered(self._report(trainer))
            self.write(trainer, "finished", reports)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop the actors and write the summary of a run that ended early."""
        if getattr(trainer, "datamodule", None) is None:
            return  # only the ranks that this process spawned had one
        data = datamodule_of(trainer)
        data.close()
        reports = [self._report(trainer)]
        if data.ranks.stopped_together:
            reports = data.ranks.gathered(*reports)
        self.write(trainer, f"ended by {type(exception).__name__}", reports)

    def _report(self, trainer: L.Trainer) -> dict[str, Any]:
        """Return what this rank did, as plain data."""
        dataset = datamodule_of(trainer).dataset
        if dataset is None or dataset.pool is None:
            return {}
        ended = self._ended or self._clocks(trainer)
        began = self._began or ended
        return {
            "env_steps": dataset.env_steps,
            "session_env_steps": dataset.env_steps - dataset.env_steps_offset,
            "episodes": dataset.episodes,
            "samples_per_insert": float(dataset.limiter.samples_per_insert),
            "seconds": [end - begin for end, begin in zip(ended, began, strict=True)],
            "actors": [asdict(actor) for actor in dataset.pool.counts().actors],
        }

    @rank_zero_only
    def write(self, trainer: L.Trainer, outcome: str, reports: Sequence[dict[str, Any]]) -> None:
        """Write the file and the table, if training ever began, from what each rank did."""
        reports = [report for report in reports if report]
        if not reports:
            return
        summary = {"outcome": outcome, **self._figures(trainer, reports)}
        if self._folder is not None:
            self._save(self._folder / "summary.json", summary)
        table = actor_table([_actors(report) for report in reports])
        if table and len(reports) < trainer.world_size:
            table = f"rank 0 of {trainer.world_size}, its actors and its time:\n{table}"
        found = [f"diagnosis, {each['name']}: {each['sentence']}" for each in summary["findings"]]
        lines = [table, totals(summary), self.verdict, *found]
        rank_zero_info("\n".join(line for line in lines if line))

    def _save(self, path: Path, summary: Mapping[str, Any]) -> None:
        text = json.dumps(summary, indent=2, default=str)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda file: file.write(f"{text}\n".encode()))
            self.written = [path]
        except OSError as error:  # a full disk must not keep the run from ending as it should
            _log.error("summary.json could not be written: %s", error)

    def _figures(self, trainer: L.Trainer, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return what the run did, and judge what held it back."""
        datamodule, dataset = datamodule_of(trainer), dataset_of(trainer)
        seconds = time.monotonic() - self._started
        session_learner_steps = trainer.global_step - self._first_learner_step
        asked = len(reports)

        def total(name: str) -> int:
            return sum(report[name] for report in reports) * trainer.world_size // asked

        env_steps, actors = total("env_steps"), [a for report in reports for a in _actors(report)]
        shares = time_shares(*map(sum, zip(*(each["seconds"] for each in reports), strict=True)))
        is_offline = datamodule.pool is not None and datamodule.pool.is_finite
        ratio = "data.experience" if dataset.experience.sets_pace else RATIO
        self.verdict = verdict(
            shares,
            actors,
            is_synchronous=datamodule.num_actors == 0 or is_offline,
            is_slowed=datamodule.rate.max_learner_steps_per_second is not None,
            ratio="trainer.max_steps" if is_offline else ratio,
            has_own_pool=datamodule.has_own_pool and not is_offline,
        )
        has_return = self.best.best_model_path and self.best.monitor == "eval/return_mean"
        return {
            "seconds": seconds,
            "learner_steps": trainer.global_step,
            "ranks": trainer.world_size,
            "ranks_counted": asked,
            "env_steps": env_steps,
            "frames": env_steps * datamodule.env_spec.frame_skip,
            "episodes": total("episodes"),
            "env_steps_per_second": total("session_env_steps") / seconds,
            "learner_steps_per_second": session_learner_steps / seconds,
            "time_shares": shares,
            "verdict": self.verdict,
            "findings": [f._asdict() for f in self.diagnosis.findings()] if self.diagnosis else [],
            "samples_per_insert": mean([report["samples_per_insert"] for report in reports]),
            "best_return_mean": self.best.best_model_score if has_return else None,
            "best_model_path": self.best.best_model_path or None,
            "actors": [
                {
                    **({"rank": rank} if trainer.world_size > 1 else {}),
                    **asdict(actor),
                    "env_steps_per_second": actor.env_steps_per_second,
                }
                for rank, report in enumerate(reports)
                for actor in _actors(report)
            ],
            "stamp": datamodule.stamp(env_steps),
        }


def _actors(report: Mapping[str, Any]) -> list[ActorStatistics]:
    return [ActorStatistics(**actor) for actor in report["actors"]]


def totals(summary: Mapping[str, Any]) -> str:
    """Return the figures of a summary that existing trainers print at their end, in one line.

    Example:
        >>> figures = {"env_steps": 80_000, "learner_steps": 3500, "episodes": 400, "seconds": 20.0}
        >>> totals(figures | {"env_steps_per_second": 4000.0, "learner_steps_per_second": 175.0})
        'total: 80,000 env steps (4,000/s), 3,500 learner steps (175.0/s), 400 episodes, 20.0 s'
    """
    ranks, counted = summary.get("ranks", 1), summary.get("ranks_counted", 1)
    of = f" of {ranks} ranks" if ranks > 1 else ""
    if counted < ranks:
        of += f" ({ranks} times that of rank 0, since the others could not be asked)"
    return (
        f"total{of}: {summary['env_steps']:,} env steps "
        f"({summary['env_steps_per_second']:,.0f}/s), "
        f"{summary['learner_steps']:,} learner steps "
        f"({summary['learner_steps_per_second']:,.1f}/s), "
        f"{summary['episodes']:,} episodes, {summary['seconds']:,.1f} s"
    )


def actor_table(ranks: Sequence[Sequence[ActorStatistics]]) -> str:
    """Return the statistics of each rank's actors as a table of text; empty without actors."""
    has_nodes = any(actor.node for actors in ranks for actor in actors)
    nodes, rank = "  node" if has_nodes else "", "rank  " if len(ranks) > 1 else ""
    lines = [f"{rank}actor   env_steps  env_steps/s   seconds  waiting  restarts{nodes}"]
    for number, actors in enumerate(ranks):
        for actor in actors:
            waiting = actor.wait_seconds / actor.seconds if actor.seconds else 0.0
            lines.append(
                f"{f'{number:4d}  ' if rank else ''}"
                f"{actor.actor:5d}  {actor.env_steps:10d}  {actor.env_steps_per_second:11.0f}"
                f"  {actor.seconds:8.1f}  {waiting:6.0%}  {actor.restarts:8d}"
                f"{f'  {actor.node}' if has_nodes else ''}".rstrip()
            )
    return "\n".join(lines) if len(lines) > 1 else ""
