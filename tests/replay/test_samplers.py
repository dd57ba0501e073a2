from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.replay_rows import episode, filled

from lrl.replay import Sampler, Transitions, UniformSampler


class RecordingSampler(UniformSampler):
    needs_priorities = True

    def __init__(self) -> None:
        self.updates: list[tuple[list, list]] = []

    def attach(self, transitions: Transitions) -> None:
        self.transitions = transitions

    def rows_changed(self, added: np.ndarray, removed: np.ndarray) -> None:
        pass

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.updates.append((keys.tolist(), priorities.tolist()))


def test_priorities_reach_the_sampler_as_they_are() -> None:
    sampler = RecordingSampler()
    buffer = filled(episode([1.0] * 10), sampler=sampler)
    assert buffer.needs_priorities
    assert sampler.transitions.streams is buffer.streams
    keys = torch.tensor([[0, 1], [0, 7], [0, 18]])
    buffer.update_priorities(keys, torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert sampler.updates == [([[0, 1], [0, 7], [0, 18]], [1.0, 2.0, 3.0])]


def test_uniform_ignores_priorities() -> None:
    buffer = filled(episode([1.0] * 3))
    assert not buffer.needs_priorities
    before = buffer.state_dict()
    buffer.update_priorities(torch.tensor([[0, 0]]), torch.tensor([1.0]))
    assert torch.equal(before["generator"], buffer.state_dict()["generator"])
    assert buffer.metrics() == {}


@pytest.mark.parametrize(
    ("method", "arguments"), [("attach", 1), ("rows_changed", 2), ("update_priorities", 2)]
)
def test_a_sampler_must_do_what_it_announces(method: str, arguments: int) -> None:
    class Careless(Sampler):
        needs_priorities = True

        def sample(self, transitions, batch_size, generator):
            raise AssertionError

    with pytest.raises(NotImplementedError, match=f"Careless .* define {method}"):
        getattr(Careless(), method)(*[None] * arguments)


def test_a_run_may_go_on_with_uniform_sampling() -> None:
    sampler = UniformSampler()
    sampler.load_state_dict({"batches": 7, "priority_max": 3.0})  # of a prioritised one
    assert sampler.state_dict() == {}
