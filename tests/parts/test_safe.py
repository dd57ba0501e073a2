"""`lrl --safe`: nothing but a few packages can be named, in whatever way one tries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jsonargparse._common
import pytest
import torch
import yaml
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import make_run, quiet

from lrl import ActorLearnerCallback
from lrl.envs import EnvConfig, WrapperConfig, make_spec
from lrl.learner.agent import load_agent
from lrl.parts import safety
from lrl.parts.recipe import Recipe
from lrl.types import ConfigError

pytestmark = [*quiet, *quiet_commands]

EVIL = """
from pathlib import Path
Path(__file__).with_name("touched").touch()

import gymnasium
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lrl.networks import MLPEncoder

class Encoder(MLPEncoder):
    pass

class Wrapper(gymnasium.Wrapper):
    pass

class Call(Callback):
    pass

class Logger(CSVLogger):
    pass

def step(*_):
    return 1.0
"""
DEEP = "lrl.parts.recipe.importlib.import_module"
"""Leads out of an allowed package, to a function that imports what it is given."""


@pytest.fixture(autouse=True)
def restored(monkeypatch) -> Iterator[None]:
    """Give back what `--safe` changes for good in a process."""
    monkeypatch.setenv("LRL_SAFE", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(jsonargparse._common.parsing_settings)
    yield
    jsonargparse._common.parsing_settings.clear()
    jsonargparse._common.parsing_settings.update(before)


@pytest.fixture
def project(tmp_path) -> Project:
    """Beside its configurations lies a module that leaves a trace when it is imported."""
    library(tmp_path).mkdir()
    (library(tmp_path) / "evil.py").write_text(EVIL)
    return Project(tmp_path)


def library(folder: Path) -> Path:
    """A folder where modules are found, and not the current one, which `--safe` leaves out."""
    return folder / "library"


@pytest.fixture
def refused(project, monkeypatch, capsys) -> Callable[..., str]:
    """Run a command that must be refused; return the sentence."""

    def call(*arguments: str) -> str:
        monkeypatch.syspath_prepend(library(project.folder))
        modules = set(sys.modules)
        code, _, err = project.call(monkeypatch, capsys, "--safe", *arguments)
        assert code == 2, err
        assert "Traceback" not in err
        assert not (library(project.folder) / "touched").exists()
        assert "evil" not in set(sys.modules) - modules
        (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
        return line

    return call


WAYS: dict[str, tuple[str, Any, str]] = {
    # what: (setting, value, what the sentence names)
    "class": ("model.encoder", "evil.Encoder", "evil.Encoder"),
    "class with arguments": (
        "model.encoder", {"class_path": "evil.Encoder", "init_args": {}}, "evil.Encoder"
    ),
    "function": ("model.encoder", "os.system", "os.system"),
    "function of an allowed package's import": ("model.encoder", DEEP, DEEP),
    "module of an allowed package's import": ("model.head", "lrl.cli.main.sys.exit", "exit"),
    "head": ("model.head", {"class_path": "evil.Encoder"}, "evil.Encoder"),
    "optimizer": ("model.optimizer", {"class_path": "evil.Encoder"}, "evil.Encoder"),
    "optimizer of torch, not of torch.optim": (
        "model.optimizer", {"class_path": "torch.nn.Linear"}, "torch.nn.Linear"
    ),
    "scheduler": ("model.lr_scheduler", {"class_path": "evil.Encoder"}, "evil.Encoder"),
    "function within a scheduler": (
        "model.lr_scheduler",
        {
            "class_path": "torch.optim.lr_scheduler.LambdaLR",
            "init_args": {"lr_lambda": "evil.step"},
        },
        "evil.step",
    ),
    "exploration": ("data.exploration", {"class_path": "evil.Encoder"}, "evil.Encoder"),
    "schedule within an exploration": (
        "data.exploration",
        {
            "class_path": "lrl.actors.exploration.EpsilonGreedy",
            "init_args": {"schedule": {"class_path": "evil.Encoder"}},
        },
        "evil.Encoder",
    ),
    "sampler": ("data.replay.sampler", {"class_path": "evil.Encoder"}, "evil.Encoder"),
    "callback": ("trainer.callbacks", [{"class_path": "evil.Call"}], "evil.Call"),
    "callback that calls": (
        "trainer.callbacks",
        [{
            "class_path": "lightning.pytorch.callbacks.LambdaCallback",
            "init_args": {"on_fit_start": "lightning.pytorch.cli.instantiate_class"},
        }],
        "LambdaCallback",
    ),
    "logger": (
        "trainer.logger", {"class_path": "evil.Logger", "init_args": {"save_dir": "x"}}, "evil.Log"
    ),
    "plugin": ("trainer.plugins", [{"class_path": "evil.Call"}], "evil.Call"),
    "profiler": ("trainer.profiler", {"class_path": "evil.Call"}, "evil.Call"),
    "strategy": ("trainer.strategy", {"class_path": "evil.Call"}, "evil.Call"),
    "accelerator": ("trainer.accelerator", {"class_path": "evil.Call"}, "evil.Call"),
    "module of an environment": ("data.env.id", "evil:Some-v0", "evil:Some-v0"),
    "module of an Atari game": (
        "data.env", {"id": "evil:ALE/Pong-v5", "kwargs": {}}, "evil:ALE/Pong-v5"
    ),
    "wrapper": ("data.env.wrappers", [{"path": "evil.Wrapper"}], "evil.Wrapper"),
    "wrapper of an allowed package's import": (
        "data.env.wrappers", [{"path": "lrl.envs.gym.gymnasium.Wrapper"}], "gymnasium.Wrapper"
    ),
    "folder that is an address": ("runs", "reference::evil.json", "reference::evil.json"),
    "address of a logger": (
        "trainer.logger",
        {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "s3://x"}},
        "s3://x",
    ),
}  # fmt: skip

SAMPLE = (  # those that also belong to the fast tests
    "class", "function of an allowed package's import", "callback that calls", "wrapper",
    "folder that is an address",
)  # fmt: skip


def ways() -> list[Any]:
    return [pytest.param(w, marks=() if w in SAMPLE else pytest.mark.slow) for w in WAYS]


@pytest.mark.parametrize("way", ways())
def test_no_way_of_naming_code_in_a_file_gets_through(project, refused, way):
    setting, value, named = WAYS[way]
    config: Any = value
    for key in reversed(setting.split(".")):
        config = {key: config}
    (project.folder / "evil.yaml").write_text(yaml.safe_dump(config))
    line = refused("fit", "--config", "base.yaml", "--config", "evil.yaml")
    assert named in line
    last = setting.rpartition(".")[2]
    assert last in line


@pytest.mark.slow
@pytest.mark.parametrize("way", ["class", "callback", "module of an environment", "function"])
@pytest.mark.parametrize("command", ["fit", "validate", "test"])
def test_the_command_line_is_no_other_way(refused, command, way):
    setting, value, named = WAYS[way]
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
    assert named in refused(command, "--config", "base.yaml", f"--{setting}={text.strip()}")


@pytest.mark.parametrize("command", ["evaluate", "play"])
def test_modules_are_not_imported(refused, project, command):
    line = refused(command, "--ckpt_path", "base.yaml", "--modules", "evil")
    assert "--modules names 'evil', but --safe allows" in line


def test_the_flag_may_stand_behind_the_command(project, monkeypatch, capsys):
    arguments = ("fit", "--config", "base.yaml", "--model.encoder", "os.system", "--safe")
    code, _, err = project.call(monkeypatch, capsys, *arguments)
    assert (code, "--safe allows" in err) == (2, True)


def test_what_is_allowed_works(project, monkeypatch, capsys):
    more = [
        "--trainer.callbacks+=lightning.pytorch.callbacks.LearningRateMonitor",
        "--model.optimizer", "torch.optim.RMSprop",
        "--model.head", "lrl.networks.QuantileHead",
        "--data.env.id", "CartPole-v1", "--data.env.kwargs", "{}",
        "--data.env.wrappers", "[{path: gymnasium.wrappers.FlattenObservation}]",
        # A fork server would hand LRL_SAFE on to the actors of all tests after this one.
        "--data.actors.num_actors", "1", "--data.actors.start_method", "spawn",
        "--trainer.max_steps", "20", "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip
    code, _, err = project.call(
        monkeypatch, capsys, "--safe", "fit", "--config", "base.yaml", *more
    )
    assert code in (None, 0), err
    assert os.environ["LRL_SAFE"] == "1"  # which actors and ranks inherit
    paths = ("--name", "small", "--ckpt_path", "last")
    code, out, err = project.call(
        monkeypatch, capsys, "--safe", "evaluate", *paths, "--episodes", "2"
    )
    assert code in (None, 0), err
    assert "last.ckpt" in out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"), ActorLearnerCallback(5, 0, 5), max_steps=5)
    return run.fit().checkpoint("last")


def named_encoder(content: dict[str, Any], path: str) -> None:
    content["hyper_parameters"]["encoder"]["class_path"] = path


def named_environment(content: dict[str, Any], path: str) -> None:
    content["lrl"]["environment"]["id"] = f"{path}:Some-v0"


def named_wrapper(content: dict[str, Any], path: str) -> None:
    content["lrl"]["environment"]["wrappers"] = [{"path": f"{path}.Wrapper", "kwargs": {}}]


def named_factory(content: dict[str, Any], path: str) -> None:
    content["lrl"]["environment"]["factory"] = f"{path}.make"


@pytest.mark.parametrize("name", [named_encoder, named_environment, named_wrapper, named_factory])
@pytest.mark.parametrize("path", ["evil", "torch.utils.data", "os.path", "helpers.odd_envs"])
def test_a_checkpoint_names_no_code_either(tmp_path, project, monkeypatch, checkpoint, name, path):
    monkeypatch.syspath_prepend(library(project.folder))
    monkeypatch.setenv("LRL_SAFE", "1")
    content = torch.load(checkpoint, weights_only=True)
    name(content, path)
    torch.save(content, tmp_path / "changed.ckpt")
    with pytest.raises(ConfigError, match=path):
        make_spec(load_agent(tmp_path / "changed.ckpt").env)
    assert not (library(project.folder) / "touched").exists()


def test_registered_environments_of_others_are_refused_too(monkeypatch):
    gymnasium.register("Foreign-v0", entry_point="evil:Encoder")
    gymnasium.register("ForeignVector-v0", vector_entry_point="evil:Encoder")
    monkeypatch.setenv("LRL_SAFE", "1")
    try:
        for env_id in ("Foreign-v0", "ForeignVector-v0"):
            with pytest.raises(ConfigError, match=f"env.id names '{env_id}', but --safe allows"):
                make_spec(EnvConfig(env_id))
    finally:
        del gymnasium.registry["Foreign-v0"], gymnasium.registry["ForeignVector-v0"]


@pytest.mark.parametrize("path", ["lrl.envs.toy.Catch", "gymnasium.make", "helpers.factories.fail"])
def test_no_factory_is_allowed_whosever_it_is(monkeypatch, path):
    monkeypatch.setenv("LRL_SAFE", "1")
    with pytest.raises(ConfigError, match=f"env.factory names '{path}', but --safe allows"):
        make_spec(EnvConfig(factory=path))


def test_parts_are_checked_where_they_are_built_too(monkeypatch):
    recipe = Recipe("evil.Encoder")
    monkeypatch.setenv("LRL_SAFE", "1")
    with pytest.raises(ConfigError, match=r"names 'evil\.Encoder', but --safe allows"):
        recipe()


@pytest.mark.parametrize("path", ["lrlx.Thing", "lrl_evil.Thing", "torch.optimx.Adam", "torch", ""])
def test_names_that_only_begin_alike_are_others(monkeypatch, path):
    monkeypatch.setenv("LRL_SAFE", "1")
    with pytest.raises(ConfigError, match="--safe allows"):
        safety.check_path(path, "model.encoder")


@pytest.mark.parametrize("path", ["lrl.networks.MLPEncoder", "lightning.X", "torch.optim.Adam"])
def test_names_that_are_allowed_pass(monkeypatch, path):
    monkeypatch.setenv("LRL_SAFE", "1")
    safety.check_path(path, "model.encoder")


def test_without_the_flag_nothing_is_restricted(project, monkeypatch):
    monkeypatch.syspath_prepend(library(project.folder))
    config = EnvConfig(wrappers=[WrapperConfig("evil.Wrapper")])
    assert make_spec(config).num_actions == 2
    assert (library(project.folder) / "touched").exists()
    del sys.modules["evil"]
