"""What `CompiledUpdater` compiles is one graph, compiled once: nothing branches on numbers."""

from __future__ import annotations

import functools
from typing import Any

import jaxtyping
import pytest
import torch
from helpers.heads import HEADS
from helpers.tiny_networks import random_batch
from torch._dynamo.exc import Unsupported

from lrl import DQN
from lrl.learner import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap, NoBootstrap
from lrl.learner.updater import CompiledUpdater, Losses
from lrl.networks import MLPEncoder
from lrl.types import Batch, EnvSpec

RULES = (MaxBootstrap, DoubleBootstrap, MunchausenBootstrap, NoBootstrap)
COMPILE = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


@pytest.fixture(autouse=True)
def compiled_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to one graph or not at all, without C++; torch cannot compile checks of shapes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(torch, "compile", COMPILE)
    torch.compiler.reset()


def learner(spec: EnvSpec, kind: type[DQN] = DQN, **settings: Any) -> Any:
    """Return what makes a learner step of so many rows by a compiled loss."""
    encoder = functools.partial(MLPEncoder, hidden_sizes=(8,))
    agent = kind(encoder, env_spec=spec, **settings)
    updater, optimizer = CompiledUpdater(agent), agent.configure_optimizers()

    def step(rows: int) -> None:
        optimizer.zero_grad()
        updater.losses(random_batch(rows, seed=rows)).loss.backward()
        optimizer.step()
        agent.update_target()

    return step


@pytest.mark.parametrize("head", HEADS)
def test_a_loss_is_compiled_once_and_once_more_for_batches_of_all_sizes(
    tiny_spec: EnvSpec, head: str
):
    step = learner(
        tiny_spec, head=HEADS[head], bootstrap=RULES[list(HEADS).index(head) % len(RULES)]
    )
    step(8)
    with torch.compiler.set_stance("fail_on_recompile"):
        step(8)
        step(8)
    step(6)
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (5, 7, 8, 6):
            step(rows)


class Branching(DQN):
    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        return losses if losses.loss < 1e9 else losses._replace(loss=losses.loss * 0)


class Counting(DQN):
    """Uses a number of Python that changes, and is baked in."""

    calls = 0

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        self.calls += 1
        return losses._replace(loss=losses.loss * 0.5**self.calls)


def test_a_number_that_is_looked_at_breaks_the_graph(tiny_spec: EnvSpec):
    """One that is only computed with, as by `.item()`, does not: the compiler takes it along."""
    with pytest.raises(Unsupported, match=r"[Dd]ata-dependent"):
        learner(tiny_spec, Branching)(8)


def test_a_number_that_changes_has_it_compiled_again(tiny_spec: EnvSpec):
    step = learner(tiny_spec, Counting)
    step(8)
    with (
        pytest.raises(RuntimeError, match="recompile"),
        torch.compiler.set_stance("fail_on_recompile"),
    ):
        step(8)
