"""Commands beside LightningCLI's: their arguments, exit codes, and how they are found."""

from __future__ import annotations

import functools
import inspect
import json
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import trained
from helpers.command_line import Project, quiet_commands

from benchmark.chaos.checkpoints import some_checkpoint
from lrl.__main__ import main
from lrl.checkpoints.files import write_checkpoint
from lrl.cli import commands
from lrl.cli.command_list import COMMANDS, own_commands
from lrl.cli.commands import read_arguments
from lrl.cli.main import LrlCLI
from lrl.processes.ending import ending
from lrl.processes.interrupt import interrupt
from lrl.report import evaluate as evaluating
from lrl.types import ConfigError

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def checkpoint(project):
    """The last checkpoint of the run named `run`, from the project's folder."""
    return trained(project.folder / "runs").relative_to(project.folder)


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys)


def test_evaluate_takes_paths_and_names(command, checkpoint, project):
    other = str(checkpoint).replace("last", "other")
    (project.folder / other).write_bytes((project.folder / checkpoint).read_bytes())
    code, out, err = command(
        *("evaluate", "--ckpt_path", "last", other, "--name", "run"),
        *("--episodes", "4", "--out", "scores/run"),
    )
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == [str(checkpoint), other]
    written = json.loads((project.folder / "scores/run.json").read_text())
    assert [score["episodes"] for score in written["scores"]] == [4, 4]
    assert written["scores"][0]["stamp"]["environment"]["id"] == "lrl/Identity-v0"


MISTAKES = {
    "no checkpoint": ([], "ckpt_path"),
    "no such file": (["--ckpt_path", "nowhere.ckpt"], "--ckpt_path nowhere.ckpt: there is no such"),
    "no such run": (
        ["--ckpt_path", "best", "--name", "x"],
        "no run in runs/x has checkpoints/best",
    ),
    "wrong file": (["--ckpt_path", "base.yaml"], "checkpoint base.yaml is damaged, or no"),
    "unknown key": (["--ckpt_path", "CHECKPOINT", "--episods", "5"], "--episods"),
    "wrong type": (["--ckpt_path", "CHECKPOINT", "--episodes", "many"], "episodes"),
    "wrong value": (
        ["--ckpt_path", "CHECKPOINT", "--episodes", "0"],
        "episodes must be at least 1",
    ),
    "no such module": (
        ["--ckpt_path", "CHECKPOINT", "--modules", "nowhere"],
        "--modules nowhere: No module named 'nowhere'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_one_line(command, checkpoint, name):
    arguments, message = MISTAKES[name]
    code, out, err = command(
        "evaluate", *(str(checkpoint) if word == "CHECKPOINT" else word for word in arguments)
    )
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("lrl: error: ")
    assert message in line


def test_ctrl_c_is_130_and_a_sentence(command, checkpoint, monkeypatch, project):
    def stop(*arguments: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluating, "run_episodes", stop)
    code, _, err = command("evaluate", "--ckpt_path", str(checkpoint), "--out", "interrupted")
    assert (code, err) == (130, "lrl: stopped by Ctrl-C\n")
    assert not list(project.folder.glob("interrupted*"))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_has_its_code_and_a_sentence(command, checkpoint, monkeypatch, number, code):
    cleaned = []

    def play(*arguments: Any, **settings: Any) -> None:
        try:
            signal.raise_signal(number)
            interrupt.check()  # Ctrl-C waits for the end of an episode
        finally:
            cleaned.append(True)

    monkeypatch.setattr(evaluating, "run_episodes", play)
    ended, _, err = command("evaluate", "--ckpt_path", str(checkpoint))
    assert ended == code
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert err.splitlines()[-1] == f"lrl: stopped by {name}"
    assert cleaned


def test_own_parts_are_imported_when_their_module_is_named(command, checkpoint, monkeypatch):
    monkeypatch.delitem(sys.modules, "helpers.odd_networks", raising=False)
    modules = ("--modules", "helpers.odd_networks", "helpers.odd_envs")
    code, _, err = command("evaluate", "--ckpt_path", str(checkpoint), "--episodes", "1", *modules)
    assert code == 0, err
    assert "helpers.odd_networks" in sys.modules


@pytest.mark.parametrize("name", own_commands())
def test_every_command_is_a_function_that_explains_all_it_takes(name, command):
    function = getattr(import_module(own_commands()[name]), name)
    code, out, _ = command(name, "--help")
    assert code == 0
    assert out.startswith(f"usage: lrl {name} ")
    text = " ".join(out.split())
    assert " ".join(inspect.cleandoc(function.__doc__).splitlines()[0].split()) in text
    for parameter in inspect.signature(function).parameters:
        # An option, a word alone, or the one of a few words.
        starts = (f"  --{parameter} ", f"  {parameter.upper()} ", "  {bash,zsh,fish}")
        assert any(line.startswith(starts) for line in out.splitlines()), parameter
    documented = function.__doc__.partition("Args:")[2]
    assert all(
        f"{parameter}:" in documented for parameter in inspect.signature(function).parameters
    )


def test_variables_of_the_environment_are_arguments_of_every_command(monkeypatch, command):
    def watch(episodes: int = 3, loud: bool = False) -> None: ...

    monkeypatch.setenv("LRL_WATCH__EPISODES", "7")
    monkeypatch.setitem(COMMANDS, "watch", COMMANDS["bench"])
    assert read_arguments("watch", watch, ["--loud", "true"]) == {"episodes": 7, "loud": True}
    assert read_arguments("watch", watch, ["--episodes", "8"])["episodes"] == 8
    monkeypatch.setenv("LRL_WATCH__EPISODE", "7")
    near = "LRL_WATCH__EPISODE is no setting of lrl watch; did you mean LRL_WATCH__EPISODES"
    with pytest.raises(ConfigError, match=near):
        read_arguments("watch", watch, [])
    monkeypatch.setenv("LRL_EVAL__SEED", "1")
    code, _, err = command("bench")
    assert (code, err.count("\n")) == (2, 1)
    assert "the variable LRL_EVAL__SEED is of no command of lrl" in err


def test_one_checkpoint_or_many_is_what_the_function_says(tmp_path: Path):
    path = tmp_path / "a.ckpt"
    write_checkpoint(some_checkpoint(1, 64), path)

    def one(ckpt_path: str, loud: bool = False) -> None: ...

    def many(ckpt_path: list[str]) -> None: ...

    arguments = ["--ckpt_path", str(path)]
    assert read_arguments("one", one, [*arguments, "--loud", "true"]) == {
        "ckpt_path": str(path), "loud": True,
    }  # fmt: skip
    assert read_arguments("many", many, arguments) == {"ckpt_path": [str(path)]}


def test_the_home_folder_is_meant_where_the_shell_did_not_replace_it(monkeypatch):
    def watch(files: Sequence[str | Path], out: Path | None = None, name: str = "") -> None:
        """Watch.

        Args:
            files: Files.
            out: Another.
            name: A name.
        """

    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setitem(COMMANDS, "watch", COMMANDS["bench"])
    found = read_arguments("watch", watch, ["~/a", "b", "--out=~/c", "--name", "~of no user"])
    assert found == {"files": ["/home/me/a", "b"], "out": Path("/home/me/c"), "name": "~of no user"}


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",), ("--safe", "--help")])
def test_without_a_command_there_is_a_list_of_all(command, arguments):
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    for name, entry in COMMANDS.items():
        assert f"  {name:<10}  {entry.summary}\n" in out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fti", "fit"),
        ("eval", "evaluate"),
        ("bnech", "bench"),
        ("train", "fit"),
        ("run", "fit"),
        ("predict", "evaluate"),
        ("enjoy", "play"),
        ("xyz", None),
    ],
)
def test_another_command_is_told_the_nearest_and_all(command, typed, meant):
    code, out, err = command(typed, "--config", "base.yaml")
    assert (code, out) == (2, "")
    error, *rest = err.splitlines()
    ending = f": did you mean {meant!r}?" if meant else ""
    assert error == f"lrl: error: there is no command {typed!r}{ending}"
    assert all(any(line.startswith(f"  {name} ") for line in rest) for name in COMMANDS)


def test_the_list_names_the_commands_there_are(command):
    assert {*LrlCLI.subcommands(), *own_commands(), "recipes"} == set(COMMANDS)


def test_modules_in_the_current_folder_are_found_after_all_others(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    monkeypatch.setattr(sys, "argv", ["lrl", "evaluate"])
    monkeypatch.setattr(commands, "run", lambda name, arguments: 0)
    monkeypatch.setattr(ending, "listen", lambda: None)
    with pytest.raises(SystemExit):
        main()
    assert sys.path == ["elsewhere", str(tmp_path)]
