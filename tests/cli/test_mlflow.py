"""Runs with MLflow's logger, the real one, in a store of files."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command_line import BASE, Project, quiet_commands

pytestmark = [
    *quiet_commands,
    pytest.mark.filterwarnings("ignore:The filesystem tracking backend"),
]

LOGGER = {
    "class_path": "lightning.pytorch.loggers.MLFlowLogger",
    "init_args": {
        "experiment_name": "names of contexts",
        "run_name": "the first",
        "tags": {"asked by": "a test"},
        "log_model": "all",
    },
}
SNAPSHOTS = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {"every_n_train_steps": 20, "save_top_k": -1, "filename": "{step}"},
}


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"file:{tmp_path}/mlruns")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, client):
    """`lrl fit` with MLflow's logger alone, in synchronous mode."""
    project = Project(tmp_path)
    settings: dict[str, Any] = yaml.safe_load(BASE)
    uri = {"tracking_uri": f"file:{tmp_path}/mlruns"}
    settings["trainer"]["logger"] = {**LOGGER, "init_args": {**LOGGER["init_args"], **uri}}
    settings["trainer"] |= {"callbacks": [SNAPSHOTS], "enable_progress_bar": False}
    settings["data"]["actors"] = {"num_actors": 0, "envs_per_actor": 2}
    (tmp_path / "mlflow.yaml").write_text(yaml.safe_dump(settings))
    return functools.partial(project.call, monkeypatch, capsys, "fit", "--config", "mlflow.yaml")


def the_run(client: Any) -> Any:
    experiment = client.get_experiment_by_name("names of contexts")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def test_a_run_is_there_with_settings_metrics_and_artifacts(command, client, tmp_path):
    code, _, err = command()
    assert code == 0, err
    run = the_run(client)
    assert run.info.run_name == "the first"
    assert run.info.status == "FINISHED"
    assert run.data.tags["asked by"] == "a test"
    assert run.data.params["data.env.id"] == "lrl/Identity-v0"
    assert run.data.params["data.rate.samples_per_insert"] == "4.0"
    for metric, steps in (
        ("train/loss", [10, 20, 30, 40]),
        ("rollout/start_value_mean", [10, 20, 30, 40]),
        ("eval/return_mean", [20, 40]),
    ):
        assert [row.step for row in client.get_metric_history(run.info.run_id, metric)] == steps
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    own = {"best.ckpt", "config.yaml", "summary.json"}
    assert artifacts == {"step=20", "step=40", *own}
    # The run's own files are where they always are, so that the next run does not replace them.
    folder = tmp_path / "runs" / "small" / "version_0"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "best.ckpt", "last.ckpt", "step=20.ckpt", "step=40.ckpt",
    }  # fmt: skip
    kept = {"config.yaml", "metrics.csv", "summary.json"}
    assert kept <= {path.name for path in folder.iterdir()}


def test_a_server_that_fails_later_ends_nothing(command, client, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    log_batch = MlflowClient.log_batch
    asked: list[str] = []

    def fail_after_the_first_row(self: Any, run_id: str, **batch: Any) -> None:
        if batch.get("metrics"):
            asked.append(run_id)
            if len(asked) > 1:
                raise MlflowException("the server does not answer")
        log_batch(self, run_id, **batch)

    monkeypatch.setattr(MlflowClient, "log_batch", fail_after_the_first_row)
    code, out, err = command()
    assert code == 0, err
    assert "best evaluation return" in out
    assert "MLFlowLogger could not log: MlflowException: the server does not answer" in caplog.text
    assert len(asked) == 2  # it is left alone for a minute
    assert the_run(client).info.status == "FINISHED"


def test_a_server_that_is_not_there_is_said_before_anything_starts(command, tmp_path):
    code, _, err = command("--trainer.logger.init_args.tracking_uri", "http://127.0.0.1:9")
    assert code == 2
    assert "trainer.logger: MLFlowLogger cannot begin a run: " in err
    assert "Traceback" not in err
    assert not list(Path(tmp_path, "runs", "small").glob("version_*"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's use of SQLAlchemy
def test_a_run_is_named_after_its_folder_and_keeps_its_weights_unless_asked(command, tmp_path):
    from mlflow.tracking import MlflowClient

    settings = {"run_name": "null", "log_model": "false", "tracking_uri": "sqlite:///mlflow.db"}
    options = [f"--trainer.logger.init_args.{key}={value}" for key, value in settings.items()]
    code, _, err = command(*options)
    assert code == 0, err
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = the_run(client)
    assert run.info.run_name == "small/version_0"
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"config.yaml", "summary.json"}


@pytest.mark.parametrize(
    ("error", "status"), [("KeyboardInterrupt", "KILLED"), ("RuntimeError", "FAILED")]
)
def test_how_a_run_ended_is_known_there(command, client, tmp_path, monkeypatch, error, status):
    (tmp_path / f"ends_{error}.py").write_text(
        f"""import lightning as L
class End(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 30:
            raise {error}
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.suppress(RuntimeError):
        command("--trainer.callbacks+", f"ends_{error}.End")
    run = the_run(client)
    assert run.info.status == status
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert artifacts >= {"best.ckpt", "config.yaml", "summary.json"}
