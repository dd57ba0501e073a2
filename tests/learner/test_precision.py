"""Every head learns in bfloat16: numbers stay finite, and weights stay float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from helpers.tiny_networks import FlatEncoder
from helpers.training_runs import make_run, quiet, small_agent, small_data

from lrl import DQN, ReplayConfig, SequenceConfig
from lrl.learner import MunchausenBootstrap
from lrl.learner.datamodule import dataset_of
from lrl.networks import (
    CategoricalHead,
    GRUCore,
    ImplicitQuantileHead,
    LSTMCore,
    QuantileHead,
    ScalarHead,
)
from lrl.replay import PrioritizedSampler
from lrl.types import EnvSpec

pytestmark = quiet

AGENTS = {
    "scalar": {"head": ScalarHead},
    "dueling": {"head": functools.partial(ScalarHead, dueling=True)},
    "munchausen": {"bootstrap": MunchausenBootstrap},
    "c51": {"head": CategoricalHead},
    "qr": {"head": QuantileHead},
    "iqn": {"head": functools.partial(ImplicitQuantileHead, hidden_size=8, noisy=True)},
    "lstm": {"core": functools.partial(LSTMCore, hidden_size=8)},
    "gru": {"core": functools.partial(GRUCore, hidden_size=8)},
}


@pytest.mark.parametrize("updates_per_step", [1, 5])
@pytest.mark.parametrize("name", AGENTS)
def test_a_run_in_bfloat16(tmp_path, name, updates_per_step):
    fused = functools.partial(torch.optim.Adam, lr=1e-3, fused=True)
    clip: dict[str, Any] = {} if updates_per_step > 1 else {"gradient_clip_val": 1.0}
    cut = SequenceConfig(4, 2, burn_in=3) if "core" in AGENTS[name] else None
    replay = ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler, sequences=cut)
    run = make_run(
        tmp_path,
        module=small_agent(optimizer=fused, updates_per_step=updates_per_step, **AGENTS[name]),
        data=small_data(replay=replay),
        precision="bf16-mixed",
        **clip,
    )
    run.trainer.fit(run.module, datamodule=run.data)
    assert {tensor.dtype for tensor in run.module.state_dict().values()} == {torch.float32}
    rows = [row for row in run.metrics() if "train/loss" in row]
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20]
    losses = [float(row[key]) for row in rows for key in ("train/loss", "train/grad_norm")]
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)
    assert 0 < dataset_of(run.trainer).replay.metrics()["replay/priority_max"] < math.inf
    saved = torch.load(run.checkpoint("last"), weights_only=True)["state_dict"]
    assert all(torch.equal(saved[key], value) for key, value in run.module.state_dict().items())


@pytest.mark.parametrize("name", AGENTS)
def test_values_have_32_bits(name):
    """In 8 bits rescaled values learnt three times the return: their errors add up over steps."""
    settings = {"encoder": FlatEncoder, **AGENTS[name]}
    network = DQN(env_spec=EnvSpec.box((3,), "float32", 2), **settings).online
    memory = {n: torch.zeros(5, *c.shape) for n, c in network.memory.items()} or None
    with torch.autocast("cpu", torch.bfloat16):
        values = network(torch.rand(5, 3), memory)
    for each in values if isinstance(values, tuple) else (values,):
        assert each.dtype == torch.float32
