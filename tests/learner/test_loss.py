"""The loss of a batch, and the loss compiled."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from helpers.training_runs import make_run, quiet

from benchmark.parts.learner import Side, make_module
from lrl.bench.workloads import WORKLOADS, make_batch
from lrl.learner.bootstrap import NextValues
from lrl.learner.dqn import DQN
from lrl.learner.updater import EagerUpdater, Losses
from lrl.preflight.machine import check_compiler
from lrl.types import Batch, ConfigError

pytestmark = quiet


def test_importance_weights_scale_the_rows():
    module = make_module(WORKLOADS["mlp"], Side())
    batch = make_batch(WORKLOADS["mlp"], seed=0)
    batch.weights.uniform_()
    loss, td = module.updater.losses(batch)
    assert loss.item() == pytest.approx((batch.weights * td.loss).mean().item())
    assert td.priority.shape == batch.weights.shape


_COMPARED = """
import os, sys
import torch
from benchmark.parts.learner import Side, make_module
from lrl.bench.workloads import WORKLOADS, make_batch
from lrl.learner.updater import CompiledUpdater, EagerUpdater
from benchmark.leftovers import descendants

workload = WORKLOADS[sys.argv[1]]
module, batch = make_module(workload, Side()), make_batch(workload, seed=0)
gradients, results = [], []
for kind in (EagerUpdater, CompiledUpdater):
    module.zero_grad()
    loss, td = kind(module).losses(batch)
    loss.backward()
    gradients.append([p.grad.clone() for p in module.online.parameters()])
    results.append([loss.detach(), td.priority])
torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
assert not descendants(os.getpid())
print("the same")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["mlp", "c51"])
def test_compiled_it_is_the_same_and_leaves_no_process(name):
    # Elsewhere: torch cannot compile what these tests check the types of.
    command = [sys.executable, "-c", _COMPARED, name]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "the same\n", ended.stderr


class CountedLoss(DQN):
    calls = 0

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        self.calls += 1
        return super().compute_loss(batch, next_values)


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_learns_by_the_compiled_loss_if_asked_to(tmp_path, monkeypatch, asked):
    compiled = []

    def compile_function(function: Any) -> Any:
        return lambda *arguments: (compiled.append(arguments), function(*arguments))[1]

    monkeypatch.setattr(torch, "compile", compile_function)
    agent = CountedLoss(updater="compiled" if asked else "eager")
    run = make_run(tmp_path, module=agent, max_steps=3).fit()
    assert len(compiled) == (3 if asked else 0)
    assert agent.calls == 3  # a loss of your own is compiled, too
    unpickled = pickle.loads(pickle.dumps(run.module))  # nobody can pickle what is compiled
    assert type(unpickled.updater) is EagerUpdater


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    module = make_module(WORKLOADS["mlp"], Side())
    with pytest.raises(ConfigError, match=r"there is no C\+\+ compiler (g\+\+|clang\+\+|cl):"):
        check_compiler(module.device)
    monkeypatch.setenv("CXX", "/missing")
    with pytest.raises(ConfigError, match="compiler /missing"):
        check_compiler(module.device)


@pytest.mark.skipif(sys.platform == "win32", reason="has no executable scripts")
@pytest.mark.parametrize("content", ["", "#!/bin/sh\nexit 1\n"])
def test_a_compiler_that_does_not_work_is_named(monkeypatch, tmp_path, content):
    compiler = tmp_path / "compiler"
    compiler.write_text(content)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ConfigError, match=f"{compiler} --version` fails.: install one"):
        check_compiler(torch.device("cpu"))
