"""What the documents show works: README code runs, examples run, links and metric names exist."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import yaml

from benchmark.scores import pages
from benchmark.scores.measure import table
from benchmark.scores.records import read_rows
from benchmark.scores.tasks import TASKS
from lrl.report.evaluate import evaluate
from lrl.report.page import report

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_the_custom_environment_example_runs(tmp_path):
    out = run([str(ROOT / "examples/custom_environment.py"), "--max-steps", "300"], tmp_path)
    assert re.search(r"best return -?\d+\.\d+; actions \[[01], [01]\]", out)


@pytest.mark.slow
def test_the_example_of_ones_own_kind_of_environment_runs(tmp_path):
    out = run([str(ROOT / "examples/own_env_kind.py"), "--max-steps", "60"], tmp_path)
    assert re.search(r"best return -?\d+\.\d+; 0\.65 is", out)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["own_pool", "own_experience"])
def test_rows_of_ones_own_making_are_learnt_from(tmp_path, example: str):
    out = run([str(ROOT / f"examples/{example}.py"), "--max-steps", "60"], tmp_path)
    assert re.search(r"best return \d+\.\d", out)


@pytest.mark.slow
def test_the_example_of_observations_with_leaves_runs(tmp_path):
    out = run([str(ROOT / "examples/dict_observations.py"), "--max-steps", "60"], tmp_path)
    assert re.search(r"best return \d+\.\d of 20", out)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--without-memory"]])
def test_the_example_of_an_agent_that_remembers_runs(tmp_path, more: list[str]):
    out = run([str(ROOT / "examples/memory.py"), "--max-steps", "20", *more], tmp_path)
    assert re.search(r"best evaluation return \d+\.\d: .*best\.ckpt", out)


@pytest.mark.slow
def test_the_custom_head_example_runs_and_is_short(tmp_path):
    path = ROOT / "examples/custom_head.py"
    out = run([str(path), "--max-steps", "100"], tmp_path)
    assert re.search(r"best evaluation return \d+\.\d: .*best\.ckpt", out)
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes] == ["HistogramHead"]
    assert (classes[0].end_lineno or 0) - classes[0].lineno + 1 <= 40


@pytest.mark.slow
def test_the_readme_script_is_the_example_and_runs(tmp_path):
    script = next(block for block in blocks("python") if "trainer.fit" in block)
    assert (ROOT / "examples/cartpole.py").read_text().endswith(f'"""\n\n{script}')
    assert "max_steps=5000" in script
    (tmp_path / "script.py").write_text(script.replace("max_steps=5000", "max_steps=500"))
    assert re.search(r"mean return of 100 episodes: \d+\.\d", run(["script.py"], tmp_path))


def test_the_readme_head_computes_bounded_values():
    import torch

    source = next(block for block in blocks("python") if "class ClippedHead" in block)
    namespace: dict = {}
    exec(source, namespace)
    head = namespace["ClippedHead"](3, 2, bound=0.5)
    assert head(1e6 * torch.ones(4, 3)).abs().max() <= 0.5


def test_the_readme_yaml_names_parts_that_exist():
    config = next(yaml.safe_load(block) for block in blocks("yaml"))
    from lrl.parts.recipe import Recipe

    parts = [*config["model"].values(), config["data"]["replay"]["sampler"]]
    for part in parts:
        name = part["class_path"].rpartition(".")[2]
        assert Recipe.of(part).class_path.rpartition(".")[2] == name


DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert document != "README.md" or targets
    for target in targets:
        assert (path.parent / target).exists(), target


def test_every_algorithm_has_a_section_that_names_its_file():
    text = (ROOT / "docs/algorithms.md").read_text()
    sections = [section.split("\n", 1) for section in text.split("\n## ")[1:]]
    for path in sorted((ROOT / "configs/algo").glob("*.yaml")):
        assert any(f"`configs/algo/{path.name}`" in body for _, body in sections), path.name
    for title in re.findall(r"^\| \[([^]]+)\]", text, re.MULTILINE):
        assert title in [heading for heading, _ in sections]


def test_the_table_of_scores_is_that_of_the_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert table(read_rows(ROOT / "docs/scores.csv")) in text


IN_README = [
    *("cartpole", "cartpole_sync", "cartpole_rainbow", "cartpole_iqn", "cartpole_central"),
    *("lunarlander", "acrobot", "mountaincar", "minatar_breakout", "minatar_asterix"),
    *("minatar_freeway", "minatar_spaceinvaders", "minatar_pqn_breakout"),
    *("minatar_pqn_spaceinvaders", "cartpole_pqn", "cartpole_masked", "pong_laptop"),
]


def test_the_scores_and_seconds_of_the_readme_are_those_of_the_runs():
    files = (ROOT / "docs/scores.csv", ROOT / "docs/campaigns/classic.csv")
    recorded = [row for file in files for row in read_rows(file)]
    recipes = {task.name: task.recipe for task in TASKS} | {"acrobot": "acrobot"}
    row = r"^\| ([^|]+) \| (\d+) to (\d+) \| (-?[\d.]+, [^|]+) \| ([^|]+) \|$"
    stated = re.findall(row, README, re.MULTILINE)
    recipe = ""
    for task, (title, first, last, scores, seconds) in zip(IN_README, stated, strict=True):
        recipe = [recipe, *re.findall(r"`configs/(\w+)\.yaml`", title)][-1]
        assert recipe == recipes[task]
        seeds = range(int(first), int(last) + 1)
        runs = [run for run in recorded if run["task"] == task and int(run["seed"]) in seeds]
        assert scores == ", ".join(f"{float(run['score']):.1f}" for run in runs)
        timed = [float(run["seconds"]) for run in runs if run["seconds"]]
        assert seconds == (f"{median(timed):.0f}" if timed else "not timed")


def test_how_many_seeds_of_a_campaign_reach_the_bar_is_as_the_readme_says():
    said = re.search(r"^With ten other seeds.+?\n\n", README, re.DOTALL | re.MULTILINE)
    assert said is not None
    stated = re.findall(r"(\w+)(?: reaches)? (-?\d+)[^;.]*? with (\d+) of 10", said[0])
    assert [name for name, _, _ in stated] == ["CartPole", "LunarLander"]
    for name, bar, reached in stated:
        rows = read_rows(ROOT / "docs/campaigns/classic.csv")
        runs = [run for run in rows if run["environment"].startswith(f"{name}-")]
        for task in {run["task"] for run in runs}:
            scores = [float(run["score"]) for run in runs if run["task"] == task]
            assert sum(score >= float(bar) for score in scores) == int(reached)


def test_the_tables_of_campaigns_are_those_of_their_files(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/benchmarks.md").read_text()
    names = re.findall(r"<!-- campaign (\w+) -->", page)
    assert names == ["classic", "minatar", "atari100k", "pong"]
    text, images = pages.written(page)
    assert text == page
    assert all((ROOT / "docs/images" / name).exists() for name in images)
    assert pages.answered(README) == README


def test_the_scores_of_algorithms_are_medians_of_the_runs():
    text = (ROOT / "docs/algorithms.md").read_text()
    rows = read_rows(ROOT / "docs/scores.csv")
    files = dict(re.findall(r"^## (.+)\n\n`configs/algo/(\w+)\.yaml`", text, re.MULTILINE))
    stated = re.findall(r"^\| \[([^]]+)\].*\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(stated) == len(files)
    for title, score in stated:
        task = f"parts_{files[title]}"
        runs = [float(row["score"]) for row in rows if row["task"] == task]
        assert score in ([f"{median(runs):.1f}"] if runs else ["as Rainbow", "not run"])


def test_the_options_of_the_page_on_evaluation_exist():
    known = {"--ckpt_path", "--name", "--runs", "--modules", "--help", "--data"}
    known |= {f"--{name}" for name in inspect.signature(evaluate).parameters}
    named = set(re.findall(r"--\w+", (ROOT / "docs/evaluation.md").read_text()))
    known.add("--trainer")  # of `lrl fit`
    assert {"--out", "--mix_protocols", "--episodes"} <= named <= known


def test_the_options_of_the_page_on_reports_exist():
    text = (ROOT / "docs/report.md").read_text()
    options = {f"--{name}" for name in inspect.signature(report).parameters} - {"--paths"}
    commands = re.findall(r"^lrl report .*$", text, re.MULTILINE)
    named = {option.partition(".")[0] for line in commands for option in re.findall(r"--\w+", line)}
    assert named == options


def test_every_recipe_is_named_in_its_file():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert yaml.safe_load(path.read_text())["name"] == path.stem
