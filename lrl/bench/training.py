"""`lrl bench`: training by number of actors and of environments, and on a GPU its updates, too.

Every run is an `lrl fit` of its own, sides take turns, and a figure is the median of a run's logged
intervals, the first half of which does not count. The ratio of learning to acting is low, one batch
of 32 for 32 environment steps, so that acting matters.
"""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from lrl.bench import ladder
from lrl.bench.measure import Measurement, compared, machine, table, write
from lrl.checkpoints.atomic_files import check_place
from lrl.parts.settings import check_positive
from lrl.types import ConfigError

WORKLOADS = {
    "cartpole": ["--data.env.id", "CartPole-v1", "--model.updates_per_step", "8"],
    "pong": ["--data.env.id", "ALE/Pong-v5", "--model.encoder", "lrl.networks.NatureEncoder"],
}
_SIDE = re.compile(
    r"actors (?P<actors>[1-9]\d*) x (?P<envs>[1-9]\d*)|synchronous (?P<alone>[1-9]\d*)"
)
DEVICES = {
    "cpu": ["--trainer.accelerator", "cpu"],
    "cuda": [
        "--trainer.accelerator", "gpu", "--trainer.devices", "1",
        "--data.replay.device", "cuda",
        "--model.updater", "captured", "--model.updates_per_step", "8",
        "--model.optimizer", "torch.optim.Adam", "--model.optimizer.fused", "true",
    ],
}  # fmt: skip
"""Settings of a run by where it learns."""
FIGURES = {
    "speed/env_steps_per_second": ("env steps/s", 1.0),
    "speed/learner_steps_per_second": ("updates/s", 1.0),
    "speed/learner_wait_fraction": ("% of time the learner waited", 100.0),
    "speed/actor_wait_fraction": ("% of time actors waited", 100.0),
    "sample": ("% of time the learner drew batches", 100.0),
    "optimise": ("% of time the learner optimised", 100.0),
    "other": ("% of time the learner did the rest", 100.0),
}
"""Columns of a run's log, and the shares of its summary; the latter are of the whole run."""


@dataclass(frozen=True)
class Run:
    """What a run was like.

    Attributes:
        figures: By the keys of `FIGURES`.
        verdict: What held it back, in words.
    """

    figures: dict[str, float]
    verdict: str


def bench(
    workloads: Sequence[str] = tuple(WORKLOADS),
    sides: Sequence[str] = ("synchronous 8", "actors 1 x 8", "actors 2 x 8"),
    rounds: int = 3,
    seconds: float = 15.0,
    device: Literal["cpu", "cuda"] = "cpu",
    updates: Sequence[str] | None = None,
    json: Path | None = None,
) -> None:
    """Measure training on this machine by number of actors and of environments.

    Every side is trained for some seconds in each round, and its last run's verdict says what held
    it back: acting, learning or neither. Run it on idle cores. The last column is the median, over
    rounds, of a side's value over that of the first side.

    Args:
        workloads: What is trained, a list: '[cartpole]', '[pong]' or '[cartpole, pong]'.
        sides: A list such as '[synchronous 8, actors 2 x 8]', of `actors N x E` (N actors with E
            environments each) and `synchronous E` (E environments, no actors); all are compared
            with the first.
        rounds: Runs of each side, and windows of updates.
        seconds: Length of a run, of which about five are its start.
        device: Where it learns.
        updates: Networks whose updates are measured first, by optimizer, precision and updater; on
            `cuda` also what the host calls and waits for in them. A list: '[mlp, nature]', say;
            by default all on `cuda` and none on `cpu`.
        json: A file that also takes the figures.

    Raises:
        ConfigError: An argument measures nothing, or there is no folder for the file.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is cuda, but torch finds no GPU here")
    if updates is None:
        updates = tuple(ladder.WORKLOADS) if device == "cuda" else ()
    _check(workloads, updates, sides, {"rounds": rounds, "seconds": seconds})
    if json is not None:
        check_place("--json", json)
    settings = {"device": device, "rounds": rounds, "seconds": seconds}
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **settings}.items()))
    found: list[Measurement] = []
    remarks: list[str] = []
    measured: list[Callable[[], tuple[list[Measurement], list[str]]]] = [
        *(partial(ladder.measure, name, device=device, rounds=rounds) for name in updates),
        *(partial(measure, name, sides, seconds, rounds, device) for name in workloads),
    ]
    for one in measured:
        new, verdicts = one()
        print(table(new), *verdicts, sep="\n", flush=True)
        found += new
        remarks += verdicts
        if json is not None:  # after each: what was measured is not lost with the next
            write(json, found, settings, remarks)


def run(workload: str, actors: int, envs: int, seconds: float, device: str = "cpu") -> Run:
    """Train once and return what the run logged and said of itself.

    Raises:
        ConfigError: Its settings were refused, or it ended before there was anything to measure.
        RuntimeError: It failed; what it said is in the message.
    """
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [
                sys.executable, "-m", "lrl", "fit", "--name", "run", "--runs", folder,
                *WORKLOADS[workload],
                "--data.actors.num_actors", str(actors),
                "--data.actors.envs_per_actor", str(envs),
                "--model.head", "lrl.networks.ScalarHead", "--model.head.loss", "huber",
                "--model.target_update_period_learner_steps", "1000",
                "--data.replay.capacity", "20000", "--data.replay.batch_size", "32",
                "--data.replay.n_step", "1", "--data.replay.gamma", "0.99",
                "--data.rate.samples_per_insert", "1",
                *DEVICES[device],
                "--trainer.max_steps", "100000000",
                "--trainer.max_time", f"{days:02d}:{hours:02d}:{minutes:02d}:{rest:02d}",
                "--trainer.limit_train_batches", "1000",
                "--trainer.log_every_n_steps", "40" if device == "cpu" else "400",
                "--trainer.enable_progress_bar", "false",
                "--actor_learner.eval_period_learner_steps", "0",
                "--actor_learner.save_period_learner_steps", "0",
                *(["--actor_learner.sync_period_learner_steps", "40"] if actors else []),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if ended.returncode == 2:
            refusal = ended.stdout.rpartition("lrl: error: ")[2].strip()
            raise ConfigError(f"{workload}, {actors} actors of {envs}: {refusal}")
        if ended.returncode:
            raise RuntimeError(f"{workload}, {actors} actors of {envs}:\n{ended.stdout[-4000:]}")
        found = _read(Path(folder))
    if found is None:
        raise ConfigError(
            f"--seconds is {seconds:g}, in which {workload} with {actors} actors of {envs} "
            "environments had hardly begun to learn: give it more"
        )
    return found


def _read(folder: Path) -> Run | None:
    """Return what the only run in a folder was like; None if it logged too little to tell."""
    rows: list[dict[str, str]] = []
    for path in folder.glob("run/*/metrics.csv"):
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    if len(rows) < 2:
        return None
    (path,) = folder.glob("run/*/summary.json")
    summary = json.loads(path.read_text())
    shares = summary["time_shares"]
    rows = rows[len(rows) // 2 :]
    figures = {
        name: shares[name] if name in shares else median(float(row[name]) for row in rows)
        for name in FIGURES
    }
    return Run(figures, summary["verdict"])


def measure(
    workload: str, sides: Sequence[str], seconds: float, rounds: int, device: str = "cpu"
) -> tuple[list[Measurement], list[str]]:
    """Train on every side in each round; return the figures, and the last round's verdicts.

    A run that fails ends the rounds, of which those before it count, and is a remark.

    Args:
        workload: A key of `WORKLOADS`.
        sides: The first is compared with.
        seconds: Length of a run, start-up included.
        rounds: Runs of each side.
        device: Where it learns.

    Raises:
        ConfigError: A run of the first round ended before there was anything to measure.
        RuntimeError: A run of the first round failed.
    """
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    remarks: list[str] = []
    for number in range(rounds):
        try:
            new = [run(workload, *_sizes(side), seconds, device) for side in sides]
        except (ConfigError, RuntimeError) as error:
            if number == 0:
                raise
            remarks = [f"{workload}: round {number + 1} of {rounds} is left out: {error}"]
            break
        for side, of_side in zip(sides, new, strict=True):
            runs[side].append(of_side)
    found: list[Measurement] = []
    for name, (unit, scale) in FIGURES.items():
        values = {
            side: [scale * one.figures[name] for one in of_side] for side, of_side in runs.items()
        }
        reference = sides[0] if scale == 1.0 else None  # shares may be 0
        found += compared(f"training, {workload}", unit, values, reference)
    verdicts = [f"{workload}, {side}: {of_side[-1].verdict}" for side, of_side in runs.items()]
    return found, [*verdicts, *remarks]


def _sizes(side: str) -> tuple[int, int]:
    """Return the numbers of actors and of environments of each."""
    found = _SIDE.fullmatch(side)
    assert found
    return (
        (0, int(found["alone"])) if found["alone"] else (int(found["actors"]), int(found["envs"]))
    )


def _check(
    workloads: Sequence[str],
    updates: Sequence[str],
    sides: Sequence[str],
    amounts: Mapping[str, float],
) -> None:
    if not workloads and not updates:
        raise ConfigError("--workloads is empty: name some of " + ", ".join(WORKLOADS))
    _check_names("workloads", workloads, WORKLOADS)
    _check_names("updates", updates, ladder.WORKLOADS)
    _check_sides(sides)
    for name, value in amounts.items():
        check_positive(f"--{name}", value)


def _check_sides(sides: Sequence[str]) -> None:
    wrong = [side for side in sides if not _SIDE.fullmatch(side)]
    if wrong or not sides:
        what = f"has {wrong[0]!r}" if wrong else "is empty"
        raise ConfigError(f"--sides {what}: name some such as 'actors 2 x 8' or 'synchronous 8'")
    if len(set(sides)) < len(sides):
        raise ConfigError("--sides has a side twice: more of its runs are made by --rounds")


def _check_names(option: str, names: Sequence[str], known: Mapping[str, object]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"--{option} has {unknown[0]!r}: name some of {', '.join(known)}")
