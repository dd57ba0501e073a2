"""A tape does again what a function did, and refuses what depends on numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lrl.parts.tape import Tape, TapeError


def learner(network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(inputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        noisy = inputs + torch.randn_like(inputs)
        loss = (network(noisy) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    return step


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.Adam, {"lr": 0.01, "fused": True}),
        (torch.optim.AdamW, {"lr": 0.01, "fused": True, "amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    ],
)
def test_a_learner_that_is_repeated_equals_one_that_goes_on(kind: Any, settings: dict[str, Any]):
    """Bit for bit over 100 steps, with random numbers, batch norm and a mean of its own."""

    def losses(is_taped: bool) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        step = learner(network, kind(network.parameters(), **settings))
        found: list[Tensor] = []
        tape = None
        for _ in range(100):
            batch = [torch.randn(16, 4), torch.randn(16, 2)]
            if tape is not None:
                found += tape(batch)
            elif is_taped and found:
                tape = Tape(step, batch)
                found += tape.outputs
            else:
                found += step(*batch)
        return found, list(network.state_dict().values())

    torch.testing.assert_close(losses(True), losses(False), rtol=0, atol=0)


def test_a_number_of_python_stays_what_it_was():
    """As in a CUDA graph: so it is found where a step was baked in."""
    rate = 1.0
    tape = Tape(lambda x: (rate * x,), [torch.ones(1)])
    rate = 2.0
    assert tape([torch.ones(1)])[0] == 1.0


def test_results_of_all_kinds_are_passed_on():
    def function(x: Tensor, flags: Tensor) -> tuple[Tensor, ...]:
        values, indices = x.sort(dim=1)
        left, right = values.chunk(2, dim=1)
        joined = torch.cat([left, right, torch.ones(2, 1)], dim=1)
        joined[:, 0].add_(10)
        joined.transpose_(0, 1)
        return joined, indices.where(flags, -1), x, torch.tensor(3)

    first = [torch.tensor([[2.0, 1.0], [3.0, 4.0]]), torch.tensor([[True, False], [True, True]])]
    second = [torch.tensor([[5.0, 6.0], [8.0, 7.0]]), torch.tensor([[False, True], [True, True]])]
    tape = Tape(function, first)
    for inputs in (second, first, second):
        torch.testing.assert_close(tape(inputs), function(*inputs), rtol=0, atol=0)
    torch.testing.assert_close(tape.outputs, function(*first), rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x if x.equal(x) else -x,
        lambda x: x if x.allclose(x) else -x,
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x[(x > 0).to(torch.uint8)],
        lambda x: x.long().bincount(),
        lambda x: x * x.tolist()[0],
        lambda x: x * float(x.numpy().sum()),
        lambda x: x * float(np.asarray(x).sum()),
    ],
)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_what_depends_on_numbers_is_refused(function: Any):
    with pytest.raises(TapeError, match=r"aten\..* waits for numbers|gives numbers away"):
        Tape(lambda x: (function(x),), [torch.ones(3)])
    assert torch.ones(3).tolist() == [1.0, 1.0, 1.0]  # elsewhere it is as before


def test_a_length_that_is_given_needs_no_number():
    def function(x: Tensor, counts: Tensor) -> tuple[Tensor]:
        return (x.repeat_interleave(counts, output_size=3),)

    tape = Tape(function, [torch.ones(2), torch.tensor([2, 1])])
    (found,) = tape([torch.tensor([5.0, 7.0]), torch.tensor([1, 2])])
    assert found.tolist() == [5.0, 7.0, 7.0]


def test_a_new_constant_is_new_each_time():
    def function(x: Tensor) -> tuple[Tensor]:
        total = torch.tensor(0.0)
        return (total.add_(x.sum()),)

    tape = Tape(function, [torch.ones(3)])
    assert [tape([torch.ones(3)])[0].item() for _ in range(3)] == [3.0, 3.0, 3.0]


def test_types_are_those_that_were_recorded():
    """Autocast chose them; at a region without it, too."""
    weight = torch.full((3, 3), 1 / 3)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        low = x @ weight
        with torch.autocast("cpu", enabled=False):
            return low, x @ weight

    inputs = [torch.full((3, 3), 1 / 3)]
    with torch.autocast("cpu", torch.bfloat16):
        tape = Tape(function, inputs)
        expected, found = function(*inputs), tape(inputs)
    assert [tensor.dtype for tensor in found] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
