"""docs/loggers.md: its loggers can be made, and lrl takes its commands and what a sweep calls."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command_line import Project, quiet_commands

pytestmark = quiet_commands
TEXT = (Path(__file__).parents[2] / "docs/loggers.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
LINES = [block["trainer"]["logger"] for block in BLOCKS if "trainer" in block]
(SWEEP,) = (block for block in BLOCKS if "program" in block)


@pytest.mark.parametrize("logger", LINES, ids=["wandb", "mlflow"])
def test_each_line_names_a_logger_and_its_settings(logger: dict[str, Any]):
    module, _, name = logger["class_path"].rpartition(".")
    known = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    assert logger["init_args"].keys() <= known.keys()


def test_what_a_sweep_calls_is_taken(tmp_path, monkeypatch, capsys):
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    values = {
        name: {"value": choice.get("min", choice.get("values", [0])[0])}
        for name, choice in SWEEP["parameters"].items()
    }
    options = create_sweep_command_args({"args": values})
    program, *words = create_sweep_command(SWEEP["command"])
    assert (program, words.pop()) == (SWEEP["program"], "${args}")
    project = Project(tmp_path)
    arguments = [*words, *options["args"], "--print_config"]
    code, out, err = project.call(monkeypatch, capsys, *arguments)
    assert code in (None, 0), err
    taken = yaml.safe_load(out)
    assert taken["seed_everything"] == 1000
    assert taken["data"]["replay"]["n_step"] == 1
    assert taken["model"]["optimizer"]["init_args"]["lr"] == 0.0001
    assert SWEEP["metric"]["name"] == taken["actor_learner"]["monitor"]


def test_the_command_that_goes_on_under_an_id_is_taken(tmp_path, monkeypatch, capsys):
    (line,) = re.findall(r"```bash\n(lrl fit .*?)\n```", TEXT)
    words = shlex.split(line)[1:]
    file = tmp_path / words[words.index("--config") + 1]
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump({"name": "pong", "trainer": {"logger": LINES[0]}}))
    code, out, err = Project(tmp_path).call(monkeypatch, capsys, *words, "--print_config")
    assert code in (None, 0), err
    given = yaml.safe_load(out)["trainer"]["logger"]["init_args"]
    assert (given["id"], given["resume"], given["project"]) == ("ID", "must", "pong")
