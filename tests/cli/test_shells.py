"""What a shell offers where Tab is pressed, by the scripts of `lrl completion`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lrl.cli.shells import FILES, SCRIPTS, Command

COMMANDS = {
    "fit": Command(
        "train it's way",
        {
            "--config": ("recipe:pong", "recipe:pong_sync", "recipe:algo/dqn", FILES),
            "-c": ("recipe:pong", FILES),
            "--data.on_failure": ("restart", "fail"),
            "--data.seed": (),
        },
    ),
    "recipes": Command("list recipes", {"--copy": ()}, ("pong", "algo/dqn")),
}
OPTIONS = {"--safe": "allow less", "--debug": "show more"}
CASES = [
    ("lrl f", ["fit"]),
    ("lrl --s", ["--safe"]),
    ("lrl --safe f", ["fit"]),
    ("lrl fit --data.", ["--data.on_failure", "--data.seed"]),
    ("lrl fit --data.on_failure ", ["fail", "restart"]),
    ("lrl fit --data.on_failure fail --data.s", ["--data.seed"]),
    ("lrl fit --config recipe:po", ["recipe:pong", "recipe:pong_sync"]),
    ("lrl fit --config my", ["my file.yaml"]),
    ("lrl fit --data.seed my", ["my file.yaml"]),
    ("lrl recipes al", ["algo/dqn"]),
]


def script(folder: Path, shell: str) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = folder / f"lrl.{shell}"
    path.write_text(SCRIPTS[shell](COMMANDS, OPTIONS))
    (folder / "my file.yaml").touch()
    return path


def output(folder: Path, *arguments: str) -> list[str]:
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=200)
    assert result.stderr == ""
    return sorted(line.partition("\t")[0] for line in result.stdout.splitlines())


@pytest.mark.parametrize(("line", "offered"), CASES)
def test_bash_offers_what_may_follow(tmp_path, line: str, offered: list[str]):
    path = script(tmp_path, "bash")
    ask = f'source {path}; COMP_LINE="{line}" COMP_POINT={len(line)}; _lrl; '
    found = output(tmp_path, "bash", "-c", ask + 'printf "%s\\n" "${COMPREPLY[@]}"')
    assert found == [each.removeprefix("recipe:") for each in offered]  # ":" ends a word


def test_bash_completes_the_value_after_an_equals_sign(tmp_path):
    line = "lrl fit --config=recipe:pong_"
    ask = f'source {script(tmp_path, "bash")}; COMP_LINE="{line}" COMP_POINT={len(line)}; _lrl; '
    assert output(tmp_path, "bash", "-c", ask + 'echo "${COMPREPLY[@]}"') == ["pong_sync"]


@pytest.mark.parametrize(("line", "offered"), CASES)
def test_fish_offers_what_may_follow(tmp_path, line: str, offered: list[str]):
    path = script(tmp_path, "fish")
    ask = f"source {path}; complete -C '{line}'"
    found = [
        word.replace("\\ ", " ") for word in output(tmp_path, "fish", "--no-config", "-c", ask)
    ]
    assert found == offered


def test_zsh_reads_the_script_and_knows_the_words(tmp_path):
    ask = "autoload -U compinit; compinit -D; source ./lrl.zsh; print ${_comps[lrl]}"
    script(tmp_path, "zsh")
    ask += "; _lrl_words 'fit --data.on_failure'"
    assert output(tmp_path, "zsh", "-f", "-c", ask) == ["_lrl", "restart fail"]
