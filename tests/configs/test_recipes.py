"""The configurations in the repository: every algorithm runs on vectors and on images."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
from helpers.command_line import Project, quiet_commands

pytestmark = quiet_commands

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAYS = sorted(path.stem for path in (CONFIGS / "algo").glob("*.yaml"))
RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
WHERE = {  # every algorithm meets every mode, vectors and images, each once or twice
    ("cartpole", "synchronous"), ("cartpole", "central"), ("pong", "asynchronous"),
}  # fmt: skip
SAMPLE = {  # belong to the fast tests
    ("dueling_double_dqn", "cartpole", "asynchronous"),
    ("rainbow", "cartpole", "synchronous"),
    ("munchausen_iqn", "cartpole", "asynchronous"),
    ("c51", "pong", "synchronous"),
    ("rainbow", "cartpole", "central"),
}
MODES = {
    "synchronous": ["--config", str(CONFIGS / "system" / "synchronous.yaml")],
    "asynchronous": ["--data.actors.num_actors", "1", "--data.actors.chunk_rows", "16"],
    "central": [
        "--data.actors.num_actors", "1", "--data.actors.chunk_rows", "16",
        "--data.inference.num_servers", "1",
    ],
}  # fmt: skip
IMAGES_ONLY = ("beyond_the_rainbow", "data_efficient_rainbow")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    return functools.partial(Project(tmp_path).call, monkeypatch, capsys)


def small(task: str, mode: str) -> list[str]:
    """Return settings with which a recipe makes 6 learner steps with a batch of 8."""
    return [
        "--config", str(CONFIGS / f"{task}.yaml"),
        "--trainer.max_steps", "6",
        "--trainer.log_every_n_steps", "2",
        "--trainer.limit_train_batches", "3",
        *MODES[mode],
        "--data.learner_threads", "1",
        "--data.actors.envs_per_actor", "2",
        "--data.replay.batch_size", "8",
        "--data.replay.capacity", "400",
        "--data.rate.warm_up_env_steps", "100",
        "--data.rate.samples_per_insert", "4",
        "--data.evaluation.episodes", "1",
        "--data.evaluation.max_frames_per_episode", "80",
        "--actor_learner.eval_period_learner_steps", "6",
    ]  # fmt: skip


def cases() -> list:
    return [
        pytest.param(
            overlay, task, mode, marks=() if (overlay, task, mode) in SAMPLE else pytest.mark.slow
        )
        for overlay in OVERLAYS
        for task in ("cartpole", "pong")
        for mode in MODES
        if (task, mode) in WHERE or (overlay, task, mode) in SAMPLE
    ]


@pytest.mark.parametrize(("overlay", "task", "mode"), cases())
def test_every_algorithm_learns_something(command, tmp_path, overlay, task, mode):
    settings = small(task, mode)
    algorithm = ["--config", str(CONFIGS / "algo" / f"{overlay}.yaml")]
    if task == "cartpole" and overlay in IMAGES_ONLY:
        algorithm += ["--model.encoder", "lrl.networks.MLPEncoder"]
    # The overlay comes after the task and before what makes the run short.
    code, _, err = command("fit", *settings[:2], *algorithm, *settings[2:])
    assert code in (None, 0), err
    (folder,) = (tmp_path / "runs" / task).glob("version_*")
    rows = (folder / "metrics.csv").read_text().splitlines()
    losses = [row.split(",")[rows[0].split(",").index("train/loss")] for row in rows[1:]]
    assert all(float(loss) >= 0.0 for loss in losses if loss)  # no NaN either
    assert sum(bool(loss) for loss in losses) == 3
    assert json.loads((folder / "summary.json").read_text())["learner_steps"] == 6


def test_the_seed_overlay_learns(command, tmp_path):
    """It names every context, of which chance names one in four."""
    recipe = tmp_path / "base.yaml"
    code, _, err = command(
        "fit",
        "--config", str(recipe),
        "--config", str(CONFIGS / "system" / "seed.yaml"),
        "--model.optimizer", "torch.optim.Adam",
        "--model.optimizer.lr", "0.01",
        "--model.target_update_period_learner_steps", "20",
        "--trainer.max_steps", "400",
        "--data.replay.batch_size", "64",
        "--data.rate.samples_per_insert", "16",
        "--data.evaluation.episodes", "20",
        "--data.evaluation.epsilon", "0",
        "--actor_learner.eval_period_learner_steps", "200",
    )  # fmt: skip
    assert code in (None, 0), err
    (folder,) = (tmp_path / "runs" / "small").glob("version_*")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["learner_steps"] == 400
    assert summary["env_steps"] >= 1000
    assert summary["best_return_mean"] == 5.0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_short_and_cites_its_paper(overlay):
    lines = (CONFIGS / "algo" / f"{overlay}.yaml").read_text().splitlines()
    assert len(lines) <= 30
    header = " ".join(line for line in lines if line.startswith("#"))
    assert re.search(r"et al\. 20\d\d", header)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_valid(command, recipe):
    code, out, err = command("fit", "--config", str(CONFIGS / f"{recipe}.yaml"), "--print_config")
    assert code in (None, 0), err
    assert f"name: {recipe}" in out


def test_the_papers_are_all_there():
    assert OVERLAYS == [
        "apex", "beyond_the_rainbow", "c51", "data_efficient_rainbow", "double_dqn", "dqn",
        "dueling_double_dqn", "iqn", "munchausen_dqn", "munchausen_iqn", "prioritized", "qr_dqn",
        "r2d2", "rainbow",
    ]  # fmt: skip
