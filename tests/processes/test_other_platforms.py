"""What only Linux has is not needed to import lrl, nor to learn in one process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.training_runs import environment_for_subprocess

SCRIPT = """
import os, pkgutil, importlib, signal, sys
import ale_py, gymnasium, lightning as L, torch, torch.utils.tensorboard

sys.platform = {platform!r}
for module, names in {lacking!r}.items():
    for name in names:
        delattr(sys.modules[module], name)
for module in {modules!r}:
    sys.modules[module] = None
import lrl

for module in pkgutil.walk_packages(lrl.__path__, "lrl."):
    if module.name != "lrl.__main__":
        importlib.import_module(module.name)
data = lrl.ReplayDataModule(lrl.EnvConfig("CartPole-v1"), actors=lrl.ActorConfig(num_actors=0))
trainer = L.Trainer(
    accelerator="cpu", devices=1, max_steps=5, logger=False, enable_progress_bar=False,
    callbacks=[lrl.ActorLearnerCallback()],
)
trainer.fit(lrl.DQN(), datamodule=data)
print("steps", trainer.global_step)
"""
MACOS = {"os": ["memfd_create", "sched_getaffinity", "O_PATH", "posix_fallocate"]}
WINDOWS = {
    "os": [*MACOS["os"], "nice", "getloadavg", "set_blocking"],
    "signal": ["SIGHUP", "SIGCONT", "pthread_sigmask"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "lacking", "modules"),
    [("darwin", MACOS, []), ("win32", WINDOWS, ["fcntl", "resource"])],
)
def test_lrl_imports_and_learns_without_what_linux_has(tmp_path, platform, lacking, modules):
    script = SCRIPT.format(platform=platform, lacking=lacking, modules=modules)
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=environment_for_subprocess(), capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert result.stdout.splitlines()[-1:] == ["steps 5"], result.stderr
