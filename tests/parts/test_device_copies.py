"""Copies between host and GPU, and a learner there that waits for none of them."""

from __future__ import annotations

import functools
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import (
    AfterEachStep,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
)

from benchmark.parts.replay import ATARI, NUM_STREAMS, make_chunk
from lrl import ActorLearnerCallback, ReplayConfig
from lrl.callbacks import PriorityUpdate, WeightSync
from lrl.parts.device_copies import HostCopy, to_device
from lrl.replay import PrioritizedSampler, Replay

pytestmark = quiet

every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


@every_device
def test_there_and_back(device: str):
    there = to_device(torch.arange(5), torch.device(device))
    assert there.device.type == device
    copy = HostCopy.of(2 * there.to(torch.float32).requires_grad_()).get()
    assert copy.device.type == "cpu"
    assert not copy.requires_grad
    assert copy.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


@every_device
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_draws_the_same_wherever_its_frames_are(device: str, n_step: int):
    rng = np.random.default_rng(0)
    replays = [
        Replay(ATARI, 400, NUM_STREAMS, n_step=n_step, sampler=PrioritizedSampler(), device=name)
        for name in ("cpu", device)
    ]
    for first in range(0, 80, 8):
        rows = make_chunk(rng, first)
        for replay in replays:
            replay.add(rows)
    here, there = (replay.sample(32) for replay in replays)
    for name, tensor in vars(there).items():
        if tensor is not None:
            assert tensor.device.type == ("cpu" if name == "keys" else device), name
            assert torch.equal(tensor.cpu(), getattr(here, name)), name


PRIORITISED = ReplayConfig(capacity=2000, batch_size=8, sampler=PrioritizedSampler)


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("updates", [1, 3])
def test_priorities_may_come_later_but_come_in_order(tmp_path, monkeypatch, lag: int, updates: int):
    made, arrived, lags = [], [], []
    update = Replay.learnt
    agent: Any = small_agent(updates_per_step=updates)
    look_at = agent.look_at

    def note(self: Replay, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        parts = zip(keys.split(8), priorities.split(8), strict=True)  # of one update each
        arrived.extend((part.tolist(), of_part.tolist()) for part, of_part in parts)
        update(self, keys, priorities)

    def look(batch: Any, losses: Any) -> None:
        made.append((batch.keys.tolist(), losses.td.priority.tolist()))
        look_at(batch, losses)

    monkeypatch.setattr(Replay, "learnt", note)
    agent.look_at = look
    callback = PriorityUpdate()
    callback.lag_batches = lag  # as on a GPU
    make_run(
        tmp_path,
        callback,
        WeightSync(),
        AfterEachStep(lambda *_: lags.append(len(made) - len(arrived))),
        module=agent,
        data=small_data(replay=PRIORITISED),
        max_steps=12,
        log_every_n_steps=12,
    ).fit()
    steps = 12 // updates
    assert arrived == made[: 12 - lag * updates]
    assert lags == [updates * min(step, lag) for step in range(1, steps + 1)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("sampler", [None, PrioritizedSampler])
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize(
    ("updater", "device"), [("eager", "cpu"), ("eager", "cuda"), ("captured", "cuda")]
)
def test_a_learner_on_a_gpu_waits_for_no_copy(
    tmp_path, sampler: Any, updates: int, updater: Any, device: str
):
    def forbid(trainer: L.Trainer, batch: Any) -> None:
        watched = 20 <= trainer.global_step < 60
        torch.cuda.set_sync_debug_mode("error" if watched else "default")

    settings = {} if sampler is None else {"sampler": sampler}
    run = make_run(
        tmp_path,
        ActorLearnerCallback(1000, 0, 0),
        AfterEachStep(forbid),
        module=small_agent(
            updates_per_step=updates,
            updater=updater,
            optimizer=functools.partial(torch.optim.Adam, lr=1e-3, fused=True),
            lr_scheduler=functools.partial(torch.optim.lr_scheduler.LinearLR, total_iters=80),
        ),
        data=small_data(
            actors=background(1),
            replay=ReplayConfig(capacity=2000, batch_size=8, device=device, **settings),
        ),
        accelerator="gpu",
        devices=1,
        max_steps=80,
        log_every_n_steps=1000,
    )
    try:
        run.fit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.trainer.global_step == 80
