"""The commands and the script of docs/offline.md are run; the options of docs/hub.md exist."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training_runs import environment_for_subprocess

from lrl.cli.command_list import COMMANDS
from lrl.deploy.push import push

DOCS = Path(__file__).parents[2] / "docs"
SHORT = [
    "--trainer.max_steps", "40", "--trainer.log_every_n_steps", "20",
    "--actor_learner.eval_period_learner_steps", "40", "--data.evaluation.episodes", "2",
    "--data.learner_threads", "1", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


def commands_of(document: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / document).read_text(), flags=re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("lrl ")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_on_learning_offline_run(tmp_path):
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    environment = {
        **environment_for_subprocess(), "MINARI_DATASETS_PATH": str(tmp_path / "datasets")
    }  # fmt: skip
    script = re.findall(r"```python\n(.*?)```", (DOCS / "offline.md").read_text(), re.DOTALL)[0]
    fitted = "print(data.pool.prepare(data.env, data.env_spec))"
    ran = [[*words, *(SHORT if words[1] == "fit" else [])] for words in commands_of("offline.md")]
    assert [words[1] for words in ran] == ["fit", "dataset", "dataset", "fit", "fit"]
    said = ""
    for words in [*ran, ["-c", f"{script}\n{fitted}"]]:
        program = ["-m", "lrl", *words[1:]] if words[0] == "lrl" else words
        done = subprocess.run(
            [sys.executable, *program], cwd=tmp_path, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = done.stdout
    assert re.fullmatch(r"\(\d+, \d+\)\n", said)


def test_the_options_of_the_page_on_the_hub_exist():
    commands = commands_of("hub.md")
    assert {words[1] for words in commands} <= COMMANDS.keys()
    known = {"--ckpt_path", "--name", *(f"--{name}" for name in inspect.signature(push).parameters)}
    named = set(re.findall(r"--\w+", (DOCS / "hub.md").read_text())) - {"--out", "--safe"}
    assert (
        {"--repo_id", "--private", "--revision", "--output", "--film", "--score"} <= named <= known
    )
