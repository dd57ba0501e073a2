"""Small training runs in this process, and what is left of a run's processes and memory."""

from __future__ import annotations

import contextlib
import csv
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from helpers.waiting import wait_for
from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
)
from lrl.callbacks.feedback import DEFAULT_SYNC_PERIOD
from lrl.learner.datamodule import dataset_of
from lrl.learner.dataset import ReplayDataset
from lrl.networks import MLPEncoder
from lrl.pools.pool import Delivery
from lrl.pools.processes import ProcessPool
from lrl.types import Rows

# Lightning's own, about the machine and about its use of torch; the lines are of no test's making.
quiet = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),
]


class AfterEachStep(L.Callback):
    """Calls a function with the trainer and the batch after every learner step."""

    def __init__(self, function: Callable[[L.Trainer, Any], object]) -> None:
        self.function = function

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self.function(trainer, batch)


def small_agent(**settings: Any) -> DQN:
    encoder = functools.partial(MLPEncoder, hidden_sizes=(16,))
    defaults = {"encoder": encoder, "target_update_period_learner_steps": 10}
    return DQN(**{**defaults, **settings})


def small_data(env_id: str = "lrl/Identity-v0", **settings: Any) -> ReplayDataModule:
    """Experience of a small environment, made in this process unless `actors` says otherwise."""
    defaults = {
        "env": EnvConfig(id=env_id),
        "actors": ActorConfig(num_actors=0, envs_per_actor=2),
        "replay": ReplayConfig(capacity=2000, batch_size=8, n_step=1, gamma=0.99),
        "rate": RateLimiterConfig(samples_per_insert=4.0, warm_up_env_steps=20),
        "evaluation": EvaluationConfig(episodes=2, test_episodes=4),
        "learner_threads": 1,
    }
    return ReplayDataModule(**{**defaults, **settings})


def background(num_actors: int = 2, envs_per_actor: int = 2, **settings: Any) -> ActorConfig:
    return ActorConfig(
        num_actors=num_actors, envs_per_actor=envs_per_actor, **{"chunk_rows": 16, **settings}
    )


@dataclass
class Run:
    """A trainer with all that it is given to fit."""

    trainer: L.Trainer
    module: DQN
    data: ReplayDataModule

    def fit(self, ckpt_path: Path | str | None = None) -> Run:
        self.trainer.fit(self.module, datamodule=self.data, ckpt_path=ckpt_path)
        return self

    def take(self, timeout: float) -> None:
        """Have the learner take what arrives next, if anything does in time."""
        dataset = self.data.dataset
        assert dataset is not None
        assert dataset.pool is not None
        dataset.pool.check()
        for delivery in dataset.pool.poll(timeout):
            dataset._take(delivery)

    @property
    def folder(self) -> Path:
        assert self.trainer.log_dir is not None
        return Path(self.trainer.log_dir)

    @property
    def callback(self) -> ActorLearnerCallback:
        callbacks = getattr(self.trainer, "callbacks", [])
        return next(c for c in callbacks if isinstance(c, ActorLearnerCallback))

    def metrics(self) -> list[dict[str, str]]:
        """Rows of metrics.csv, without the columns that a row leaves empty."""
        with (self.folder / "metrics.csv").open() as file:
            return [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]

    def checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / f"{name}.ckpt"


def make_run(
    folder: Path,
    *callbacks: L.Callback,
    module: DQN | None = None,
    data: ReplayDataModule | None = None,
    max_steps: int = 20,
    seed: int | None = 0,
    **trainer: Any,
) -> Run:
    """Make a run; without callbacks it gets an ActorLearnerCallback with short periods.

    Where it acts in this process, nobody waits for weights: their period is left out.
    """
    if seed is not None:
        L.seed_everything(seed, verbose=False)
    version = f"version_{len(list(folder.glob('run/version_*')))}"
    where = {"save_dir": folder, "name": "run", "version": version}
    settings = {
        "accelerator": "cpu",
        "max_steps": max_steps,
        "log_every_n_steps": 5,
        "logger": [TensorBoardLogger(**where), CSVLogger(**where)],
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": list(callbacks) or [ActorLearnerCallback(5, 10, 10)],
    }
    data = data or small_data()
    for callback in settings["callbacks"]:
        if isinstance(callback, ActorLearnerCallback) and data.actors.num_actors == 0:
            callback.weight_sync.asked_period = DEFAULT_SYNC_PERIOD
    return Run(L.Trainer(**{**settings, **trainer}), module or small_agent(), data)


def once_all_act(trainer: L.Trainer, batch: object) -> None:
    """After a step, wait for all processes: a short run may have learned from one of them alone."""
    pool = dataset_of(trainer).pool
    if isinstance(pool, ProcessPool):
        wait_for(lambda: all(a.env_steps for a in pool.counts().actors), "steps of all actors")


def shared_blocks() -> int:
    """Number of lrl's blocks of shared memory that this process maps (Linux)."""
    return Path("/proc/self/maps").read_text().count("memfd:lrl")


def actor_processes() -> list[Any]:
    children = multiprocessing.active_children()
    return [child for child in children if child.name.startswith("lrl-actor")]


def process_group(leader: int) -> list[int]:
    """Processes alive in a group, zombies excluded (Linux)."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return members


def kill_group(leader: int) -> None:
    """Kill what is left of a group."""
    for pid in process_group(leader):
        os.kill(pid, signal.SIGKILL)


def processes_of(mark: str) -> list[int]:
    """Return the processes that were started with a text in their environment (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def rank_processes(group: int, command: bytes = b"helpers.endless_run") -> dict[int, int]:
    """Processes of the script or command itself, by rank (Linux)."""
    found = {}
    for pid in process_group(group):
        folder = Path(f"/proc/{pid}")
        if command in (folder / "cmdline").read_bytes():
            environment = (folder / "environ").read_bytes().split(b"\0")
            found[1 if b"LOCAL_RANK=1" in environment else 0] = pid
    return found


def environment_for_subprocess() -> dict[str, str]:
    """The environment of a script: it finds lrl and these helpers."""
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def spy_on_rows(monkeypatch: pytest.MonkeyPatch, note: Callable[[Rows], object]) -> None:
    """Have all rows noted that a learner receives, before it takes them."""
    take = ReplayDataset._take

    def spied(self: ReplayDataset, delivery: Delivery) -> None:
        for rows in delivery.rows:
            note(rows)
        take(self, delivery)

    monkeypatch.setattr(ReplayDataset, "_take", spied)
