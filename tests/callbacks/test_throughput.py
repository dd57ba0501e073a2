"""The speeds and counts that are logged, by a clock that moves only when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import pytest
from helpers.training_runs import make_run, quiet, small_data

from lrl import DQN, ReplayDataModule
from lrl.actors.handle import ActorStatistics
from lrl.callbacks import Throughput
from lrl.learner.datamodule import dataset_of
from lrl.learner.dataset import ReplayDataset
from lrl.networks import QNetwork
from lrl.pools.pool import ActorPool, Delivery, Episode, PoolCounts
from lrl.replay import Replay
from lrl.types import EnvSpec, RowKind, Rows

pytestmark = quiet

WAIT, OPTIMISE, OTHER = 0.5, 0.1, 0.08  # seconds: of two environment steps, an update, the rest
SAMPLE = (0.02, 0.02, 0.06)  # seconds to draw a batch, before the first row, the second, the third
WAITING = (0.0, 0.25, 0.75)  # share of its time that the second actor waits; the first never does
FILL = (0.0, 0.25, 1.0)
RESUMED = 1000  # environment steps of an earlier session


class Clock:
    """The seconds of this test, and the row of metrics that they lead to."""

    def __init__(self) -> None:
        self.now = 50.0
        self.row = 0

    def __call__(self) -> float:
        return self.now


class ScriptedPool(ActorPool):
    """Two environment steps, a row that is none, and an episode, each time it is waited for."""

    def __init__(self, spec: EnvSpec, clock: Clock) -> None:
        self.spec = spec
        self.clock = clock
        self.seconds = self.waited = 0.0
        self.episodes = 0

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        raise NotImplementedError

    def poll(self, timeout: float) -> Iterator[Delivery]:
        if timeout == 0:
            return
        self.clock.now += WAIT
        self.seconds += WAIT
        self.waited += WAIT * WAITING[self.clock.row]
        step, gap = RowKind.STEP, RowKind.GAP
        rows = Rows(
            stream=np.array([0, 1, 1], np.int32),
            kind=np.array([step, step, gap], np.uint8),
            frame=self.spec.observation[""].filled(3),
            action=np.zeros(3, np.int32),
            reward=np.zeros(3, np.float32),
            terminated=np.array([True, True, False]),  # so that one row may be sampled alone
            truncated=np.zeros(3, bool),
            policy_version=np.array([10, 20, 0]),
        )
        self.episodes += 1
        yield Delivery([rows], [Episode(self.episodes - 1.0, 9, 0.5)])

    def close(self, take: Callable[[Delivery], object]) -> None:
        pass

    def counts(self) -> PoolCounts:
        actors = [
            ActorStatistics(0, 10, 10, 1, seconds=self.seconds, wait_seconds=0.0, restarts=3),
            ActorStatistics(1, 10, 10, 1, self.seconds, self.waited, 0),
        ]
        return PoolCounts(actors, restarts=3, rows_dropped=7, queue_fill=FILL[self.clock.row])


class Learner(DQN):
    """Takes a tenth of a second for a batch."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.now += OPTIMISE
        return super().training_step(batch, batch_idx)


class Others(L.Callback):
    """An earlier session's count, and callbacks that take time after the row is logged."""

    def __init__(self, clock: Clock, batches_per_row: int) -> None:
        self.clock = clock
        self.batches_per_row = batches_per_row

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        dataset_of(trainer).replay.env_steps = RESUMED

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.clock.now += OTHER
        dataset = dataset_of(trainer)
        self.clock.row = min(dataset.batches // self.batches_per_row, 2)


def logged(folder: Any, monkeypatch: Any, accumulated: int = 1) -> list[dict[str, float]]:
    """Rows of the learner steps 4, 8 and 12.

    A batch of 8 costs two environment steps at 4 samples a step, after 20 to warm up.
    """
    clock, sample, make_spec = Clock(), Replay.sample, ReplayDataModule.env_spec.fget
    assert make_spec is not None

    def slow_sample(self: Replay, *args: Any) -> Any:
        clock.now += SAMPLE[clock.row]
        return sample(self, *args)

    def env_spec(self: ReplayDataModule) -> EnvSpec:
        return replace(make_spec(self), frame_skip=4)

    monkeypatch.setattr(Replay, "sample", slow_sample)
    monkeypatch.setattr(ReplayDataModule, "env_spec", property(env_spec))

    def start_pool(self: ReplayDataModule, dataset: ReplayDataset) -> ActorPool:
        dataset.learner_steps = lambda: 25
        return ScriptedPool(self.env_spec, clock)

    monkeypatch.setattr(ReplayDataModule, "_start_pool", start_pool)
    run = make_run(
        folder,
        Throughput(),
        Others(clock, 4 * accumulated),
        module=Learner(clock),
        data=small_data("lrl/Identity-v0"),
        max_steps=12,
        limit_train_batches=12 * accumulated,
        accumulate_grad_batches=accumulated,
        log_every_n_steps=4,
    )
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "monotonic", clock)
    run.fit()
    return [{name: float(value) for name, value in row.items()} for row in run.metrics()]


def test_every_speed_is_that_since_the_row_before(tmp_path, monkeypatch):
    first, second, third = logged(tmp_path, monkeypatch)

    # 10 waits for the warm-up and 4 for batches; the time after the fourth is the next row's.
    seconds = 14 * WAIT + 4 * (SAMPLE[0] + OPTIMISE) + 3 * OTHER
    assert seconds == pytest.approx(7.72)
    assert first["speed/env_steps_per_second"] == pytest.approx(28 / 7.72)
    assert first["speed/learner_steps_per_second"] == pytest.approx(4 / 7.72)
    assert first["speed/learner_wait_fraction"] == pytest.approx(7.0 / 7.72)
    assert first["speed/actor_wait_fraction"] == 0.0
    assert first["speed/sample_ms"] == pytest.approx(20.0)
    assert first["speed/optimise_ms"] == pytest.approx(100.0)

    # Four times 0.5 + 0.02 + 0.1 + 0.08 s.
    assert second["speed/env_steps_per_second"] == pytest.approx(8 / 2.8)
    assert second["speed/learner_steps_per_second"] == pytest.approx(4 / 2.8)
    assert second["speed/learner_wait_fraction"] == pytest.approx(2.0 / 2.8)
    assert second["speed/actor_wait_fraction"] == pytest.approx(
        0.5 / 4.0
    )  # four waits of two actors
    assert second["speed/sample_ms"] == pytest.approx(20.0)
    assert second["speed/optimise_ms"] == pytest.approx(100.0)

    # Four times 0.5 + 0.06 + 0.1 + 0.08 s.
    assert third["speed/env_steps_per_second"] == pytest.approx(8 / 2.96)
    assert third["speed/learner_steps_per_second"] == pytest.approx(4 / 2.96)
    assert third["speed/learner_wait_fraction"] == pytest.approx(2.0 / 2.96)
    assert third["speed/actor_wait_fraction"] == pytest.approx(1.5 / 4.0)
    assert third["speed/sample_ms"] == pytest.approx(60.0)
    assert third["speed/optimise_ms"] == pytest.approx(100.0)


def test_what_comes_from_the_actors_is_logged_as_it_is(tmp_path, monkeypatch):
    rows = logged(tmp_path, monkeypatch)
    for row, env_steps, fill in zip(rows, (28, 36, 44), FILL, strict=True):
        assert row["transport/queue_fill"] == fill
        assert row["speed/samples_per_insert"] == 4.0
        assert row["count/env_steps"] == RESUMED + env_steps
        assert row["count/frames"] == 4 * (RESUMED + env_steps)
        assert row["count/rows_received"] == env_steps * 3 / 2
        assert row["count/rows_dropped"] == 7
        assert row["count/actor_restarts"] == 3
        episodes = env_steps // 2  # one in each time of waiting; they return 0, 1, 2 and so on
        assert row["rollout/episodes"] == episodes
        assert row["rollout/return_mean"] == (episodes - 1) / 2
        assert row["rollout/length_mean"] == 9
        assert row["sync/policy_lag_mean"] == 10  # of the rows that are steps, 15 and 5


def test_an_accumulated_gradient_is_one_learner_step(tmp_path, monkeypatch):
    _, second, _ = logged(tmp_path, monkeypatch, accumulated=2)
    assert second["speed/learner_steps_per_second"] == pytest.approx(4 / 5.6)
    assert second["speed/learner_wait_fraction"] == pytest.approx(4.0 / 5.6)
    assert second["speed/sample_ms"] == pytest.approx(40.0)
    assert second["speed/optimise_ms"] == pytest.approx(200.0)
