"""What the documents show works: README code runs, examples run, links and metric names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.timeout(180)
def test_the_custom_environment_example_runs(tmp_path):
    out = run([str(ROOT / "examples/custom_environment.py"), "--max-steps", "300"], tmp_path)
    assert re.search(r"best return -?\d+\.\d+; actions \[[01], [01]\]", out)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_cartpole_example_runs(tmp_path):
    out = run([str(ROOT / "examples/cartpole.py"), "--max-steps", "300"], tmp_path)
    assert re.search(r"best return \d+\.\d in .*best\.ckpt", out)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_readme_script_runs(tmp_path):
    script = next(block for block in blocks("python") if "trainer.fit" in block)
    (tmp_path / "script.py").write_text(script.replace("max_steps=1000", "max_steps=500"))
    run(["script.py"], tmp_path)


def test_the_readme_head_computes_bounded_values():
    import torch

    source = next(block for block in blocks("python") if "class ClippedHead" in block)
    namespace: dict = {}
    exec(source, namespace)
    head = namespace["ClippedHead"](3, 2, bound=0.5)
    assert head(1e6 * torch.ones(4, 3)).abs().max() <= 0.5


def test_the_readme_yaml_names_parts_that_exist():
    config = next(yaml.safe_load(block) for block in blocks("yaml"))
    from lrl.recipe import Recipe

    for part in (config["model"]["encoder"], config["model"]["bootstrap"]):
        name = part["class_path"].rpartition(".")[2]
        assert Recipe.of(part).class_path.rpartition(".")[2] == name


@pytest.mark.parametrize("document", ["README.md", "docs/metrics.md", "docs/architecture.md"])
def test_links_lead_somewhere(document):
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert document != "README.md" or targets
    for target in targets:
        assert (path.parent / target).exists(), target


def test_every_recipe_is_named_in_its_file():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert yaml.safe_load(path.read_text())["name"] == path.stem
