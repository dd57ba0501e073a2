"""A learner step on torch's fake tensors, which know devices and no numbers.

They lie on `meta`: torch without CUDA ends the process at the gradient of one on `cuda`. What waits
or mixes devices has to be found there and on the pretended GPU, two judges of different makers.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from helpers.heads import HEADS
from helpers.tiny_networks import random_batch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from lrl import DQN
from lrl.doctor.pretended_gpu import PretendedGpu
from lrl.learner import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
    NoBootstrap,
)
from lrl.learner.captured import CapturedUpdater
from lrl.learner.updater import Losses
from lrl.networks import MLPEncoder
from lrl.types import Batch, EnvSpec

RULES = (MaxBootstrap, DoubleBootstrap, MunchausenBootstrap, NoBootstrap)


def fake(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def step(agent: DQN, monkeypatch: pytest.MonkeyPatch) -> Sequence[Tensor]:
    """Make a whole learner step of fake tensors, and move the target network."""
    optimizer = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    batch = random_batch()
    with FakeTensorMode():
        for module in agent.modules():
            for name, weight in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(fake(weight), weight.requires_grad))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, fake(buffer))
        updater = CapturedUpdater(agent)
        updater._optimizer = agent.configure_optimizers()
        found = updater._step(batch.sent(lambda cs: {name: fake(c) for name, c in cs.items()}))
        agent.update_target()
    return found


def build(
    spec: EnvSpec, kind: type[DQN] = DQN, head: str = "scalar", rule: type[BootstrapRule] = RULES[0]
) -> DQN:
    return kind(
        functools.partial(MLPEncoder, hidden_sizes=(8,)),
        HEADS[head],
        rule,
        functools.partial(torch.optim.Adam, fused=True),
        gradient_clip_norm=1.0,
        updater="captured",
        env_spec=spec,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", HEADS)
def test_a_learner_step_needs_no_number_and_one_device(
    tiny_spec: EnvSpec, monkeypatch: pytest.MonkeyPatch, head: str, rule: type[BootstrapRule]
):
    loss, norm, *td = step(build(tiny_spec, DQN, head, rule), monkeypatch)
    assert [loss.shape, norm.shape, *(part.shape for part in td)] == [(), (), *[(8,)] * 4]
    assert {each.device.type for each in (loss, norm, *td)} == {"meta"}


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: 1 if x.any() else 0,
    "flags": lambda x: x[x > 0],
    "allclose": lambda x: x.allclose(x),
    "a fill value": lambda x: torch.full((2,), cast(Any, x[0]), device=x.device),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "how many classes": lambda x: functional.one_hot(x.long()),
    "made on the host": lambda x: x * torch.ones(8),
    "left on the host": lambda x: functional.mse_loss(x, torch.zeros(8)),
    "made alike on the host": lambda x: torch.zeros_like(x, device="cpu") + x,
    "put from the host": lambda x: x.clone().index_put_((x.long(),), torch.ones(8)),
    "gathered by the host": lambda x: x.gather(0, torch.arange(8)),
    "counted up on the host": lambda x: torch.tensor(0.0).add_(x.sum()),
}
SOUND: dict[str, Callable[[Tensor], object]] = {
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "made there": lambda x: x * torch.ones(8, device=x.device),
    "made alike": lambda x: torch.full_like(x, 2.0) + x.new_zeros(8),
    "classes": lambda x: functional.one_hot(x.long(), 3) * x.unsqueeze(-1),
    "repeated to a length": lambda x: x.repeat_interleave(x.long(), output_size=8),
    "put": lambda x: x.clone().index_put_((x.long(),), torch.tensor(1.0)),
}


class Doing(DQN):
    """Does something with its losses."""

    what: Callable[[Tensor], object] = torch.ones_like

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        type(self).what(torch.ones_like(losses.td.loss))
        return losses


@pytest.mark.parametrize("name", [*FAULTS, *SOUND])
def test_fake_tensors_refuse_a_fault_in_the_loss(
    tiny_spec: EnvSpec, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(Doing, "what", staticmethod({**FAULTS, **SOUND}[name]))
    refused = pytest.raises(RuntimeError, match=r"^aten\.|device")
    with refused if name in FAULTS else contextlib.nullcontext():
        step(build(tiny_spec, Doing), monkeypatch)


@pytest.mark.parametrize("name", [*FAULTS, *SOUND])
def test_the_pretended_gpu_judges_as_fake_tensors_do(name: str):
    with PretendedGpu() as gpu:
        tensor = torch.ones(8, device="cuda")
        try:
            {**FAULTS, **SOUND}[name](tensor)
            is_found = gpu.count("read") > 0
        except RuntimeError as error:
            is_found = "some tensors are on cuda:0" in str(error)
    assert is_found == (name in FAULTS)
