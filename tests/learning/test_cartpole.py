"""The recipes of CartPole and of memory, and the README's script, reach what they are to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.scores import script

ROOT = Path(__file__).parents[2]


def lrl(*arguments: str) -> str:
    command = [sys.executable, "-m", "lrl", *arguments, "--trainer.enable_progress_bar", "false"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def score_of(recipe: str, folder: Path) -> float:
    """The mean return of a recipe's best checkpoint."""
    run = ("--config", f"configs/{recipe}.yaml", "--runs", str(folder))
    # Two threads of a learner that acts by itself wait for each other beside another test.
    lrl("fit", *run, "--seed_everything", "5", "--data.learner_threads", "1")
    out = lrl("test", *run, "--ckpt_path", "best")
    score = re.search(r"return (\d+\.\d+) ± .* over 100 episodes", out)
    assert score is not None
    return float(score[1])


@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("recipe", "bar"),
    [
        ("cartpole", 475.0),
        ("cartpole_sync", 475.0),
        ("cartpole_pqn", 475.0),
        ("cartpole_masked", 450.0),
    ],
)
def test_the_best_checkpoint_holds_the_pole(recipe, bar, tmp_path):
    assert score_of(recipe, tmp_path) >= bar


@pytest.mark.learning
@pytest.mark.timeout(600)
def test_a_cue_is_recalled_twenty_steps_later(tmp_path):
    assert score_of("recall", tmp_path) == 1.0


@pytest.mark.learning
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", script.WAYS)
def test_the_readme_script_solves_it_from_everywhere(way):
    assert script.run(way, seed=5, example=ROOT / script.EXAMPLE).score >= script.BAR
