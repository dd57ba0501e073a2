"""SLURM's signal saves, stops and has the job queued again."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import AfterEachStep, background, make_run, quiet, small_data
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from lrl import ActorLearnerCallback, ReplayDataModule
from lrl.callbacks.signals import SlurmRequeue

pytestmark = [*quiet, pytest.mark.filterwarnings("ignore:The `srun` command is available")]


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    """A job of one task, and a `scontrol` that notes how it is called."""
    for name, value in {
        "JOB_ID": "123", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0",
        "NODEID": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    (tools / "scontrol").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    before = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    yield tmp_path / "called"
    for number, handler in before.items():
        signal.signal(number, handler)


def fit(tmp_path: Path, **trainer: Any) -> tuple[int, bool]:
    """Let SLURM's signal come at the fifth learner step; return the step saved."""

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        if trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGUSR1)

    run = make_run(
        tmp_path,
        AfterEachStep(after_each_step),
        ActorLearnerCallback(5, 0, 0),
        data=small_data(actors=background(2)),
        max_steps=10**6,
        **trainer,
    )
    with pytest.raises(SystemExit):
        run.fit()
    path = run.checkpoint("last")
    return run.trainer.global_step, path.exists()


def test_the_signal_saves_stops_and_queues_the_job_again(janitor, tmp_path, slurm):
    step, saved = fit(tmp_path)
    assert saved
    assert step <= 6
    assert slurm.read_text() == "requeue 123\n"
    assert not list(tmp_path.glob("hpc_ckpt*"))
    assert not list(Path.cwd().glob("hpc_ckpt*"))


class AtTheStart(L.Callback):
    """Let SLURM's signal come before anything was learned."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)


def test_a_job_that_had_not_learned_yet_can_go_on_too(tmp_path, slurm):
    run = make_run(
        tmp_path,
        AtTheStart(),
        ActorLearnerCallback(5, 0, 0),
        data=small_data(actors=background(2)),
        max_steps=5,
    )
    with pytest.raises(SystemExit):
        run.fit()
    assert run.trainer.global_step == 0
    assert slurm.read_text() == "requeue 123\n"
    again = make_run(tmp_path / "again", ActorLearnerCallback(5, 0, 0), max_steps=5)
    assert again.fit(run.checkpoint("last")).trainer.global_step == 5


def test_a_task_of_an_array_is_named(tmp_path, slurm, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    fit(tmp_path)
    assert slurm.read_text() == "requeue 77_3\n"


def test_it_is_queued_again_when_all_ranks_have_saved(slurm):
    """SLURM then ends all of them at once."""
    part, data, met = SlurmRequeue(), ReplayDataModule(learner_threads=1), list[bool]()
    part._environment, part.is_asked = SLURMEnvironment(), True
    ranks: Any = SimpleNamespace(
        stopped_together=True, maximum=lambda number: met.append(slurm.exists())
    )
    data.ranks = ranks
    trainer: Any = SimpleNamespace(datamodule=data, is_global_zero=True)
    part.on_exception(trainer, L.LightningModule(), SystemExit())
    assert met == [False]
    assert slurm.read_text() == "requeue 123\n"


def test_without_queueing_it_again_it_saves_and_stops_all_the_same(tmp_path, slurm):
    _, saved = fit(tmp_path, plugins=[SLURMEnvironment(auto_requeue=False)])
    assert saved
    assert not slurm.exists()


def test_a_scontrol_that_fails_is_reported_and_hides_nothing(tmp_path, slurm, caplog):
    (tmp_path / "tools/scontrol").write_text("#!/bin/sh\nexit 3\n")
    _, saved = fit(tmp_path)
    assert saved
    assert "the job could not be queued again" in caplog.text


def test_without_slurm_the_signal_is_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    seen = []
    run = make_run(
        tmp_path,
        AfterEachStep(lambda trainer, batch: seen.append(signal.getsignal(signal.SIGUSR1))),
        ActorLearnerCallback(5, 0, 0),
        max_steps=2,
    )
    run.fit()
    assert set(seen) == {before}
