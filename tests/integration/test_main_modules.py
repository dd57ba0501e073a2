"""Training from everywhere that Python runs code, with real actors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training_runs import environment_for_subprocess, kill_group, process_group
from helpers.waiting import wait_for

pytestmark = pytest.mark.slow
SCRIPT = """
import lightning as L
import lrl

def train():
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("lrl/Identity-v0"), lrl.ActorConfig(num_actors=1, envs_per_actor=2),
        replay=lrl.ReplayConfig(batch_size=8), rate=lrl.RateLimiterConfig(8.0, None, 50),
    )
    callback = lrl.ActorLearnerCallback(eval_period_learner_steps=20)
    trainer = L.Trainer(max_steps=20, callbacks=[callback], enable_model_summary=False)
    trainer.fit(lrl.DQN(), datamodule=experience)
    print("trained", trainer.global_step, callback.best_model_score)

"""
CELLS = """
import sys, types
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(SCRIPT, vars(main))
"""
GUARD = 'if __name__ == "__main__":\n    '


def start(folder: Path, how: str, script: str) -> tuple[int, str, str]:
    """Run a script from a file, standard input, an argument or the cells of a notebook."""
    path = folder / "script.py"
    path.write_text(script)
    arguments = {
        "a file": [str(path)],
        "standard input": [],
        "an argument": ["-c", script],
        "a notebook": ["-c", CELLS.replace("SCRIPT", repr(script))],
    }[how]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment_for_subprocess(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(script if how == "standard input" else "", timeout=250)
        wait_for(lambda: process_group(process.pid) == [], "the end of all processes", 5.0)
    finally:
        kill_group(process.pid)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("how", "guard"),
    [
        ("a file", GUARD),
        ("standard input", GUARD),
        ("standard input", ""),
        ("an argument", ""),
        ("a notebook", ""),
    ],
)
def test_training_starts_from_everywhere(how, guard, tmp_path):
    code, out, err = start(tmp_path, how, f"{SCRIPT}{guard}train()\n")
    assert code == 0, err
    assert out.startswith("trained 20 ")
    assert "Traceback" not in err


def test_a_file_without_a_guard_costs_a_sentence_and_leaves_nothing(tmp_path):
    code, out, err = start(tmp_path, "a file", SCRIPT + "train()\n")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("lrl: error: line 15 of script.py starts processes")
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_an_environment_of_a_notebook_is_named(tmp_path):
    register = (
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Mine(CartPoleEnv): pass\n"
        "gymnasium.register('Mine-v0', Mine)\n"
    )
    script = SCRIPT.replace("lrl/Identity-v0", "Mine-v0") + register + "train()\n"
    code, _, err = start(tmp_path, "a notebook", script)
    assert code == 1
    assert "ConfigError: Mine is defined in a notebook" in err.splitlines()[-1]
