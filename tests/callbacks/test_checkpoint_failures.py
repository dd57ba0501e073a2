"""Runs whose checkpoints cannot be written, or were left behind by killed ones."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import AfterEachStep, Run, make_run, quiet, small_data
from lightning.fabric.plugins.io import TorchCheckpointIO

from lrl import ActorLearnerCallback, ConfigError, EvaluationConfig
from lrl.checkpoints import files
from lrl.checkpoints.files import CheckpointError, SaveError, read_checkpoint

pytestmark = quiet


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch):
    """A disk that is full for the checkpoints of a set of names."""
    full: set[str] = set()
    replace_file = files.replace_file

    def refuse_if_full(path: Path, *arguments: Any) -> None:
        if path.name.partition(".")[0] in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, *arguments)

    monkeypatch.setattr(files, "replace_file", refuse_if_full)
    return full


def at_step(step: int, act: Any) -> L.Callback:
    return AfterEachStep(lambda trainer, batch: act() if trainer.global_step == step else None)


def steps(run: Run) -> dict[str, int]:
    files = sorted((run.folder / "checkpoints").iterdir())
    return {file.name: read_checkpoint(file)["global_step"] for file in files}


def test_the_last_two_are_kept(tmp_path: Path):
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 4), max_steps=10).fit()
    assert steps(run) == {"last.ckpt": 10, "previous.ckpt": 8}


@pytest.mark.parametrize("accumulated", [1, 3])
def test_training_goes_on_when_saving_fails_and_saves_again_later(
    tmp_path: Path, disk, caplog, accumulated: int
):
    full, empty = at_step(3, lambda: disk.add("last")), at_step(7, disk.clear)
    callback = ActorLearnerCallback(5, 0, 2)
    run = make_run(
        tmp_path, full, empty, callback, max_steps=8, accumulate_grad_batches=accumulated
    ).fit()
    assert steps(run) == {"last.ckpt": 8, "previous.ckpt": 2}
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == 2  # at 4 and 6
    assert "last.ckpt could not be written: No space left on device (" in errors[0]
    assert " bytes free); what was there before is unchanged" in errors[0]
    assert "(failed saves in a row: 1; the last one kept is of learner step 2)" in errors[0]
    assert "failed saves in a row: 2" in errors[1]
    assert "Training goes on and tries again in 2 learner steps" in errors[1]


def test_a_final_save_that_fails_fails_the_run(tmp_path: Path, disk):
    run = make_run(
        tmp_path, at_step(5, lambda: disk.add("last")), ActorLearnerCallback(5, 0, 4), max_steps=6
    )
    message = r"final weights are lost: .*No space left .*; the last one kept is of learner step 4"
    with pytest.raises(SaveError, match=message):
        run.fit()
    assert steps(run) == {"last.ckpt": 4}
    assert (run.folder / "summary.json").exists()


def test_a_run_that_never_could_save_says_so(tmp_path: Path, disk):
    disk.add("last")
    with pytest.raises(SaveError, match="this run has kept none yet"):
        make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=2).fit()


def test_a_best_that_cannot_be_kept_is_not_the_best(tmp_path: Path, disk, caplog):
    disk.add("best")
    run = make_run(tmp_path, ActorLearnerCallback(5, 4, 0), max_steps=4).fit()
    assert run.callback.best_model_path == ""
    assert run.callback.best_model_score == float("-inf")
    assert "the best weights so far, of score" in caplog.text
    assert steps(run) == {"last.ckpt": 4}


@pytest.mark.parametrize("name", ["best", "candidate"])
def test_evaluation_in_the_background_outlives_a_full_disk(tmp_path: Path, disk, caplog, name: str):
    disk.add(name)
    data = small_data(evaluation=EvaluationConfig(episodes=2))
    callback = ActorLearnerCallback(5, 5, 0, evaluation="background")
    run = make_run(tmp_path, callback, data=data, max_steps=5).fit()
    assert [row["step"] for row in run.metrics() if "eval/return_mean" in row] == ["5"]
    kept = {"best.ckpt": 5, "last.ckpt": 5}
    assert steps(run) == (kept if name == "best" else {"last.ckpt": 5})  # `best` is renamed to
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error[:51] for error in errors] == (
        ["weights that may prove the best could not be kept: "] if name == "candidate" else []
    )


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def leave(folder: Path) -> Path:
    """Leave what a killed run does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"last.ckpt.{platform.node()}-{dead_process()}.tmp"
    path.touch()
    return path


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path: Path):
    first = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=2).fit()
    resumed_from = leave(first.folder / "checkpoints")
    second = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=4)
    started_in = leave(second.folder / "checkpoints")
    second.fit(first.checkpoint("last"))
    assert not resumed_from.exists()
    assert not started_in.exists()
    assert steps(second) == {"last.ckpt": 4}


def test_a_damaged_file_ends_the_run_before_it_begins(tmp_path: Path):
    first = make_run(tmp_path, ActorLearnerCallback(5, 0, 1), max_steps=3).fit()
    os.truncate(first.checkpoint("last"), 1000)
    second = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=4)
    with pytest.raises(CheckpointError, match=r"last\.ckpt is damaged.*previous\.ckpt is whole"):
        second.fit(first.checkpoint("last"))
    assert second.trainer.global_step == 0
    assert not (second.folder / "checkpoints").exists()


class OwnIO(TorchCheckpointIO):
    """A user's, that has no room."""

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        raise OSError("no room in the cloud")


def test_a_way_of_ones_own_is_used_and_may_fail_too(tmp_path: Path):
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=2, plugins=[OwnIO()])
    with pytest.raises(SaveError, match="the final weights are lost: no room in the cloud"):
        run.fit()


def test_a_run_folder_must_be_on_a_disk(tmp_path: Path):
    run = make_run(
        tmp_path, ActorLearnerCallback(5, 0, 0), logger=False, default_root_dir="memory://runs"
    )
    with pytest.raises(ConfigError, match="the run's folder is memory://runs"):
        run.fit()
