"""`lrl recipes`, and `recipe:NAME` wherever the command line takes a configuration."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import jsonargparse
import pytest
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import environment_for_subprocess

from lrl.cli.command_list import answer
from lrl.cli.recipes import find, recipes, with_paths

pytestmark = quiet_commands

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
CARTPOLE = str(CONFIGS / "cartpole.yaml")
RAINBOW = str(CONFIGS / "algo/rainbow.yaml")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    return functools.partial(Project(tmp_path).call, monkeypatch, capsys)


def test_all_recipes_are_listed_by_group_with_a_sentence_each(command):
    code, out, err = command("recipes")
    assert (code, err) == (0, "")
    groups, _, _ = out.rpartition("\n\n")
    titles = re.findall(r"^(\w+).*:$", groups, re.MULTILINE)
    assert titles == ["tasks", "algo", "protocol", "system"]
    listed = dict(re.findall(r"^  ([\w/]+)  +(.+)$", out, re.MULTILINE))
    assert len(list(CONFIGS.rglob("*.yaml"))) == len(recipes())
    assert listed.keys() == recipes().keys()
    assert max(map(len, out.splitlines())) <= 101
    for name, path in recipes().items():
        first = path.read_text().splitlines()[0]
        assert re.fullmatch(r"# .*\.", first), name  # ends where the line does
        assert listed[name] == first[2:-1]


def test_the_list_is_there_before_anything_heavy():
    script = """
import sys
from lrl.__main__ import main
sys.argv[1:] = ["recipes"]
try:
    main()
except SystemExit as error:
    assert error.code == 0
print({"torch", "lightning", "jsonargparse", "numpy"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("name", ["algo/rainbow", "recipe:algo/rainbow"])
def test_a_recipe_is_shown_as_it_is(command, name):
    assert command("recipes", name) == (0, Path(RAINBOW).read_text(), "")
    assert command("--safe", "recipes", name)[0] == 0


def test_a_recipe_is_copied_but_over_nothing(command, tmp_path):
    copy = ("recipes", "cartpole", "--copy", "my.yaml")
    assert command(*copy) == (0, "my.yaml is a copy of cartpole\n", "")
    assert (tmp_path / "my.yaml").read_text() == Path(CARTPOLE).read_text()
    (tmp_path / "my.yaml").write_text("mine")
    error = "lrl: error: --copy my.yaml exists: choose another name\n"
    assert command(*copy) == (2, "", error)
    assert (tmp_path / "my.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpol"], "there is no recipe 'cartpol': did you mean cartpole, "),
        (["rainbow"], "did you mean algo/rainbow, "),
        (["gpu"], "did you mean system/gpu? `lrl recipes` lists all"),
        (
            ["../configs/cartpole"],
            "there is no recipe '../configs/cartpole': did you mean cartpole",
        ),
        (["0"], "there is no recipe '0': `lrl recipes` lists all"),
        (["--copy", "my.yaml"], "--copy needs a recipe"),
        (["cartpole", "--copy", "nowhere/my.yaml"], "nowhere/my.yaml cannot be written: No such"),
        (["cartpole", "pong"], "unrecognized arguments: pong"),
    ],
)
def test_a_mistake_costs_one_line(arguments, message):
    text, code = answer(["recipes", *arguments]) or ("", 0)
    assert code == 2
    assert text.startswith("lrl: error: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--config", "recipe:cartpole"], ["--config", CARTPOLE]),
        (["--config=recipe:cartpole"], [f"--config={CARTPOLE}"]),
        (["-c", "recipe:algo/rainbow"], ["-c", RAINBOW]),
        (["-c=recipe:algo/rainbow"], [f"-c={RAINBOW}"]),
        (["-crecipe:algo/rainbow"], [f"-c{RAINBOW}"]),
        (
            ["test", "-c", "a.yaml", "--config", "recipe:cartpole"],
            ["test", "-c", "a.yaml", "--config", CARTPOLE],
        ),
        (["--config", "my/recipe:a.yaml"], ["--config", "my/recipe:a.yaml"]),
        (["--name", "recipe:cartpole"], ["--name", "recipe:cartpole"]),
        (["--name=recipe:cartpole", "recipe:pong"], ["--name=recipe:cartpole", "recipe:pong"]),
        ([], []),
    ],
)
def test_recipes_of_configurations_alone_become_paths(given, read):
    assert with_paths(given) == read
    assert with_paths(read) == read


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test"])
def test_a_recipe_is_read_like_its_file(command, subcommand):
    code, out, err = command(
        *(subcommand, "--config", "recipe:cartpole", "-c=recipe:system/synchronous"),
        *("--config", "overlay.yaml", "--print_config"),
    )
    assert (code, err) == (0, "")
    synchronous = str(CONFIGS / "system/synchronous.yaml")
    files = ("--config", CARTPOLE, "--config", synchronous, "--config", "overlay.yaml")
    assert command(subcommand, *files, "--print_config") == (0, out, "")
    assert "num_actors: 0" in out
    assert "recipe:" not in out


def test_safe_mode_reads_recipes(command, monkeypatch):
    for name, value in jsonargparse._common.parsing_settings.items():
        monkeypatch.setitem(jsonargparse._common.parsing_settings, name, value)  # restores it
    monkeypatch.setenv("LRL_SAFE", "1")
    code, out, err = command("fit", "--config", "recipe:cartpole", "--print_config")
    assert code == 0, err
    assert "name: cartpole" in out


def test_an_unknown_recipe_ends_the_command(command, tmp_path):
    code, out, err = command("fit", "--config", "recipe:cartpol")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"lrl: error: .*'cartpol': did you mean cartpole, .*lists all\n", err)
    assert not (tmp_path / "runs").exists()


def test_recipes_that_texts_advise_exist():
    files = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "lrl").rglob("*.py"),
        *CONFIGS.rglob("*.yaml"),
    ]
    named = {
        name for file in files for name in re.findall(r"recipe:([a-z_\d/]+)", file.read_text())
    }
    assert {"cartpole", "system/synchronous", "algo/rainbow"} <= named
    for name in named:
        assert find(name).is_file()
