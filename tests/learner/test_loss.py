"""The loss of a batch, and the loss compiled."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from helpers.training_runs import make_run, quiet, small_agent

from lrl.bench.learner import WORKLOADS, Side, make_batch, make_module
from lrl.learner.dqn import DQN
from lrl.learner.loss import LossFunction, compiled_loss, weighted_loss
from lrl.types import Batch, ConfigError

pytestmark = quiet


def test_importance_weights_scale_the_rows():
    module = make_module(WORKLOADS["mlp"], Side())
    batch = make_batch(WORKLOADS["mlp"], seed=0)
    batch.weights.uniform_()
    loss, td = weighted_loss(batch, module.online, module.target, module.bootstrap)
    assert loss.item() == pytest.approx((batch.weights * td.loss).mean().item())
    assert td.priority.shape == batch.weights.shape


_COMPARED = """
import os, sys
import torch
from lrl.bench.learner import WORKLOADS, Side, make_batch, make_module
from lrl.learner.loss import compiled_loss, weighted_loss
from lrl.testing.leftovers import descendants

workload = WORKLOADS[sys.argv[1]]
module, batch = make_module(workload, Side()), make_batch(workload, seed=0)
gradients, results = [], []
for function in (weighted_loss, compiled_loss(module)):
    module.zero_grad()
    loss, td = function(batch, module.online, module.target, module.bootstrap)
    loss.backward()
    gradients.append([p.grad.clone() for p in module.online.parameters()])
    results.append([loss.detach(), td.priority])
torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
assert not descendants(os.getpid())
print("the same")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["mlp", "c51"])
def test_compiled_it_is_the_same_and_leaves_no_process(name):
    # Elsewhere: torch cannot compile what these tests check the types of.
    command = [sys.executable, "-c", _COMPARED, name]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "the same\n", ended.stderr


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_learns_by_the_compiled_loss_if_asked_to(tmp_path, monkeypatch, asked):
    calls: list[Batch] = []

    def compiled(module: DQN) -> LossFunction:
        assert module.device.type == "cpu"
        return lambda batch, *rest: (calls.append(batch), weighted_loss(batch, *rest))[1]

    monkeypatch.setattr("lrl.learner.dqn.compiled_loss", compiled)
    run = make_run(tmp_path, module=small_agent(compile_loss=asked), max_steps=3).fit()
    assert len(calls) == (3 if asked else 0)
    assert pickle.loads(pickle.dumps(run.module)).loss_of is weighted_loss


class OwnLoss(DQN):
    def compute_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        return super().compute_loss(batch)


def test_a_loss_of_your_own_is_not_compiled(tmp_path):
    run = make_run(tmp_path, module=OwnLoss(compile_loss=True), max_steps=3)
    with pytest.raises(ConfigError, match="OwnLoss has a compute_loss of its own"):
        run.fit()


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    module = make_module(WORKLOADS["mlp"], Side())
    with pytest.raises(ConfigError, match=r"there is no C\+\+ compiler (g\+\+|clang\+\+|cl):"):
        compiled_loss(module)
    monkeypatch.setenv("CXX", "/missing")
    with pytest.raises(ConfigError, match="compiler /missing"):
        compiled_loss(module)


@pytest.mark.skipif(sys.platform == "win32", reason="has no executable scripts")
@pytest.mark.parametrize("content", ["", "#!/bin/sh\nexit 1\n"])
def test_a_compiler_that_does_not_work_is_named(monkeypatch, tmp_path, content):
    compiler = tmp_path / "compiler"
    compiler.write_text(content)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ConfigError, match=f"{compiler} --version` fails.: install one"):
        compiled_loss(make_module(WORKLOADS["mlp"], Side()))
