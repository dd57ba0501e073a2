"""The command line, from the outside: what it writes, prints and returns."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import kill_group, process_group
from helpers.waiting import wait_for
from lightning.pytorch.loggers.logger import DummyLogger

from benchmark.chaos.checkpoints import some_checkpoint
from lrl import DQN
from lrl.checkpoints.files import write_checkpoint
from lrl.cli.main import SaveConfig, resolve_checkpoint, versions
from lrl.types import ConfigError

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def fitted(project):
    """The first run, which became version_0: its exit code and what it printed."""
    configs = ("--config", "base.yaml", "--config", "overlay.yaml")
    return SimpleNamespace(
        folder=project.runs / "version_0",
        **dict(zip(("code", "out", "err"), project.run("fit", *configs), strict=True)),
    )


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys)


def test_fit_ends_well_and_says_what_to_do_next(fitted):
    assert fitted.code == 0, fitted.err
    assert "Traceback" not in fitted.err
    assert "Warning" not in fitted.err
    assert "best evaluation return: " in fitted.out
    assert f"{Path('runs/small/version_0')}/checkpoints/best.ckpt" in fitted.out
    assert "lrl test --config runs/small/version_0/config.yaml --ckpt_path " in fitted.out
    assert "learning 40/40 [100%" in fitted.err
    assert "restarts" in fitted.err  # the table of actors
    saved = yaml.safe_load((fitted.folder / "config.yaml").read_text())
    assert saved["trainer"]["logger"] is None  # so that going on from it makes a version of its own
    assert saved["ckpt_path"] is None


def test_fit_leaves_everything_in_the_folder_of_the_run(fitted):
    files = {str(f.relative_to(fitted.folder)) for f in fitted.folder.rglob("*") if f.is_file()}
    events = {name for name in files if name.startswith("events.out.tfevents")}
    assert len(events) == 1
    assert files - events == {
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "hparams.yaml",
        "metrics.csv",
        "summary.json",
    }
    with (fitted.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [10, 20, 30, 40]
    assert [int(row["step"]) for row in rows if row["eval/return_mean"]] == [20, 40]
    summary = json.loads((fitted.folder / "summary.json").read_text())
    assert (summary["outcome"], summary["learner_steps"]) == ("finished", 40)


def test_the_saved_configuration_is_complete_and_loggers_get_it_flattened(fitted):
    config = yaml.safe_load((fitted.folder / "config.yaml").read_text())
    assert config["data"]["replay"] == {
        "capacity": 2000, "batch_size": 12, "n_step": 5, "gamma": 0.995, "device": "cpu",
        "index": "host", "memory_map": None, "sequences": None,
        "sampler": {"class_path": "lrl.replay.UniformSampler"},
    }  # fmt: skip
    assert config["model"]["bootstrap"]["class_path"] == "lrl.learner.DoubleBootstrap"
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.1
    assert config["seed_everything"] == 0
    flat = yaml.safe_load((fitted.folder / "hparams.yaml").read_text())
    assert flat["data.replay.batch_size"] == 12
    assert flat["data.env.id"] == "lrl/Identity-v0"
    assert flat["actor_learner.eval_period_learner_steps"] == 20
    assert not any(isinstance(value, (dict, list)) for value in flat.values())


def test_the_checkpoints_load_without_pickle_and_without_arguments(fitted):
    for name in ("best", "last"):
        path = fitted.folder / "checkpoints" / f"{name}.ckpt"
        assert torch.load(path, weights_only=True)["global_step"] in (20, 40)
        module = DQN.load_from_checkpoint(path)
        assert module.optimizer_recipe.init_args["lr"] == 0.1
        assert module(torch.eye(4)).shape == (4, 4)


def test_going_on_from_a_run_that_is_done_says_so_and_leaves_nothing(command, fitted):
    code, out, _ = command("fit", "--config", "base.yaml", "--ckpt_path", "last")
    assert code == 0
    assert "nothing to train: trainer.max_steps 40 was reached already" in out
    assert "next:" not in out
    assert not (fitted.folder.parent / "version_1").exists()


def test_an_evaluation_of_nothing_is_refused(command, fitted):
    config = str(fitted.folder / "config.yaml")
    nothing = ("--trainer.limit_test_batches", "0")
    code, _, err = command("test", "--config", config, "--ckpt_path", "best", *nothing)
    assert code == 2
    assert "trainer.limit_test_batches is 0, so that nothing is played: leave it out" in err


@pytest.mark.parametrize(("subcommand", "episodes"), [("validate", 3), ("test", 6)])
def test_best_is_evaluated_from_the_configuration_of_its_run(command, fitted, subcommand, episodes):
    files = {path: path.read_bytes() for path in fitted.folder.rglob("*") if path.is_file()}
    code, out, err = command(
        subcommand, "--config", str(fitted.folder / "config.yaml"), "--ckpt_path", "best"
    )
    assert code == 0, err
    *details, last_line = out.strip().splitlines()[-4:]
    assert details[0].endswith("version_0/checkpoints/best.ckpt")
    assert details[1] == "protocol gymnasium, epsilon 0"
    assert re.fullmatch(r"median .*, IQM .* \[.*\], length \d+\.\d", details[2])
    assert last_line.startswith("return ")
    assert last_line.endswith(f"over {episodes} episodes")
    mean, _, deviation = last_line.split()[1:4]
    assert 0 <= float(mean) <= 5
    assert float(deviation) >= 0
    if subcommand == "validate":
        summary = json.loads((fitted.folder / "summary.json").read_text())
        assert float(mean) == pytest.approx(summary["best_return_mean"], abs=0.05)
    assert len(versions(Path("runs"), "small")) == 1  # evaluating makes no new version
    assert {p: p.read_bytes() for p in fitted.folder.rglob("*") if p.is_file()} == files
    assert not Path("config.yaml").exists()


@pytest.mark.parametrize("which", ["last", "runs/small/version_0/checkpoints/last.ckpt"])
def test_the_last_checkpoint_is_tested_as_lrl_evaluate_does(command, fitted, which):
    tested = ("--config", str(fitted.folder / "config.yaml"), "--ckpt_path", which)
    code, out, err = command("test", *tested)
    assert code == 0, err
    mean, _, deviation, *words = out.strip().splitlines()[-1].split()[1:]
    assert words == ["over", "6", "episodes"]
    code, out, err = command("evaluate", "--ckpt_path", which, "--name", "small", "--episodes", "6")
    assert code == 0, err
    assert out.splitlines()[-1].split()[:3] == [mean, "±", deviation]


def test_episodes_that_are_cut_off_are_counted(command, fitted):
    cap = ("--data.evaluation.max_frames_per_episode", "3")
    code, out, err = command("test", "--config", "base.yaml", *cap)
    assert code == 0, err
    assert out.strip().endswith("over 6 episodes, 6 of them cut off by the cap on frames")


def test_a_checkpoint_of_other_settings_is_scored_with_a_warning(command, fitted, caplog):
    best = str(fitted.folder / "checkpoints/best.ckpt")
    tested = ("test", "--config", "base.yaml", "--ckpt_path", best)
    code, _, err = command(*tested)
    assert code == 0, err
    assert "other settings" not in caplog.text
    code, _, err = command(*tested, "--data.evaluation.epsilon", "0.5")
    assert code == 0, err
    assert "scored under other settings: evaluation.epsilon 0.5 instead of 0.0" in caplog.text


def end_by_signal(
    project: Project, number: int, name: str, version: int, *arguments: str
) -> dict[str, Any]:
    """End an endless run after its first metrics; return its code, output and last checkpoint."""
    endless = ("--config", "base.yaml", "--trainer.max_steps", "1000000")
    process = project.start("fit", *endless, "--name", name, *arguments)
    folder = project.folder / "runs" / name / f"version_{version}"
    try:
        wait_for((folder / "metrics.csv").exists, "the first metrics")
        if number != signal.SIGTERM:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=200)
        wait_for(lambda: not process_group(process.pid), "all processes gone", seconds=5)
    finally:
        kill_group(process.pid)
    assert "Traceback" not in err
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["learner_steps"] == last["global_step"]
    with (folder / "metrics.csv").open() as file:
        first_step = int(next(csv.DictReader(file))["step"])
    return {
        "code": process.returncode,
        "said": err.strip().splitlines()[-1],
        "outcome": summary["outcome"],
        "first_step": first_step,
    }


def test_ctrl_c_saves_last_and_last_is_resumed(project, fitted):
    ended = end_by_signal(project, signal.SIGINT, "small", 1, "--ckpt_path", "last")
    assert ended["code"] == 130
    assert ended["said"].startswith("lrl: stopped by Ctrl-C; go on with: lrl fit --config ")
    assert ended["outcome"] == "ended by KeyboardInterrupt"
    assert ended["first_step"] == 50  # the first run made 40 learner steps
    runs = project.folder / "runs"
    assert [path.name for path in versions(runs, "small")] == ["version_0", "version_1"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup_save_last(project, number, code):
    ended = end_by_signal(project, number, number.name, 0)
    assert ended["code"] == code
    assert ended["said"].startswith(f"lrl: stopped by {number.name}; go on with: lrl fit ")
    assert ended["outcome"] == "ended by SIGTERMException"


@pytest.mark.slow
def test_an_installed_command_exits_with_the_same_code(project):
    code, out, err = project.run("fit", "--data.replay.capcity", "5")
    assert code == 2
    assert out == ""
    (line,) = (line for line in err.splitlines() if "capcity" in line)
    meant = "did you mean 'data.replay.capacity'?"
    assert line == f"lrl: error: unrecognized arguments: --data.replay.capcity 5: {meant}"


def test_checkpoints_are_resolved_from_the_newest_run_that_has_one(tmp_path, caplog):
    for number, names in ((2, ["best", "last"]), (10, ["last"]), (11, [])):
        folder = tmp_path / "run" / f"version_{number}" / "checkpoints"
        folder.mkdir(parents=True)
        for name in names:
            write_checkpoint(some_checkpoint(number, 64), folder / f"{name}.ckpt")
    (tmp_path / "run" / "version_old").mkdir()
    assert resolve_checkpoint("best", tmp_path, "run") == str(
        tmp_path / "run/version_2/checkpoints/best.ckpt"
    )
    last = str(tmp_path / "run/version_10/checkpoints/last.ckpt")
    assert "version_11 has none" in caplog.messages[-1]
    assert "version_2/checkpoints/best.ckpt is taken" in caplog.messages[-1]
    assert resolve_checkpoint("last", tmp_path, "run") == last
    newest = tmp_path / "run/version_11/checkpoints/best.ckpt"
    write_checkpoint(some_checkpoint(11, 64), newest)
    caplog.clear()
    assert "version_11" in str(resolve_checkpoint("best", tmp_path, "run"))
    assert not caplog.messages
    assert resolve_checkpoint(last, tmp_path, "other") == last
    assert resolve_checkpoint(None, tmp_path, "run") is None
    with pytest.raises(ConfigError, match=r"no run in .*other has checkpoints/last\.ckpt"):
        resolve_checkpoint("last", tmp_path, "other")


def test_any_logger_gets_the_flattened_configuration_and_may_fail(caplog):
    taken: dict[str, Any] = {}

    class Failing(DummyLogger):
        def log_hyperparams(self, *args: Any, **more: Any) -> None:
            raise ConnectionError("the server does not answer")

    class Taking(DummyLogger):
        def log_hyperparams(self, *args: Any, **more: Any) -> None:
            taken.update(*args)

    config: Any = SimpleNamespace(as_dict=lambda: {"data": {"replay": {"n_step": 3}}, "list": [1]})
    save = SaveConfig(parser=None, config=config)  # pyright: ignore[reportArgumentType]
    trainer: Any = SimpleNamespace(loggers=[Failing(), Taking()])
    save.save_config(trainer, None, "fit")  # pyright: ignore[reportArgumentType]
    assert taken == {"data.replay.n_step": 3, "list": "[1]"}
    assert "the server does not answer" in caplog.text


BROKEN_NETWORK = [
    "--data.inference.num_servers=1",
    "--model.encoder=helpers.odd_networks.BreaksInServers",
    "--model.encoder.hidden_sizes=[8]",
    "--model.encoder.times=1000",
]

BROKEN_EVALUATION = [
    "--data.env.id=helpers.odd_envs:Faulty-v0",
    "--data.env.kwargs={evaluator: true, after: 0}",
    "--actor_learner.evaluation=background",
    "--actor_learner.eval_period_learner_steps=10",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "process", "message"),
    [
        (["--data.env.id=helpers.odd_envs:Faulty-v0"], "lrl: error: actor ", "the ball is lost"),
        (BROKEN_NETWORK, "lrl: error: inference server 0 ", "the weights are lost"),
        (BROKEN_EVALUATION, "lrl: error: evaluator ", "the ball is lost"),
    ],
    ids=["actor", "server", "evaluator"],
)
def test_a_process_that_fails_for_good_ends_with_a_sentence_and_1(
    command, project, settings, process, message
):
    where = ["--name=failing", "--data.env.kwargs={}"]
    code, _, err = command(
        "fit", "--config=base.yaml", *where, *settings, "--data.actors.on_failure=fail"
    )
    assert code == 1, err
    error = err[err.index("lrl: error: ") :]
    assert process in error
    assert message in error
    assert "Traceback" not in error
    (path,) = re.findall(r"the traceback is in (\S+), and --debug shows it", error)
    assert (project.folder / path).read_text().count("Traceback (most recent call last)") == 1


@pytest.mark.slow
def test_an_actor_that_fails_before_its_first_step_leaves_no_folder(command, project):
    breaks = ("--data.env.id", "helpers.odd_envs:Faulty-v0", "--data.env.kwargs", "{where: init}")
    code, _, err = command("fit", "--config", "base.yaml", "--name", "failed", *breaks)
    assert (code, "failed before its first step" in err) == (1, True), err
    assert list(project.folder.glob("runs/failed/*")) == []
