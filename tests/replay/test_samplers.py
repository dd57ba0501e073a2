from __future__ import annotations

import numpy as np
import pytest
import torch
from replay_rows import episode, filled, pack

from lrl.replay import Sampler, UniformSampler


class RecordingSampler(UniformSampler):
    needs_priorities = True

    def __init__(self) -> None:
        self.updates: list[tuple[list, list]] = []

    def rows_changed(self, added: np.ndarray, removed: np.ndarray) -> None:
        pass

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.updates.append((keys.tolist(), priorities.tolist()))


def test_priorities_of_rows_that_are_not_stored_are_dropped() -> None:
    sampler = RecordingSampler()
    buffer = filled(episode([1.0] * 10, end="open"), capacity=10, sampler=sampler)
    assert buffer.needs_priorities
    keys = torch.tensor([[0, 1], [0, 7], [0, 18]])  # overwritten, stored, not yet written
    buffer.append(pack([(0, row) for row in episode([1.0] * 5, end="open")]))
    buffer.update_priorities(keys, torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert sampler.updates == [([[0, 7]], [2.0])]


def test_uniform_ignores_priorities() -> None:
    buffer = filled(episode([1.0] * 3))
    assert not buffer.needs_priorities
    before = buffer.state_dict()
    buffer.update_priorities(torch.tensor([[0, 0]]), torch.tensor([1.0]))
    assert torch.equal(before["generator"], buffer.state_dict()["generator"])


def test_a_sampler_must_do_what_it_announces() -> None:
    class Careless(Sampler):
        needs_priorities = True

        def sample(self, transitions, batch_size, generator):
            raise AssertionError

    with pytest.raises(NotImplementedError, match=r"Careless .* define rows_changed"):
        filled(episode([1.0]), sampler=Careless())
    with pytest.raises(ValueError, match="has no state"):
        UniformSampler().load_state_dict({"beta": 1.0})
