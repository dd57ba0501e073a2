"""Where a run's files are, whatever `trainer.logger` is."""

from __future__ import annotations

import pytest
import yaml
from helpers.command_line import BASE, Project, quiet_commands
from lightning_utilities.core.imports import RequirementCache

pytestmark = quiet_commands

FILES = {"config.yaml", "summary.json", "checkpoints"}


@pytest.mark.parametrize(
    ("logger", "more"), [("false", set()), ("true", {"metrics.csv", "hparams.yaml"})]
)
def test_a_run_has_a_folder_of_its_own(tmp_path, monkeypatch, capsys, logger: str, more: set[str]):
    project = Project(tmp_path)
    settings = yaml.safe_load(BASE)
    settings["data"]["actors"] = {"num_actors": 0, "envs_per_actor": 2}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(settings))
    before = {path.name for path in tmp_path.iterdir()}
    arguments = ["fit", "--config", "base.yaml", "--trainer.enable_progress_bar", "false"]
    project.runs.joinpath("version_0").mkdir(parents=True)  # of another run
    code, out, err = project.call(monkeypatch, capsys, *arguments, "--trainer.logger", logger)
    assert code == 0, err
    assert "runs/small/version_1/config.yaml" in out
    left = {path.name for path in (project.runs / "version_1").iterdir()}
    assert {name for name in left if not name.startswith("events")} == FILES | more
    assert {path.name for path in tmp_path.iterdir()} == before | {"runs"}
    assert not list((project.runs / "version_0").iterdir())


@pytest.mark.parametrize(("extra", "name"), [("wandb", "WandbLogger"), ("mlflow", "MLFlowLogger")])
def test_a_logger_whose_package_is_missing_names_the_extra(
    tmp_path, monkeypatch, capsys, extra: str, name: str
):
    module = f"lightning.pytorch.loggers.{extra}"
    missing = RequirementCache(f"{extra}>=99")
    monkeypatch.setattr(f"{module}._{extra.upper()}_AVAILABLE", missing)
    arguments = ["fit", "--config", "base.yaml", "--trainer.logger", f"{module}.{name}"]
    code, _, err = Project(tmp_path).call(monkeypatch, capsys, *arguments)
    assert code == 2
    sentence = f"trainer.logger: {extra} is not installed: pip install 'lrl[{extra}]'"
    assert err == f"lrl: error: {sentence}\n"
