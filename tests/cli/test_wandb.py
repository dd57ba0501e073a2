"""Runs with W&B's logger, the real one, which writes to the disk instead of its server."""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command_line import BASE, Project, quiet_commands
from helpers.waiting import wait_for
from helpers.wandb_files import records
from lightning.pytorch.loggers import WandbLogger

from lrl import ConfigError

pytestmark = quiet_commands

LOGGER = "lightning.pytorch.loggers.WandbLogger"
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
SYNCHRONOUS = {"num_actors": 0, "envs_per_actor": 2}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`lrl fit` in synchronous mode with W&B offline, whose own process ends with the test."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    settings: dict[str, Any] = yaml.safe_load(BASE)
    settings["trainer"] |= {"enable_progress_bar": False}
    settings["data"]["actors"] = SYNCHRONOUS
    project = Project(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(settings))
    yield functools.partial(project.call, monkeypatch, capsys, "fit", "--config", "base.yaml")
    end_process()


def end_process() -> None:
    """Do what W&B does when the process of a command ends: its file is complete from then on."""
    import wandb

    wandb.finish()
    wandb.teardown()


def of_kind(folder: Path, kind: str) -> list[Any]:
    return [getattr(r, kind) for r in records(folder) if r.WhichOneof("record_type") == kind]


def test_one_line_gives_name_settings_metrics_and_files(command, tmp_path):
    code, _, err = command("--trainer.logger", LOGGER, "--trainer.logger.log_model", "true")
    assert code == 0, err
    end_process()
    (run,) = of_kind(tmp_path, "run")
    assert (run.display_name, run.project) == ("small/version_0", "lightning_logs")
    settings = {
        item.key: item.value_json
        for change in of_kind(tmp_path, "config")
        for item in change.update
    }
    assert settings["data.env.id"] == '"lrl/Identity-v0"'
    assert settings["data.rate.samples_per_insert"] == "4.0"
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item}
        for row in of_kind(tmp_path, "history")
    ]
    steps = [row["trainer/global_step"] for row in rows if "train/loss" in row]
    assert steps == [10, 20, 30, 40]
    assert [row["trainer/global_step"] for row in rows if "eval/return_mean" in row] == [20, 40]
    (artifact,) = of_kind(tmp_path, "artifact")
    assert (artifact.name, artifact.type) == (f"files-{run.run_id}", "run-files")
    files = {entry.path for entry in artifact.manifest.contents}
    assert files == {"best.ckpt", "config.yaml", "summary.json"}
    assert [end.exit_code for end in of_kind(tmp_path, "exit")] == [0]


def test_a_run_goes_on_under_its_id_and_keeps_its_name(command, tmp_path):
    code, _, err = command("--trainer.logger", LOGGER, "--trainer.logger.id", "first", "--name=b")
    assert code == 0, err
    end_process()
    (run,) = of_kind(tmp_path, "run")
    assert (run.run_id, run.display_name) == ("first", "")
    (artifact,) = of_kind(tmp_path, "artifact")
    assert {entry.path for entry in artifact.manifest.contents} == {"config.yaml", "summary.json"}


def test_beside_a_logger_with_a_folder_a_run_is_named_after_it(command, monkeypatch):
    names = []

    def refuse(logger: Any) -> None:
        if isinstance(logger, WandbLogger):
            names.append(vars(logger)["_wandb_init"]["name"])
            raise ConfigError("seen enough")

    monkeypatch.setattr("lrl.cli.main._open", refuse)
    folder = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "mine"}}
    loggers = [folder, {"class_path": LOGGER}]
    code, _, err = command("--trainer.logger", json.dumps(loggers))
    assert (code, err) == (2, "lrl: error: seen enough\n")
    assert names == ["mine/version_0"]


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_there_too(tmp_path, monkeypatch):
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    project = Project(tmp_path)
    process = project.start(
        "fit", "--config", "base.yaml", "--trainer.logger", LOGGER,
        "--trainer.max_steps", "1000000", "--trainer.enable_progress_bar", "false",
    )  # fmt: skip
    try:
        metrics = project.runs / "version_0/metrics.csv"
        wait_for(metrics.exists, "the first row of metrics", 120.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130, err + out
    assert [end.exit_code for end in of_kind(tmp_path, "exit")] == [130]
    (artifact,) = of_kind(tmp_path, "artifact")
    assert {entry.path for entry in artifact.manifest.contents} == {"config.yaml", "summary.json"}
    summary = json.loads((project.runs / "version_0/summary.json").read_text())
    assert summary["outcome"] == "ended by KeyboardInterrupt"
