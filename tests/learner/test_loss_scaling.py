"""`16-mixed` on the CPU: gradients are measured and clipped without the scale of the loss."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from helpers.tiny_networks import linear_dqn, make_batch, matrix_of, set_weights
from helpers.trainers import Recorder, train
from lightning.pytorch.plugins.precision import MixedPrecision

from lrl.types import Batch, EnvSpec

SCALE = 2.0**10


def half_precision(scale: float = SCALE) -> MixedPrecision:
    """Return what `precision: 16-mixed` is on a GPU, for the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return MixedPrecision("16-mixed", device="cpu", scaler=scaler)


def steep_batch() -> Batch:
    """The gradient is (3, 4) and 1 at the bias of action 0: its norm is sqrt(26)."""
    return make_batch([[3.0, 4.0]], [0], [-100.0], [0.0], [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ({}, [-3.0, -4.0, -1.0]),
        ({"gradient_clip_val": math.sqrt(26) / 2}, [-1.5, -2.0, -0.5]),
        (
            {"gradient_clip_val": 3.5, "gradient_clip_algorithm": "value"},
            [-3.0, -3.5, -1.0],
        ),
    ],
    ids=["none", "norm", "value"],
)
@pytest.mark.parametrize("fused", [False, True])
def test_clipping_knows_no_scale(
    tiny_spec: EnvSpec, fused: bool, clipping: dict[str, Any], expected: list[float]
):
    optimizer = functools.partial(torch.optim.SGD, lr=1.0, fused=fused)
    agent = linear_dqn(tiny_spec, optimizer=optimizer)
    set_weights(agent.online, [[0.0, 0.0], [0.0, 0.0]])
    train(agent, [steep_batch()], log_every_n_steps=1, plugins=half_precision(), **clipping)
    linear = matrix_of(agent.online)
    moved = [*linear.weight[0].tolist(), linear.bias[0].item()]
    assert moved == pytest.approx(expected, rel=1e-2)
    assert agent.statistics["train/grad_norm"].item() == pytest.approx(math.sqrt(26), rel=1e-2)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scale_too_large_skips_the_step_and_goes_on(tiny_spec: EnvSpec, fused: bool):
    """The scaled gradients are infinite, which is the scaler's to mend, not the end of the run."""
    optimizer = functools.partial(torch.optim.Adam, lr=1e-3, fused=fused)
    agent = linear_dqn(tiny_spec, optimizer=optimizer)
    recorder, plugin = Recorder(), half_precision(scale=2.0**17)
    train(agent, [steep_batch()] * 6, recorder, plugins=plugin, gradient_clip_val=1.0)
    moved = [
        not torch.equal(before[0], after[0])
        for before, after in zip(recorder.online, recorder.online[1:], strict=False)
    ]
    assert not moved[0]
    assert moved[-1]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in recorder.online[-1])
    assert plugin.scaler is not None
    assert plugin.scaler.get_scale() < 2.0**17
