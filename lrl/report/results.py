"""The scores that a report compares: of runs, and of CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lrl.checkpoints.stamp import differences, kind_in
from lrl.envs import EnvConfig, kind_of
from lrl.report.groups import Group
from lrl.report.runs import EVALUATION, Run
from lrl.types import ConfigError

Choice = Literal["last", "best"]
_PROTOCOL = ("protocol", "epsilon", "max_frames")


@dataclass(frozen=True)
class Result:
    """The score of one training run.

    Attributes:
        group: What it is a run of.
        task: Id of the environment.
        value: Mean return.
        human: Its human-normalised score; None if there is none.
        seed: Seed or name of the run; "" if unknown.
        protocol: What is known of `protocol`, `epsilon` and `max_frames`.
        source: Where it was read.
        env_steps: Environment steps of the training; None if unknown.
        seconds: Its wall time; None if unknown.
    """

    group: str
    task: str
    value: float
    human: float | None
    seed: str
    protocol: Mapping[str, str]
    source: str
    env_steps: float | None = None
    seconds: float | None = None


def results_of(groups: Sequence[Group], choice: Choice) -> list[Result]:
    """Return the scores of runs: of their last evaluation, or of their best."""
    return [_result(group.label, run, choice) for group in groups for run in group.runs]


def _result(label: str, run: Run, choice: Choice) -> Result:
    curve = run.curve(EVALUATION, "learner_steps")
    assert curve is not None
    index = int(np.argmax(curve[1])) if choice == "best" else -1
    cut_off = run.curve("eval/timeouts", "learner_steps")
    limit = run.stamp["evaluation"]["max_frames_per_episode"]
    was_cut_off = cut_off is None or cut_off[1][index] > 0
    value = float(curve[1][index])
    return Result(
        group=label,
        task=run.task,
        value=value,
        human=kind_in(run.stamp).human_normalised(value, limit if was_cut_off else None),
        seed=str(run.seed),
        protocol=protocol_of(run.stamp),
        source=str(run.folder),
        env_steps=run.summary.get("env_steps"),
        seconds=run.summary.get("seconds"),
    )


def protocol_of(stamp: Mapping[str, Any]) -> dict[str, str]:
    """Return of a stamp what files of scores have columns for."""
    evaluation = stamp["evaluation"]
    return {
        "protocol": stamp["protocol"],
        "epsilon": f"{evaluation['epsilon']:g}",
        "max_frames": str(evaluation["max_frames_per_episode"]),
    }


def read_results(path: Path, of_others: bool) -> tuple[list[Result], int]:
    """Return the scores in a CSV file (docs/report.md has its columns), and how many runs failed.

    Args:
        path: The file.
        of_others: Whether it must have a column `algorithm`; otherwise it may be one without, such
            as docs/scores.csv, whose `task` is a recipe and names the group.

    Raises:
        ConfigError: There is no such file, a column is missing, a line is wrong, or all failed.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write the mark
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            lines = [(reader.line_num, line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as CSV: {error}") from error
    needed = {"task", "score"} | ({"algorithm"} if of_others else set())
    missing = sorted(needed - columns)
    if missing or not lines:
        lacks = f"no column {', '.join(missing)}" if missing else "no scores"
        raise ConfigError(
            f"{path} has {lacks}: a file of scores has columns {', '.join(sorted(needed))}, and "
            "one row per run (docs/report.md)"
        )
    ended = [(number, line) for number, line in lines if line.get("outcome") != "failed"]
    if not ended:
        raise ConfigError(f"{path} has no scores: all of its runs failed; leave it out")
    found = [_read_line(path, number, line) for number, line in ended]
    _check_once(path, found)
    return found, len(lines) - len(ended)


def _read_line(path: Path, number: int, line: Mapping[str, str | None]) -> Result:
    if None in line:  # as where 20,5 means 20.5
        raise ConfigError(f"{path}, line {number}: there are more values than columns")
    given = {name: (value or "").strip() for name, value in line.items()}
    values = {
        name: _number(path, number, name, given, least=least)
        for name, least in (("score", -math.inf), ("env_steps", 0), ("seconds", 0))
    }
    score = values["score"]
    if score is None or not given["task"]:
        raise ConfigError(f"{path}, line {number}: a task and its score are needed")
    task = given.get("environment") or given["task"]
    limit = _number(path, number, "max_frames", given, least=1)
    epsilon = _number(path, number, "epsilon", given, least=0)
    known = {name: given[name] for name in _PROTOCOL if given.get(name)}
    if epsilon is not None:
        known["epsilon"] = f"{epsilon:g}"
    if limit is not None:
        known["max_frames"] = f"{limit:.0f}"
    try:
        human = kind_of(EnvConfig(task)).human_normalised(score, int(limit) if limit else None)
    except ConfigError as error:
        raise ConfigError(f"{path}, line {number}: {error}") from error
    return Result(
        group=given.get("algorithm") or given["task"],
        task=task,
        value=score,
        human=human,
        seed=given.get("seed") or given.get("run") or "",
        protocol=known,
        source=str(path),
        env_steps=values["env_steps"],
        seconds=values["seconds"],
    )


def _number(
    path: Path, number: int, name: str, given: Mapping[str, str], least: float
) -> float | None:
    text = given.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise ConfigError(f"{path}, line {number}: {name} {text!r} is no number") from None
    if value < least:
        raise ConfigError(f"{path}, line {number}: {name} {text} must be at least {least:g}")
    return value


def _check_once(path: Path, found: Iterable[Result]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for result in found:
        key = result.group, result.task, result.seed
        if result.seed and key in seen:
            raise ConfigError(
                f"{path} has two scores of {result.group} on {result.task} with seed {result.seed}"
            )
        seen.add(key)


def check_protocols(runs: Sequence[Run], results: Sequence[Result]) -> None:
    """Check that what is compared was measured alike.

    That is what is of one environment, and all runs of games whose scores are human-normalised.
    What a file of scores does not tell is taken as equal.

    Raises:
        ConfigError: Protocols differ.
    """
    first_run: dict[str, Run] = {}
    for run in runs:
        is_normalised = kind_in(run.stamp).human_normalised(0.0, None) is not None
        other = first_run.setdefault("human-normalised" if is_normalised else run.task, run)
        found = differences(other.stamp, run.stamp)
        _refuse(str(run.folder), str(other.folder), found)
    first: dict[tuple[str, str], Result] = {}
    for result in results:
        for name, value in result.protocol.items():
            scale = result.task if result.human is None else "human-normalised"
            other = first.setdefault((scale, name), result)
            known = {name: (other.protocol[name], value)} if value != other.protocol[name] else {}
            where = f"{result.group} on {result.task} ({result.source})"
            _refuse(where, f"{other.group} ({other.source})", known)


def _refuse(one: str, other: str, found: Mapping[str, tuple[Any, Any]]) -> None:
    if found:
        settings = ", ".join(
            f"{name} {own} instead of {then}" for name, (then, own) in found.items()
        )
        raise ConfigError(
            f"protocols differ, so that scores do not compare: {one} has {settings}, as {other} "
            "has: make a report of each"
        )
