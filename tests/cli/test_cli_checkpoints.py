"""Damaged, foreign and unwritable checkpoints on the command line: exit codes and sentences."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import trained
from helpers.command_line import Project, quiet_commands

from lrl.actors.manager import ActorManager
from lrl.checkpoints import files, stamp

pytestmark = quiet_commands

SHORT = ("--data.actors.num_actors=0", "--trainer.max_steps=4")
LR = 1e-05
WITHOUT_EVALUATION = "--actor_learner.eval_period_learner_steps=0"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def original(project):
    """The checkpoints of a run that ended well; it lies elsewhere."""
    folder = trained(project.folder / "elsewhere").parent
    shutil.copy(folder / "last.ckpt", folder / "previous.ckpt")
    shutil.copy(folder / "last.ckpt", folder / "best.ckpt")
    return folder


@pytest.fixture
def run(project, original):
    """Checkpoints of `run`, as they were."""
    folder = project.folder / "runs/run/version_0/checkpoints"
    shutil.rmtree(project.folder / "runs", ignore_errors=True)
    shutil.copytree(original, folder)
    return folder


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys)


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be started."""
    monkeypatch.setattr(ActorManager, "start", lambda self: pytest.fail("actors were started"))


def damage(folder: Path, *names: str) -> None:
    for name in names:
        os.truncate(folder / f"{name}.ckpt", 700)


def error_of(err: str) -> str:
    assert "Traceback" not in err
    (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
    return line


ASK = {
    "fit": ("fit", "--config", "base.yaml", *SHORT),
    "test": ("test", "--config", "base.yaml"),
    "validate": ("validate", "--config", "base.yaml"),
    "evaluate": ("evaluate", "--episodes", "2"),
    "play": ("play",),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("name", ASK)
def test_where_nothing_is_whole_nothing_is_started(command, run, name: str, which: str):
    damage(run, "last", "previous", "best")
    code, out, err = command(*ASK[name], "--name", "run", "--ckpt_path", which)
    assert (code, out) == (2, "")
    assert f"{which}.ckpt is damaged" in error_of(err)
    assert [path.name for path in run.parents[1].iterdir()] == ["version_0"]


@pytest.mark.parametrize("name", ["test", "validate", "evaluate"])
def test_the_one_before_a_damaged_last_is_used(command, run, caplog, name: str):
    damage(run, "last")
    code, _, err = command(*ASK[name], "--name", "run", "--ckpt_path", "last")
    assert code == 0, err
    (warning,) = (message for message in caplog.messages if "damaged" in message)
    assert "last.ckpt is damaged" in warning
    assert warning.endswith("previous.ckpt is used, of learner step 5")


FOREIGN = {
    "optimizer": ([], "optimizer torch.optim.adam.Adam, which torch.optim.sgd.SGD cannot go on"),
    "network": (
        ["--model.encoder.init_args.hidden_sizes=[8]"],
        "holds another network: model.encoder.init_args.hidden_sizes is ",
    ),
    "environment": (
        ["--data.env.id=CartPole-v1", "--data.env.kwargs={}"],
        "was trained in environment lrl/Identity-v0, but env.id is CartPole-v1",
    ),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_of_another_agent_is_refused_in_one_line(command, run, name: str):
    settings, message = FOREIGN[name]
    code, out, err = command(*ASK["fit"], *settings, "--ckpt_path", str(run / "last.ckpt"))
    assert (code, out) == (2, "")
    assert message in error_of(err)


def test_a_changed_learning_rate_is_not_passed_over_in_silence(command, run, caplog):
    settings = [f"--model.optimizer={{class_path: torch.optim.Adam, init_args: {{lr: {LR}}}}}"]
    path = ("--ckpt_path", str(run / "last.ckpt"))
    code, _, err = command(*ASK["fit"], *settings, *path, "--trainer.max_steps=6")
    assert code in (None, 0), err
    (warning,) = (message for message in caplog.messages if "goes on keeps" in message)
    assert f"model.optimizer.init_args.lr is 0.001 there and {LR} here;" in warning


@pytest.mark.parametrize("name", ["fit", "test", "evaluate"])
def test_a_checkpoint_is_read_once_and_its_stamp_compared_once(command, run, monkeypatch, name):
    read, compared = [], []

    def noted(path: Path, map_location: Any, whole: Any = files._read) -> Any:
        read.append(path)
        return whole(path, map_location)

    def differences(*stamps: Any, whole: Any = stamp.differences) -> Any:
        compared.append(stamps)
        return whole(*stamps)

    monkeypatch.setattr(files, "_read", noted)
    monkeypatch.setattr(stamp, "differences", differences)
    adam = ["--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.001"]
    settings = [*adam, "--trainer.max_steps=6"] if name == "fit" else []
    code, _, err = command(*ASK[name], *settings, "--name", "run", "--ckpt_path", "last")
    assert not code, err
    assert [path.resolve() for path in read] == [run / "last.ckpt"]
    assert len(compared) == (name != "evaluate")
    assert files._kept is None


def test_an_exit_in_an_evaluation_is_no_success(command, project, monkeypatch):
    def leave(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("lrl.evaluation.loader.run_episodes", leave)
    code, _, err = command(
        "fit", "--config", "base.yaml", *SHORT, "--name", "left",
        "--actor_learner.eval_period_learner_steps=2",
    )  # fmt: skip
    assert code == 1
    assert "SystemExit" in err
    assert (project.folder / "runs/left/version_0/checkpoints/last.ckpt").exists()


def test_a_disk_that_is_full_at_the_start_is_a_sentence(command, project, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lrl.cli.main.log_configuration", full)
    code, _, err = command("fit", "--config", "base.yaml", *SHORT, "--name", "full")
    assert code == 2
    assert "No space left on device" in error_of(err)
    assert not (project.folder / "runs/full/version_0").exists()


@pytest.mark.parametrize(("count", "expected"), [("", 2), ("0", 2), ("1", 0)])
def test_a_job_that_was_preempted_before_its_first_save_begins_again(
    command, monkeypatch, count, expected
):
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    last = ("--ckpt_path", "last", "--name", f"job{count}", WITHOUT_EVALUATION)
    code, _, err = command(*ASK["fit"], *last)
    assert (code or 0) == expected, err
    code, _, _ = command(*ASK["test"], "--ckpt_path", "last", "--name", f"no{count}")
    assert code == 2


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", ASK)
def test_addresses_are_refused(command, project, name: str):
    code, out, err = command(*ASK[name], "--ckpt_path", "https://nowhere.test/last.ckpt")
    assert (code, out) == (2, "")
    assert "only files of this machine are read" in error_of(err)


def test_a_final_save_that_fails_is_exit_code_1_and_a_sentence(command, project, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "replace_file", refuse)
    code, _, err = command(*ASK["fit"], WITHOUT_EVALUATION, "--name", "full")
    assert code == 1
    assert "lrl: error: the final weights are lost: checkpoint " in error_of(err)
    assert "No space left on device (" in err
