"""The stream of batches: when it waits, for whom, and what it counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import AfterEachStep, Run, make_run, quiet, small_data
from torch.utils.data import DataLoader

from lrl import ActorLearnerCallback
from lrl.actors.config import ActorConfig
from lrl.actors.manager import ActorError
from lrl.actors.slot import ActorSlot
from lrl.learner.datamodule import dataset_of
from lrl.learner.dataset import ReplayDataset
from lrl.learner.statistics import RolloutStatistics
from lrl.networks import QNetwork
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool, Delivery
from lrl.pools.processes import ProcessPool
from lrl.preflight.cores import default_learner_threads
from lrl.replay import (
    PrioritizedSampler,
    RateLimiter,
    RateLimiterConfig,
    Replay,
    ReplayConfig,
)
from lrl.schedules import Exponential, Linear, Schedule
from lrl.types import Batch, ConfigError, EnvSpec, RowKind, Rows

pytestmark = quiet

SPEC = EnvSpec.box(observation_shape=(1,), observation_dtype="float32", num_actions=2)


def steps(count: int, stream: int = 0) -> Rows:
    zeros = np.zeros(count)
    return Rows(
        stream=np.full(count, stream, np.int32),
        kind=zeros.astype(np.uint8),
        frame=np.zeros((count, 1), np.float32),
        action=zeros.astype(np.int32),
        reward=zeros.astype(np.float32),
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        policy_version=zeros.astype(np.int64),
    )


class CountingPool(ActorPool):
    """Makes rows when it is waited for, and remembers what was asked of it."""

    def __init__(self, rows_per_wait: int) -> None:
        self.rows_per_wait = rows_per_wait
        self.waits: list[float] = []
        self.looks = self.closed = 0
        self.last = 0
        """Rows that are left when it is closed."""

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        raise NotImplementedError

    def poll(self, timeout: float) -> Iterator[Delivery]:
        if timeout == 0:
            self.looks += 1
        else:
            self.waits.append(timeout)
            yield Delivery([steps(self.rows_per_wait)])

    def close(self, take: Callable[[Delivery], object]) -> None:
        self.closed += 1
        if self.last:
            take(Delivery([steps(self.last)]))


def make_dataset(
    batch_size: int = 4,
    rows_per_wait: int = 1,
    capacity: int = 1000,
    updates_per_step: int = 1,
    sampler: PrioritizedSampler | None = None,
    n_step: int | Schedule = 1,
    **rate: Any,
) -> ReplayDataset:
    config = RateLimiterConfig(**{"samples_per_insert": 2.0, "warm_up_env_steps": 10, **rate})
    return ReplayDataset(
        Replay(
            SPEC, capacity, num_streams=1, batch_size=batch_size, n_step=n_step, sampler=sampler
        ),
        RateLimiter(config, batch_size, rows_per_wait),
        lambda _: CountingPool(rows_per_wait),
        updates_per_step=updates_per_step,
    )


def pool_of(dataset: ReplayDataset) -> CountingPool:
    assert isinstance(dataset.pool, CountingPool)
    return dataset.pool


def test_actors_start_at_the_first_batch_and_every_epoch_goes_on_with_the_same_stream():
    dataset = make_dataset()
    assert iter(dataset) is dataset
    assert dataset.pool is None
    next(dataset)
    pool = dataset.pool
    assert iter(dataset) is dataset
    next(dataset)
    assert dataset.pool is pool
    assert dataset.batches == 2


def test_works_in_a_plain_dataloader():
    dataset = make_dataset()
    for batch in itertools.islice(DataLoader(dataset, batch_size=None, num_workers=0), 3):
        assert isinstance(batch, Batch)
        assert batch.observation.shape == (4, 1)
    assert dataset.batches == 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", [pytest.param("fork", marks=pytest.mark.slow), "spawn"])
def test_refuses_the_workers_of_a_dataloader(method):
    """With the dataset of a run, which no process but the learner's can have."""
    data = small_data()
    data.trainer = L.Trainer(accelerator="cpu", logger=False, callbacks=[ActorLearnerCallback()])
    data.setup("fit")
    try:
        dataset = data.train_dataloader()
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
        with pytest.raises(ConfigError, match=r"use it directly as the dataloader"):
            next(iter(loader))
    finally:
        data.close()


@pytest.mark.parametrize(
    ("rows_per_wait", "rate", "drawn"),
    [
        (1, {}, [4, 4, 4, 4, 4, 4]),  # a batch each two steps
        (5, {}, [8, 4, 8, 4]),  # 5 steps earn 2.5 batches
        (20, {}, [12, 8, 4]),  # 10 steps after the warm-up earn 5
        (1, {"samples_per_insert": None}, [12, 12]),
        (20, {"max_learner_steps_per_second": 1e6}, [4, 4, 4, 4, 4, 4]),
    ],
)
def test_batches_of_a_step_are_drawn_together_as_far_as_they_are_earned(
    rows_per_wait, rate, drawn, monkeypatch
):
    sizes: list[int] = []
    dataset = make_dataset(rows_per_wait=rows_per_wait, updates_per_step=3, **rate)
    sample = dataset.replay.sample
    monkeypatch.setattr(
        dataset.replay, "sample", lambda size: (sizes.append(size), sample(size))[1]
    )
    for count in (3, 6):
        batches = next(dataset)
        assert isinstance(batches, tuple)
        assert [len(batch.keys) for batch in batches] == [4, 4, 4]
        assert dataset.batches == count
    assert sizes == drawn


def test_priorities_are_drawn_from_a_batch_at_a_time():
    sampler = PrioritizedSampler()
    dataset = make_dataset(rows_per_wait=20, updates_per_step=3, sampler=sampler)
    batches = next(dataset)
    assert isinstance(batches, tuple)
    assert len(batches) == sampler._batches == 3


def test_the_first_batch_waits_for_the_warm_up():
    dataset = make_dataset(warm_up_env_steps=50)
    next(dataset)
    # 2 steps more earn the 4 samples of a batch.
    assert dataset.env_steps == 52
    assert len(pool_of(dataset).waits) == 52
    assert max(pool_of(dataset).waits) <= 0.5
    assert dataset.wait_seconds > 0


@pytest.mark.parametrize(
    ("batch_size", "ratio", "rows"), [(4, 2.0, 1), (32, 8.0, 1), (32, 8.0, 8), (5, 0.3, 2)]
)
def test_the_ratio_is_exact(batch_size, ratio, rows):
    """Every batch is drawn as soon as it is earned, and not before."""
    dataset = make_dataset(batch_size, rows, samples_per_insert=ratio)
    for batches in range(1, 60):
        next(dataset)
        earned = ratio * (dataset.env_steps - 10)
        assert earned - ratio * rows < batches * batch_size <= earned + 1e-9
    # What was inserted for the next batch counts too, but less than a batch.
    assert dataset.limiter.samples_per_insert == pytest.approx(ratio, rel=0.05)


def test_free_running_learns_from_what_is_there():
    dataset = make_dataset(samples_per_insert=None)
    list(itertools.islice(dataset, 100))
    assert dataset.env_steps == 10


def test_a_maximum_rate_is_held_though_batches_are_earned():
    dataset = make_dataset(samples_per_insert=None, max_learner_steps_per_second=100.0)
    next(dataset)
    started = time.monotonic()
    list(itertools.islice(dataset, 20))
    assert time.monotonic() - started >= 0.19
    assert dataset.wait_seconds > 0
    assert pool_of(dataset).looks > 20  # actors were not forgotten meanwhile


def test_what_is_annealed_is_set_before_each_batch():
    dataset = make_dataset(n_step=Linear(4.0, 1.0, 3))
    dataset.learner_steps = lambda: dataset.batches
    lengths = []
    for _ in range(3):
        batch: Any = next(dataset)
        lengths.append(dataset.replay.n_step)
        assert batch.discount.tolist() == pytest.approx([0.99 ** lengths[-1]] * 4)
    assert lengths == [4, 3, 2]


def annealed_run(folder: Path, max_steps: int) -> tuple[Run, list[tuple[int, int, float]]]:
    """Train on a schedule of n and gamma, and note what each learner step learnt from."""
    seen = []

    def note(trainer: L.Trainer, batch: Batch) -> None:
        replay = dataset_of(trainer).replay
        seen.append((trainer.global_step, replay.n_step, replay.gamma))

    config = ReplayConfig(
        capacity=100,
        batch_size=8,
        n_step=Linear(5.0, 1.0, 8),
        gamma=Exponential(0.9, 0.99, 10, limit=1.0),
        sampler=PrioritizedSampler,
    )
    callbacks = (AfterEachStep(note), ActorLearnerCallback(4, 0, 0))
    data = small_data(replay=config)
    return make_run(folder, *callbacks, data=data, max_steps=max_steps), seen


def test_n_and_gamma_follow_the_learner_steps_also_after_a_resume(tmp_path):
    first, before = annealed_run(tmp_path, 6)
    first.fit()
    second, after = annealed_run(tmp_path, 14)
    second.fit(first.checkpoint("last"))
    seen = before + after
    assert [step for step, _, _ in seen] == list(range(1, 15))
    assert [n for _, n, _ in seen] == [5, 4, 4, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert [gamma for _, _, gamma in seen] == pytest.approx(
        [1 - 0.1 ** (1 + min(step - 1, 10) / 10) for step, _, _ in seen]
    )


def test_the_capacity_has_to_suffice_for_the_longest_n(tmp_path):
    data = small_data(replay=ReplayConfig(capacity=40, batch_size=8, n_step=Linear(2.0, 19.0, 9)))
    with pytest.raises(ConfigError, match=r"n_step 19 need 21: set replay.capacity to at least 42"):
        make_run(tmp_path, data=data).fit()


class Silent(CountingPool):
    """Whose actors send nothing."""

    def poll(self, timeout: float) -> Iterator[Delivery]:
        time.sleep(timeout)
        yield from ()


def silent_dataset(check: Any) -> ReplayDataset:
    limiter = RateLimiter(RateLimiterConfig(samples_per_insert=None, warm_up_env_steps=4), 2)
    replay = Replay(SPEC, 100, num_streams=4, batch_size=2)
    return ReplayDataset(replay, limiter, lambda _: Silent(0), check)


def test_waiting_looks_at_signals_twice_a_second_and_does_not_spin():
    checks = []

    def check() -> None:
        checks.append(time.monotonic())
        if len(checks) == 4:
            raise KeyboardInterrupt

    dataset = silent_dataset(check)
    before = time.thread_time()
    with pytest.raises(KeyboardInterrupt):
        next(dataset)
    assert time.thread_time() - before < 0.25 * (checks[-1] - checks[0])
    assert checks[-1] - checks[0] >= 0.9  # two waits of half a second


@pytest.mark.parametrize("updates", [1, 3])
def test_ranks_meet_once_a_training_step(updates):
    met: list[int] = []
    dataset = make_dataset(rows_per_wait=4, updates_per_step=updates)
    dataset._meet = lambda: met.append(dataset.batches)
    for _ in range(2):
        next(dataset)
    assert met == [0, updates]


def test_a_rank_that_should_stop_tells_the_others_at_once():
    """It neither starts actors nor waits for rows, and what it raises is what all of them do."""

    def meet() -> None:
        raise KeyboardInterrupt

    dataset = silent_dataset(lambda: True)
    dataset._meet = meet
    with pytest.raises(KeyboardInterrupt):
        next(dataset)
    assert dataset.pool is None
    asked = iter([False, False, True])
    waiting = silent_dataset(lambda: next(asked))
    waiting._meet = meet
    with pytest.raises(KeyboardInterrupt):
        next(waiting)


def dead() -> None:
    raise ActorError("actor 0 failed for good")


@pytest.mark.parametrize("rows", [0, 20], ids=["while waiting", "with batches in store"])
def test_says_when_the_actors_are_gone(rows):
    dataset = silent_dataset(lambda: None)
    pool = dataset.start()
    if rows:
        dataset._take(Delivery([steps(rows)]))
        next(dataset)
    pool.check = dead
    with pytest.raises(ActorError, match="actor 0 failed for good"):
        next(dataset)


def test_a_signal_that_also_ended_the_actors_is_the_reason():
    came: list[bool] = []

    def check() -> None:
        if came:
            raise SystemExit

    def end_actors() -> None:
        came.append(True)
        dead()

    dataset = silent_dataset(check)
    dataset.start().check = end_actors
    with pytest.raises(SystemExit):
        next(dataset)


def process_pool() -> ProcessPool:
    config = ActorConfig(num_actors=2, envs_per_actor=2)
    unused: Any = None
    return ProcessPool(ActingPlan(config, unused, SPEC, unused, unused, unused))


class Chunks:
    """A queue that gives one chunk whenever it is asked."""

    def __init__(self, **changes: Any) -> None:
        none = np.zeros(0)
        episodes = {"episode_return": none, "episode_length": none, "episode_start_value": none}
        self.chunk = SimpleNamespace(actor=0, after_gap=False, rows=steps(5), **episodes)
        vars(self.chunk).update(changes)
        self.released: list[Any] = []

    def qsize(self) -> int:
        return 1

    def get(self, timeout: float) -> Any:
        return self.chunk

    def release(self, chunk: Any) -> None:
        self.released.append(chunk)


def test_a_lost_chunk_leaves_a_gap_in_every_stream_of_its_actor():
    dataset = make_dataset()
    dataset.experience = Replay(SPEC, 100, num_streams=4)
    pool: Any = process_pool()
    pool.queue = queue = Chunks(actor=1, rows=steps(5, stream=2))
    for after_gap in (False, True):
        queue.chunk.after_gap = after_gap
        for delivery in pool.poll(0.0):
            dataset._take(delivery)
    assert queue.released == [queue.chunk] * 2
    assert dataset.replay.streams.counts.tolist() == [0, 0, 11, 1]
    kinds = dataset.replay.streams.columns["flags"] >> 2
    assert (kinds[2 * 26 : 2 * 26 + 11] == RowKind.GAP).nonzero().flatten().tolist() == [5]
    assert dataset.env_steps == 10


def test_a_chunk_is_released_when_the_next_is_asked_for_or_nobody_asks():
    pool: Any = process_pool()
    pool.queue = queue = Chunks()
    deliveries = pool.poll(0.0)
    next(deliveries)
    assert queue.released == []
    deliveries.close()
    assert queue.released == [queue.chunk]


def test_lag_counts_learner_steps_since_the_policy_of_each_row():
    rollout = RolloutStatistics()
    rows = steps(4)
    rows.policy_version[:] = [10, 10, 20, 30]
    rows.kind[3] = RowKind.BOUNDARY
    rollout.add_lag(rows, learner_steps=40)
    assert rollout.take_lag_mean() == pytest.approx((30 + 30 + 20) / 3)
    assert rollout.take_lag_mean() == 0.0


def test_lag_counts_learner_steps_and_not_batches():
    dataset = make_dataset()
    dataset.learner_steps = lambda: 7  # under gradient accumulation, fewer than batches
    dataset._take(Delivery([steps(5)]))
    assert dataset.rollout.take_lag_mean() == 7.0


def test_rows_drained_at_the_end_count_as_received_but_not_in_the_ratio():
    dataset = make_dataset()
    next(dataset)
    ratio = dataset.limiter.samples_per_insert
    received = dataset.rows_received
    pool_of(dataset).last = 10
    dataset.close()
    assert dataset.rows_received == received + 10
    assert dataset.limiter.samples_per_insert == ratio


def test_close_is_idempotent_and_final():
    dataset = make_dataset()
    next(dataset)
    dataset.close()
    dataset.close()
    with pytest.raises(RuntimeError, match="build a new datamodule"):
        next(dataset)


def test_closing_before_the_first_batch_starts_nothing():
    dataset = make_dataset()
    dataset.close()
    assert dataset.pool is None


def test_state_is_plain_and_a_resumed_stream_counts_on(tmp_path):
    dataset = make_dataset()
    list(itertools.islice(dataset, 7))
    dataset.rollout.add_episode(1.0, 10, 0.5)
    torch.save(dataset.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    resumed = make_dataset()
    resumed.load_state_dict(state)
    assert resumed.episodes == 1
    assert resumed.env_steps == resumed.env_steps_offset == dataset.env_steps
    next(resumed)
    # The replay is empty after a resume, so it is warmed up again.
    assert resumed.env_steps == dataset.env_steps + 12
    assert resumed.state_dict()["replay"]["env_steps_inserted"] == resumed.env_steps


def test_a_resumed_run_has_seeds_that_no_actor_of_any_rank_has_used():
    """A checkpoint holds the restarts of rank 0 alone."""
    resumed = make_dataset()
    resumed.load_state_dict(make_dataset().state_dict())
    slot = ActorSlot(seed=3, rank=1, world_size=2, num_actors=1, envs_per_actor=4)
    used = {seed for past in range(900) for seed in replace(slot, incarnation=past).env_seeds()}
    now = replace(slot, incarnation=resumed.first_incarnation).env_seeds()
    assert used.isdisjoint(now)


@pytest.mark.parametrize(
    ("cpus", "actors", "threads"), [(2, 0, 2), (2, 1, 1), (2, 2, 1), (1, 0, 1), (8, 2, 6)]
)
def test_the_learner_takes_the_cores_that_actors_leave(cpus, actors, threads):
    assert default_learner_threads(cpus, actors) == threads


class Idle(CountingPool):
    """Which delivers nothing, and does not wait either."""

    def poll(self, timeout: float) -> Iterator[Delivery]:
        self.waits.append(timeout)
        yield from ()


def test_a_pool_that_delivers_nothing_is_named_and_takes_no_core(monkeypatch, caplog):
    monkeypatch.setattr("lrl.learner.dataset._SILENCE_SECONDS", 0.2)

    def check() -> None:
        if caplog.records:
            raise KeyboardInterrupt

    dataset = silent_dataset(check)
    dataset._start_pool = lambda _: Idle(0)
    before = time.thread_time()
    with pytest.raises(KeyboardInterrupt):
        next(dataset)
    assert "no environment step has come from Idle for 0 s" in caplog.text
    assert time.thread_time() - before < 0.15
    assert len(pool_of(dataset).waits) < 30


def test_a_learner_that_waits_for_its_pace_blames_no_pool(monkeypatch, caplog):
    monkeypatch.setattr("lrl.learner.dataset._SILENCE_SECONDS", 0.2)
    until = time.perf_counter() + 0.5

    def check() -> None:
        if time.perf_counter() > until:
            raise KeyboardInterrupt

    dataset = silent_dataset(check)
    dataset._start_pool = lambda _: Idle(0)
    monkeypatch.setattr(dataset.limiter, "seconds_until_next_step", lambda: 0.05)
    with pytest.raises(KeyboardInterrupt):
        next(dataset)
    assert not caplog.records


def test_a_pool_that_falls_silent_in_the_middle_of_a_wait_is_named(monkeypatch, caplog):
    monkeypatch.setattr("lrl.learner.dataset._SILENCE_SECONDS", 0.2)

    class OnceAlive(CountingPool):
        def poll(self, timeout: float) -> Iterator[Delivery]:
            self.waits.append(timeout)
            if len(self.waits) == 3:  # in the wait before learning begins
                dataset.experience.env_steps += 1
            yield from ()

    def check() -> None:
        if caplog.records:
            raise KeyboardInterrupt

    dataset = silent_dataset(check)
    dataset._start_pool = lambda _: OnceAlive(0)
    with pytest.raises(KeyboardInterrupt):
        next(dataset)
    assert "no environment step has come from OnceAlive" in caplog.text


def test_a_pool_that_cannot_be_closed_is_named_and_the_rest_is_given_back(caplog):
    class Stuck(CountingPool):
        def close(self, take: Callable[[Delivery], object]) -> None:
            raise ValueError("stuck")

    dataset = make_dataset()
    dataset._start_pool = lambda _: Stuck(4)
    next(dataset)
    dataset.close()
    assert "closing Stuck failed" in caplog.text


@pytest.mark.parametrize(("ranks", "expected"), [(2, (12, 4)), (1, (24, 8)), (4, (6, 2))])
def test_counts_are_shared_out_among_as_many_ranks_as_there_are(ranks, expected):
    """A checkpoint holds those of rank 0, of two ranks that counted as much each."""
    before, dataset = make_dataset(), make_dataset()
    before._num_ranks, dataset._num_ranks = 2, ranks
    before.experience.add(steps(12))
    before.episodes_offset = 4
    dataset.restore(before.state(with_rows=False))
    assert (dataset.env_steps, dataset.episodes) == expected
    assert dataset.env_steps_offset == expected[0]
