"""The CartPole recipes and the README's script solve it (minutes; `make test-all`)."""

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


@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("recipe", ["cartpole", "cartpole_sync", "cartpole_pqn"])
def test_the_best_checkpoint_holds_the_pole(recipe, tmp_path):
    run = ("--config", f"configs/{recipe}.yaml", "--runs", str(tmp_path))
    lrl("fit", *run, "--seed_everything", "5")
    out = lrl("test", *run, "--ckpt_path", "best")
    score = re.search(r"return (\d+\.\d) ± .* over 100 episodes", out)
    assert score is not None
    assert float(score[1]) >= 475.0


@pytest.mark.learning
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", script.WAYS)
def test_the_readme_script_solves_it_from_everywhere(way):
    assert script.run(way, seed=5, example=ROOT / script.EXAMPLE).score >= script.BAR
