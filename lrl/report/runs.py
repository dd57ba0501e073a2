"""What training runs left in their folders, read for a report."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lrl.checkpoints.files import read_checkpoint
from lrl.checkpoints.runs import versions
from lrl.checkpoints.stamp import STAMP_KEY, check_format, flatten
from lrl.diagnosis.findings import findings_of
from lrl.diagnosis.history import METRICS, History, Settings
from lrl.diagnosis.signs import Finding
from lrl.parts.renamed import translated
from lrl.report.statistics import Floats
from lrl.types import ConfigError

EVALUATION, TRAINING = "eval/return_mean", "rollout/return_mean"
AXES = {
    "env_steps": "environment steps",
    "frames": "frames",
    "learner_steps": "learner steps",
    "seconds": "wall time",
}
"""What a curve may be drawn against; `seconds` are known of runs with TensorBoard events only."""
_CHECKPOINTS = ("last.ckpt", "previous.ckpt", "best.ckpt")
SHARES = ("wait", "sample", "optimise", "evaluate", "other")
"""What a summary's `time_shares` are of."""
_RATES = ("env_steps_per_second", "learner_steps_per_second")
_SUMMARY = {"outcome", "seconds", "env_steps", *_RATES, "time_shares", "actors", "stamp"}
_ACTOR = {"seconds", "wait_seconds", "restarts"}
_STAMP = {
    "protocol", "environment.id", "training.seed", "evaluation.epsilon", "evaluation.episodes",
    "evaluation.max_frames_per_episode", "versions.lrl", "versions.torch", "hardware.cores",
    "hardware.gpus",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training, from its folder; where it was gone on with, from all of its folders.

    Attributes:
        folder: RUNS/NAME/version_K, the last one.
        settings: Its configuration by dotted names.
        learning: What of it a diagnosis needs.
        stamp: Its protocol stamp.
        summary: What `summary.json` holds, of all parts together; empty if the run, or a part of
            it, has not ended, or was killed.
        metrics: The columns of `metrics.csv` in the order of learner steps, `[rows]` each; NaN
            where a row does not have the metric.
        clock: Learner steps and the seconds since the beginning when they were logged, `[2, n]`.
        starts_late: Whether what came before its first row is in no folder that was given.
        earlier: Names of the parts before its folder, in their order.
    """

    folder: Path
    settings: Mapping[str, Any]
    learning: Settings
    stamp: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: Mapping[str, Floats]
    clock: Floats
    starts_late: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name and version, as in `pong/version_0`."""
        return named(self.folder)

    @property
    def task(self) -> str:
        """Id of the environment."""
        return self.stamp["environment"]["id"]

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.stamp["training"]["seed"]

    @property
    def was_evaluated(self) -> bool:
        """Whether it has a score."""
        return self.curve(EVALUATION, "learner_steps") is not None

    def remarks(self) -> list[str]:
        """Return sentences for the section 'What to look at'; none if nothing is remarkable."""
        found = []
        if not self.summary:
            found.append(
                "It, or a part of it, has not ended, or was killed: without summary.json it is in "
                "no table of speed."
            )
        elif self.summary["outcome"] != "finished":
            found.append(
                f"It {self.summary['outcome']} after {self.metrics['step'][-1]:,.0f} steps."
            )
        if self.earlier:
            found.append(
                f"It is taken to have gone on from {', '.join(self.earlier)}, with which it is one "
                "run here, since steps, seed and environment fit: if it did not, make a report of "
                "each."
            )
        if self.starts_late:
            found.append(
                f"It goes on from another run and begins at learner step "
                f"{self.metrics['step'][0]:,.0f}: give that run's folder, too."
            )
        cut_off = self.curve("eval/timeouts", "learner_steps")
        if cut_off is not None and cut_off[1][-1] > 0:
            found.append(
                f"{cut_off[1][-1]:.0f} episodes of its last evaluation were cut off by the limit "
                "of frames, and count as they stood."
            )
        restarts = sum(actor["restarts"] for actor in self.summary.get("actors", []))
        if restarts:
            found.append(f"Its actors were restarted {restarts} times.")
        return found + [f"Diagnosis, {name}: {said}." for name, said, _ in self._findings()]

    def _findings(self) -> list[Finding]:
        history = History(self.learning)
        for name in METRICS:
            if (column := self.metrics.get(name)) is not None:
                history.add_column(name, column[~np.isnan(column)].tolist())
        return findings_of(history)

    def curve(self, metric: str, axis: str) -> tuple[Floats, Floats] | None:
        """Return a metric's values and where on an axis of `AXES` they are; None if unknown."""
        known = ~np.isnan(self.metrics.get(metric, np.empty(0)))
        steps = self.metrics["step"][known] if known.size else known
        if not steps.size:
            return None
        values = self.metrics[metric][known]
        if axis == "learner_steps":
            return steps, values
        if axis == "seconds":
            return (np.interp(steps, *self.clock), values) if self.clock.size else None
        counts = self.metrics.get(f"count/{axis}", np.empty(0))
        counted = ~np.isnan(counts)
        if not counted.any():
            return None
        # Evaluations have rows of their own, between those of the counts.
        return np.interp(steps, self.metrics["step"][counted], counts[counted]), values


class _TooEarly(ConfigError):
    """A run left too little to compare, since it ended, or was killed, before that was written."""


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """Return the runs in folders, each a version or a name with its versions.

    A run that was gone on with (`--ckpt_path last`) is one run, if the folders of its parts are
    given.

    Returns:
        The runs; and the versions of a name that were never evaluated, which are left out.

    Raises:
        ConfigError: A folder holds no run, a file is damaged, or a version that was asked for, or
            all of a name, were never evaluated.
    """
    asked = {path.resolve() for path in paths}
    found = [folder for path in paths for folder in versions(path.parent, path.name) or [path]]
    folders = {folder.resolve(): folder for folder in found}
    parts = {folder: _part(folder, is_asked=path in asked) for path, folder in folders.items()}
    early = [folder for folder, part in parts.items() if part is None]
    whole = _joined([part for part in parts.values() if part is not None])
    runs = [run for run in whole if run.was_evaluated]
    early += [run.folder for run in whole if not run.was_evaluated]
    answered = {place.resolve() for run in runs for place in (run.folder, run.folder.parent)}
    unanswered = asked - answered
    if refused := [str(f) for f in early if {f.resolve(), f.parent.resolve()} & unanswered]:
        raise ConfigError(
            f"never evaluated: {', '.join(refused)}: a run without a score cannot be compared; "
            "leave it out, or let it train to its first evaluation "
            "(actor_learner.eval_period_learner_steps)"
        )
    return runs, early


def named(folder: Path) -> str:
    """Return a run's name and version; the folder may be the one we are in."""
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}"


def _part(folder: Path, is_asked: bool) -> Run | None:
    """Return what is in a folder; None where it left too little, unless it was asked for."""
    try:
        return _read(folder)
    except _TooEarly:
        if is_asked:
            raise
        return None


def _read(folder: Path) -> Run:
    config, metrics = folder / "config.yaml", folder / "metrics.csv"
    missing = [file.name for file in (config, metrics) if not file.is_file()]
    if missing:
        raise _TooEarly(
            f"{folder} is no run of lrl fit: it has no {' and no '.join(missing)}; give "
            "RUNS/NAME/version_K, RUNS/NAME or a CSV file of scores"
        )
    configuration, learning = _configuration(config)
    settings = flatten(configuration)
    summary = _summary(folder / "summary.json")
    columns = _metrics(metrics)
    first = columns["step"][0] if columns["step"].size else 0
    return Run(
        folder=folder,
        settings=settings,
        learning=learning,
        stamp=_stamp(folder, summary),
        summary=summary,
        metrics=columns,
        clock=_clock(folder),
        starts_late=bool(first > _period(settings)),
    )


def _configuration(path: Path) -> tuple[dict[str, Any], Settings]:
    try:
        configuration = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(configuration, dict):
            raise ValueError("it holds no settings")
        configuration = translated(configuration)
        return configuration, Settings.of_config(configuration)
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is damaged: {_line(error)}") from error


def _summary(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(summary, dict):
            raise ValueError("it holds no figures")
        missing = _SUMMARY - summary.keys() or set(SHARES) - summary["time_shares"].keys()
        for actor in summary.get("actors", []):
            missing |= _ACTOR - actor.keys()
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        return summary
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {_line(error)}") from error


def _stamp(folder: Path, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stamp of a run, which a checkpoint has too if the run has not ended."""
    stamp = summary.get("stamp")
    if stamp is None:
        files = [folder / "checkpoints" / name for name in _CHECKPOINTS]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise _TooEarly(
                f"{folder} has no protocol stamp: neither summary.json, which a run writes when it "
                "ends, nor a checkpoint; leave it out"
            )
        stamp = read_checkpoint(file).get(STAMP_KEY)
    try:
        check_format(stamp)
        missing = sorted(_STAMP - flatten(stamp).keys())
    except ConfigError as error:
        raise ConfigError(f"{folder}: {_line(error)}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder}: its protocol stamp is damaged: {_line(error)}") from error
    if missing:
        raise ConfigError(f"{folder}: its protocol stamp has no {', '.join(missing)}")
    return stamp


def _metrics(path: Path) -> dict[str, Floats]:
    """Return the columns of a file of metrics; the last line of a run may still be written."""
    try:
        text = path.read_text(encoding="utf-8")
        header, *rows = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise ValueError(f"line {number} has {len(row)} of {len(header)} values")
        columns = {
            name: np.array([float(row[place]) if row[place] else np.nan for row in rows])
            for place, name in enumerate(header)
        }
        order = np.argsort(columns["step"], kind="stable")
        if np.isnan(columns["step"]).any():
            raise ValueError("a row has no step")
        return {name: column[order] for name, column in columns.items()}
    except KeyError as error:
        raise ConfigError(f"{path} has no column {_line(error)}: lrl did not write it") from error
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path} is damaged: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _clock(folder: Path) -> Floats:
    """Return when learner steps were logged, by TensorBoard's events; empty if there are none."""
    times: dict[int, float] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for seconds, step in _events(file.read_bytes()):
            times.setdefault(step, seconds)
    began = min(times.values(), default=0.0)
    steps = sorted(step for step in times if step > 0)
    seconds = np.maximum.accumulate([times[step] - began for step in steps] or np.empty(0))
    return np.stack([np.array(steps, np.float64), seconds])


_RECORD = struct.Struct("<QIBdB")
"""A record's length and its checksum; its event's field 1, the time, and the key of field 2."""


def _events(data: bytes) -> Iterator[tuple[float, int]]:
    """Yield the wall time and the learner step of the first event of each row.

    Records are TFRecord's: a length, its checksum, the event, its checksum. An event, of protocol
    buffers, begins with the time, a double, and the step, a varint that is left out if it is 0.
    TensorBoard's own reader verifies and decodes all of it, and takes minutes for a hundred runs.
    """
    place, end, before = 0, len(data), b""
    while place + _RECORD.size + 4 <= end:
        length, _, first, seconds, second = _RECORD.unpack_from(data, place)
        begins, place = place + _RECORD.size, place + length + 16
        if place > end:
            return  # still being written
        step = data[begins : begins + 5]
        if first == 0x09 and step != before:
            yield seconds, _varint(data, begins) if second == 0x10 and length > 9 else 0
        before = step


def _varint(data: bytes, place: int) -> int:
    value = shift = 0
    while data[place] & 0x80:
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | data[place] << shift


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with those that were gone on with as one, in the place of the last part."""
    whole: list[Run] = []
    for run in sorted(runs, key=_order):
        before = [
            other
            for other in whole
            if run.starts_late
            and other.folder.parent.resolve() == run.folder.parent.resolve()
            and (other.task, other.seed) == (run.task, run.seed)
            and _begins_in(run, other)
        ]
        if before:
            whole.remove(before[-1])
            run = _one_after_the_other(before[-1], run)
        whole.append(run)
    asked = [run.folder for run in runs]
    return sorted(whole, key=lambda run: asked.index(run.folder))


def _order(run: Run) -> tuple[str, int]:
    """Return the place of a run among the versions of its name, whatever order they came in."""
    number = run.folder.name.removeprefix("version_")
    return str(run.folder.parent.resolve()), int(number) if number.isdecimal() else -1


def _begins_in(run: Run, other: Run) -> bool:
    last = other.metrics["step"][-1] if other.metrics["step"].size else 0
    return bool(run.metrics["step"][0] <= last + _period(run.settings))


def _period(settings: Mapping[str, Any]) -> float:
    """Return how many learner steps lie between rows at most."""
    logged = settings.get("trainer.log_every_n_steps")
    if logged is None:
        return 50  # Lightning's default
    # Where nothing is logged, rows are of evaluations.
    return logged or settings.get("actor_learner.eval_period_learner_steps") or math.inf


def _one_after_the_other(first: Run, then: Run) -> Run:
    start = then.metrics["step"][0]
    kept = first.metrics["step"] < start
    names = first.metrics.keys() | then.metrics.keys()
    missing = np.full(kept.size, np.nan), np.full(then.metrics["step"].size, np.nan)
    metrics = {
        name: np.concatenate(
            [first.metrics.get(name, missing[0])[kept], then.metrics.get(name, missing[1])]
        )
        for name in names
    }
    clock = np.empty((2, 0))
    if first.clock.size and then.clock.size:
        earlier = first.clock[:, first.clock[0] < start]
        paused = earlier[1, -1] if earlier.size else 0.0
        later = np.stack([then.clock[0], then.clock[1] + paused])
        clock = np.concatenate([earlier, later], axis=1)
    return replace(
        then,
        summary=_summary_of_both(first.summary, then.summary),
        metrics=metrics,
        clock=clock,
        starts_late=first.starts_late,
        earlier=(*first.earlier, first.name),
    )


def _summary_of_both(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run from those of two parts; empty if one of them left none."""
    if not first or not then:
        return {}
    both = (first, then)
    learnt = [part for part in both if any(part["time_shares"].values())]
    return {
        **then,
        "seconds": first["seconds"] + then["seconds"],
        **{name: _by_seconds(both, [part[name] for part in both]) for name in _RATES},
        "time_shares": {
            name: _by_seconds(learnt, [part["time_shares"][name] for part in learnt])
            for name in SHARES
        },
        "actors": [*first["actors"], *then["actors"]],
    }


def _by_seconds(parts: Sequence[Mapping[str, Any]], values: Sequence[float]) -> float:
    """Return the mean of values of parts, each weighted by how long its part took."""
    seconds = [part["seconds"] for part in parts]
    return float(np.average(values, weights=seconds)) if sum(seconds) else 0.0
