from __future__ import annotations

import numpy as np
import torch
from helpers.replay_rows import episode, filled

from lrl.replay import TrackingSampler, UniformSampler, Windows


class RecordingSampler(UniformSampler, TrackingSampler):
    def __init__(self) -> None:
        self.updates: list[tuple[list, list]] = []

    def attach(self, windows: Windows) -> None:
        self.windows = windows

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.updates.append((keys.tolist(), priorities.tolist()))


def test_priorities_reach_the_sampler_as_they_are() -> None:
    sampler = RecordingSampler()
    buffer = filled(episode([1.0] * 10), sampler=sampler)
    assert buffer.needs_priorities
    assert sampler.windows.streams is buffer.streams
    keys = torch.tensor([[0, 1], [0, 7], [0, 18]])
    buffer.learnt(keys, torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert sampler.updates == [([[0, 1], [0, 7], [0, 18]], [1.0, 2.0, 3.0])]


def test_uniform_ignores_priorities() -> None:
    buffer = filled(episode([1.0] * 3))
    assert not buffer.needs_priorities
    before = buffer.state(with_rows=False)
    buffer.learnt(torch.tensor([[0, 0]]), torch.tensor([1.0]))
    assert torch.equal(before["generator"], buffer.state(with_rows=False)["generator"])
    assert buffer.metrics() == {"replay/size": 3.0}


def test_every_sampler_is_shown_its_rows_and_need_do_nothing_with_them() -> None:
    class Shown(UniformSampler):
        def attach(self, windows: Windows) -> None:
            self.windows = windows

    sampler = Shown()
    buffer = filled(episode([1.0] * 3), sampler=sampler)
    assert sampler.windows.streams is buffer.streams
    assert not buffer.needs_priorities

    class Idle(UniformSampler, TrackingSampler):
        pass

    buffer = filled(episode([1.0] * 3), sampler=Idle())
    assert buffer.needs_priorities
    buffer.learnt(torch.tensor([[0, 0]]), torch.tensor([1.0]))
    assert buffer.sample(4).weights.tolist() == [1.0] * 4


def test_a_run_may_go_on_with_uniform_sampling() -> None:
    sampler = UniformSampler()
    sampler.restore({"batches": 7, "priority_max": 3.0})  # of a prioritised one
    assert sampler.state(with_rows=False) == {}
