"""Scores of evaluated checkpoints, and the two files that hold them."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lrl.checkpoints.atomic_files import replace_file
from lrl.checkpoints.files import temporary_beside
from lrl.checkpoints.stamp import differences, flatten, kind_in, machine
from lrl.evaluation.episodes import Episodes
from lrl.report.statistics import Summary, summarise
from lrl.types import ConfigError

HUMAN_NORMALISED = "human-normalised"
"""Name of the aggregate over games."""

_FORMAT = 1


@dataclass(frozen=True)
class Score:
    """What one checkpoint scored."""

    checkpoint: str  # its path
    stamp: Mapping[str, Any]  # its protocol stamp, with the `evaluation` that this score is of
    episodes: Episodes  # in the order of the seeds
    seconds: float  # wall time of the episodes
    weights_sha256: str = ""  # of the weights that played

    @property
    def first_seed(self) -> int:
        """Seed of the first episode; the others count up."""
        return self.stamp["evaluation"]["first_seed"]

    @property
    def environment(self) -> str:
        """Id of the environment."""
        return self.stamp["environment"]["id"]

    @property
    def return_mean(self) -> float:
        """Mean return of the episodes: the checkpoint's one figure in the aggregate."""
        return float(self.episodes.returns.mean())

    @property
    def human_normalised(self) -> float | None:
        """Mean return between random play (0) and a human (1), where both are known."""
        limit = self.stamp["evaluation"]["max_frames_per_episode"]
        return kind_in(self.stamp).human_normalised(
            self.return_mean, limit if self.episodes.timed_out.any() else None
        )

    @cached_property
    def summary(self) -> Summary:
        """Statistics of the episodes' returns."""
        return summarise([self.episodes.returns])

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the single episodes, as plain data."""
        count = len(self.episodes.returns)
        return {
            "checkpoint": self.checkpoint,
            "weights_sha256": self.weights_sha256,
            "statistics": {
                **asdict(self.summary),
                "human_normalised": self.human_normalised,
                "length_mean": float(self.episodes.lengths.mean()),
                "timeouts": int(self.episodes.timed_out.sum()),
            },
            "episodes": count,
            "first_seed": self.first_seed,
            "last_seed": self.first_seed + count - 1,
            "seconds": self.seconds,
            "stamp": self.stamp,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every episode, with every part of the stamp in a column of its own."""
        common = {"checkpoint": self.checkpoint, **flatten(self.stamp)}
        played = self.episodes
        results = zip(played.returns, played.lengths, played.timed_out, strict=True)
        return [
            {**common, "seed": self.first_seed + index, "return": float(value),
             "length": int(length), "timed_out": int(timed_out)}
            for index, (value, length, timed_out) in enumerate(results)
        ]  # fmt: skip


def describe(checkpoint: str, stamp: Mapping[str, Any], episodes: Episodes) -> str:
    """Return what `lrl validate` and `lrl test` print of the episodes of a checkpoint."""
    score = Score(checkpoint, stamp, episodes, seconds=0.0)
    found, human, cut_off = score.summary, score.human_normalised, int(episodes.timed_out.sum())
    digits = found.digits
    low, high = found.iqm_low, found.iqm_high
    interval = "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return (
        f"checkpoint {checkpoint}\n"
        f"protocol {stamp['protocol']}, epsilon {stamp['evaluation']['epsilon']:g}\n"
        f"median {found.median:.{digits}f}, IQM {found.iqm:.{digits}f}{interval}, "
        f"length {episodes.lengths.mean():.1f}"
        + (f", human-normalised {human:.0%}" if human is not None else "")
        + f"\nreturn {found.mean:.{digits}f} ± {found.std:.{digits}f} over {found.count} episodes"
        + (f", {cut_off} of them cut off by the cap on frames" if cut_off else "")
    )


def aggregate(scores: Sequence[Score]) -> dict[str, Summary]:
    """Return the statistics over checkpoints, each of which counts as one run with its mean.

    There is one entry per environment, and `human-normalised` over all where every score is known:
    raw returns of different games do not add up. The runs of a game are a group of the bootstrap,
    as in Agarwal et al. 2021. Where they are not `independent` there is no interval.
    """
    by_environment: dict[str, list[Score]] = {}
    for score in scores:
        by_environment.setdefault(score.environment, []).append(score)
    result = {
        environment: summarise([[score.return_mean for score in runs]], independent(runs))
        for environment, runs in by_environment.items()
    }
    normalised = [[score.human_normalised for score in runs] for runs in by_environment.values()]
    known = [[value for value in runs if value is not None] for runs in normalised]
    if known == normalised:
        result[HUMAN_NORMALISED] = summarise(known, independent(scores))
    return result


def independent(scores: Sequence[Score]) -> bool:
    """Return whether no two scores are of one environment and one training seed.

    Two checkpoints of a run are, and two algorithms with the same seed: what varies between them
    is not what varies from one training run to the next.
    """
    runs = {(score.environment, score.stamp["training"]["seed"]) for score in scores}
    return len(runs) == len(scores)


def disagreements(
    stamps: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return in what checkpoints were measured unlike the first one, by their stamps."""
    first = next(iter(stamps.values()))
    found = {checkpoint: differences(first, stamp) for checkpoint, stamp in stamps.items()}
    return {checkpoint: settings for checkpoint, settings in found.items() if settings}


def score_files(out: str, overwrite: bool) -> tuple[Path, Path]:
    """Return the CSV and the JSON file that `out` stands for, once they can be written."""
    stem = out.removesuffix(".csv").removesuffix(".json")
    paths = Path(f"{stem}.csv"), Path(f"{stem}.json")
    existing = [str(path) for path in paths if path.exists()]
    if existing and not overwrite:
        raise ConfigError(
            f"out is {out!r}, but {' and '.join(existing)} already there: give another name, or "
            "--overwrite true"
        )
    if not Path(stem).name or Path(stem).is_dir():
        raise ConfigError(f"out is {out!r}, a folder: name the files in it, as in {stem}/scores")
    lacks = "made"
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        lacks = "written"
        tempfile.TemporaryFile(dir=paths[0].parent).close()
    except OSError as error:
        raise ConfigError(f"out is {out!r}, whose folder cannot be {lacks}: {error}") from error
    return paths


def write_scores(files: tuple[Path, Path], scores: Sequence[Score], device: str) -> None:
    """Write a CSV file of episodes and a JSON file of statistics and stamps.

    Args:
        files: Paths of both, from `score_files`.
        scores: At least one.
        device: Name of the device on which the networks acted.
    """
    rows = [row for score in scores for row in score.rows()]
    table = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)  # versions of lrl stamp differently
    writer = csv.DictWriter(table, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    report = {
        "format": _FORMAT,
        "scores": [score.as_dict() for score in scores],
        "aggregate": {name: asdict(summary) for name, summary in aggregate(scores).items()},
        "disagreements": disagreements({score.checkpoint: score.stamp for score in scores}),
        "evaluated_with": {"device": device, **machine()},
    }
    text = json.dumps(report, indent=2, allow_nan=False)
    try:
        for path, content in zip(files, (table.getvalue(), f"{text}\n"), strict=True):
            data = content.encode()
            replace_file(path, lambda file, data=data: file.write(data), temporary_beside(path))
    except OSError as error:
        raise ConfigError(f"out: the scores cannot be written: {error}") from error
