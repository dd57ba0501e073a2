"""What is on the site: commands that parse, settings that exist, examples that run."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.command_line import quiet_commands

from docs_site import algorithms, links, settings
from lrl.cli.command_list import answer, own_commands
from lrl.cli.commands import read_arguments
from lrl.cli.recipes import with_paths

pytestmark = quiet_commands

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]}
PAGES |= {page.uri: page.page() for page in algorithms.split()[1]}


def first_round(block: str) -> str:
    """Return a block whose loops have their first values."""
    for name, value in re.findall(r"\bfor (\w+) in (\S+)", block):
        block = block.replace(f"${name}", value)
    return block


COMMANDS = sorted(
    (name, command)
    for name, text in PAGES.items()
    for block in re.findall(r"(?ms)^ *```(?:bash)?\n(.*?)^ *```$", text)
    for command in re.findall(
        r"(?m)^ *(?:\w+=\S+ )?lrl\b( .*)?$", first_round(block.replace("\\\n", ""))
    )
)
GUIDES = [*ROOT.glob("docs/howto_*.md"), *ROOT.glob("docs/from_*.md"), ROOT / "docs/concepts.md"]
THEIRS = sorted(path.name for path in ROOT.glob("docs/from_*.md"))


@pytest.fixture(scope="module")
def parser() -> Any:
    """The parser of `lrl fit`, which takes seconds to build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")  # restores it
        return settings.command_line()._parser("fit")


@pytest.fixture
def imports_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a page names is on Python's path: the examples, and the module it shows."""
    (tmp_path / "my_networks.py").write_text(fourier_encoder())
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)


def fourier_encoder() -> str:
    (code,) = blocks("howto_network.md", "python")
    return code


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


@pytest.mark.parametrize(
    "command", [command for _, command in COMMANDS], ids=[p for p, _ in COMMANDS]
)
@pytest.mark.usefixtures("imports_examples")
def test_commands_of_the_pages_parse(command: str, parser: Any, monkeypatch):
    words = shlex.split(command, comments=True)
    words = [word for word in words if word not in ("--safe", "--debug")]
    if (answered := answer(words)) is not None:  # a list, or a mistake
        assert answered[1] == 0
        return
    name, *arguments = words
    if "--help" in arguments:
        assert name in {*own_commands(), "fit", "validate", "test"}
    elif name in own_commands():
        monkeypatch.setattr("lrl.cli.commands.resolve_checkpoint", lambda path, *_: path)
        monkeypatch.setattr("lrl.cli.commands.fetched", lambda path: path)
        read_arguments(name, getattr(import_module(own_commands()[name]), name), arguments)
    elif re.search(r"--config (?!recipe:)", command):  # made by a run, or somebody else's
        known = {"config", *(setting.key for setting in settings.keys_of(parser))}
        keys = [word.removeprefix("--") for word in arguments if word.startswith("--")]
        assert [key for key in keys if not known & {*accumulate(key.split("."), dotted)}] == []
    else:
        if "--model.class_path" in arguments:
            parser = settings.command_line("--model.class_path", "lrl.DQN")._parser("fit")
        parser.parse_args(with_paths(arguments))


def dotted(section: str, name: str) -> str:
    return f"{section}.{name}"


@pytest.mark.parametrize("page", sorted(path.name for path in GUIDES))
@pytest.mark.usefixtures("imports_examples")
def test_yaml_of_the_guides_is_understood(page: str, parser: Any, tmp_path):
    for number, block in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        config = parser.parse_args([f"--config={path}"])
        model = yaml.safe_load(block).get("model", {})
        assert all(config[f"model.{part}"] is not None for part in model)


def test_the_encoder_of_the_guide_encodes():
    namespace: dict[str, Any] = {}
    exec(fourier_encoder(), namespace)
    encoder = namespace["FourierEncoder"]((3,), waves=8)
    assert encoder(torch.zeros(5, 3)).shape == (5, encoder.num_features)


HOMES = [
    "lrl.networks", "lrl.learner", "lrl.replay", "lrl.actors.exploration", "lrl.schedules",
    "torch.optim", "lightning.pytorch.callbacks",
]  # fmt: skip


def check_part(text: str) -> None:
    """Check that a part is one, and takes the arguments it is given: `Adam(lr=1e-3)`."""
    tree = ast.parse(text, mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls or [ast.Call(tree.body, [], [])]:
        assert isinstance(call.func, ast.Name)
        name, given = call.func.id, {word.arg for word in call.keywords}
        parts = [part for home in HOMES if (part := vars(import_module(home)).get(name))]
        assert any(given <= inspect.signature(part).parameters.keys() for part in parts), text


@pytest.mark.parametrize("page", THEIRS)
def test_every_key_that_stands_beside_theirs_exists(page: str, parser: Any):
    known = {setting.key for setting in settings.keys_of(parser)}
    own = {action.dest for action in parser._actions}
    rows = re.findall(
        r"^\| `.*?` \| (`.*?) \| .*\|$", (ROOT / "docs" / page).read_text(), re.MULTILINE
    )
    assert len(rows) > 12
    for ours in rows:
        for key, value in re.findall(
            r"`((?:data|model|trainer|actor_learner)\.[\w.]+)(?:: ([^`]+))?`", ours
        ):
            assert key in known
            if value and key in own:
                parser.parse_args([f"--{key}", value])
        for part in re.findall(r"`: `([^`]+)`", ours):
            check_part(part)


def flat(section: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the keys of a printed configuration, those of parts' arguments left out."""
    keys = set()
    for name, value in section.items():
        is_section = isinstance(value, dict) and value and "class_path" not in value
        keys |= flat(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}"}
    return keys


def test_every_key_has_a_row_in_the_page_of_settings(parser: Any):
    printed = yaml.safe_load(parser.dump(parser.get_defaults(), skip_validation=True))
    keys = flat(printed)
    assert {"data.replay.n_step", "model.head", "trainer.max_steps", "name"} <= keys
    rows = dict(
        re.findall(
            r"^\| `([\w.]+)` \| `[^`]+` \| `[^`]*` \| (.*) \|$", settings.page(), re.MULTILINE
        )
    )
    assert keys - {"data.seed"} <= rows.keys()
    assert {"data.inference.num_servers", "data.cluster.address"} <= rows.keys()
    assert rows["data.replay.capacity"].startswith("Rows kept per rank")


def test_every_overlay_is_on_a_page_of_its_own():
    kept, pages = algorithms.split()
    recipes = [recipe for page in pages for recipe in page.recipes]
    overlays = {f"algo/{path.stem}" for path in (ROOT / "configs/algo").glob("*.yaml")}
    assert overlays <= set(recipes)
    assert len(recipes) == len(set(recipes))
    assert "## Action branching" in kept
    rainbow = next(page for page in pages if page.title == "Rainbow").page()
    assert (ROOT / "configs/algo/rainbow.yaml").read_text().rstrip() in rainbow
    assert "| `parts_rainbow` | CartPole-v1 | 500.0, 500.0, 500.0 | 500.0 |" in rainbow


def test_links_to_the_repository_become_links_of_the_site():
    moved = {"docs/algorithms.md#c51": "algorithms/c51.md"}
    page = links.DOCS / "page.md"
    text = (
        "[a](../configs/pong.yaml) [b](algorithms.md#c51) [c](metrics.md#x) [d](../no.yaml)\n"
        "```\n[e](../configs/pong.yaml)\n```\n"
    )
    assert links.for_site(text, page, "page.md", moved) == (
        "[a](files/configs/pong.yaml.md) [b](algorithms/c51.md) [c](metrics.md#x) [d](../no.yaml)\n"
        "```\n[e](../configs/pong.yaml)\n```\n"
    )
    readme = links.for_site("[a](docs/metrics.md)", ROOT / "README.md", "files/README.md", moved)
    assert readme == "[a](../metrics.md)"
    assert "max_steps: 500_000" in links.for_site(
        "[a](../configs/pong.yaml)", page, "page.md", moved
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", THEIRS)
def test_the_example_beside_theirs_runs(page: str, tmp_path):
    if scripts := blocks(page, "python"):
        (code,) = scripts
        code = re.sub(
            r"max_steps=[\d_]+, callbacks=.*\]", "max_steps=3, callbacks=[callback]", code
        )
        code = code.replace("Callback()", "Callback(eval_period_learner_steps=3)")
        (tmp_path / "script.py").write_text(code)
        command = ["script.py"]
    else:
        (config,) = blocks(page, "yaml")
        (tmp_path / "config.yaml").write_text(config)
        command = ["-m", "lrl", "fit", "--config", "config.yaml", "--trainer.max_steps", "3"]
        command += ["--actor_learner.eval_period_learner_steps=3"]
        command += ["--data.rate.warm_up_env_steps=200", "--trainer.enable_progress_bar=false"]
    result = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert re.search(r"best evaluation return:? \d+\.\d", result.stdout)
