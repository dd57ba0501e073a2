"""Runs whose actors ask inference servers: they learn, survive, and leave nothing."""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from typing import Any

import lightning as L
import numpy as np
import pytest
from helpers.odd_envs import Witness
from helpers.odd_networks import BreaksInServers
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    once_all_act,
    quiet,
    small_data,
    spy_on_rows,
)

from lrl import (
    DQN,
    ActorLearnerCallback,
    ConfigError,
    EnvConfig,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
)
from lrl.inference.manager import InferenceError
from lrl.pools.processes import ProcessPool
from lrl.testing import LedgerEnv
from lrl.types import RowKind, Rows

pytestmark = [*quiet, pytest.mark.usefixtures("janitor")]


def pool_of(run: Run) -> ProcessPool:
    assert run.data.dataset is not None
    pool = run.data.dataset.pool
    assert isinstance(pool, ProcessPool)
    return pool


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def received(monkeypatch):
    """All rows that the learner receives, with the time of their arrival."""
    rows: list[tuple[float, Rows]] = []
    spy_on_rows(monkeypatch, lambda new: rows.append((time.monotonic(), copy.deepcopy(new))))
    return rows


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_acts_through_servers(tmp_path, received, servers):
    data = small_data(
        actors=background(2, envs_per_actor=4),
        inference=InferenceConfig(num_servers=servers, groups_per_actor=2),
    )
    callbacks = AfterEachStep(once_all_act), ActorLearnerCallback(5, 0, 0)
    run = make_run(tmp_path, *callbacks, data=data, max_steps=200).fit()
    steps = [rows.policy_version[rows.kind == RowKind.STEP] for _, rows in received]
    versions = np.concatenate(steps)
    assert set(versions) <= set(range(0, 201, 5))
    assert len(set(versions)) > 1
    streams = np.concatenate([rows.stream for _, rows in received])
    assert set(streams) == set(range(8))
    last = [row for row in run.metrics() if "inference/batch_fill" in row][-1]
    assert 2 <= float(last["inference/batch_size_mean"]) <= 8
    assert 0 < float(last["inference/batch_fill"]) <= 1
    assert 0 < float(last["inference/latency_ms_p50"]) <= float(last["inference/latency_ms_p99"])
    assert float(last["inference/queue_depth"]) >= float(last["inference/batch_size_mean"])
    assert float(last["inference/policy_lag_mean"]) >= 0
    assert float(last["count/inference_restarts"]) == 0


def test_all_groups_ask_before_the_first_of_them_waits(tmp_path):
    """Else a batch of them all would only run after the delay."""
    data = small_data(
        actors=background(1, envs_per_actor=4),
        inference=InferenceConfig(1, 2, batch_size=4, max_batch_delay_seconds=1000.0),
    )
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), data=data)
    run.fit()
    assert run.trainer.global_step == 20


def test_actors_hold_no_torch(tmp_path, received):
    data = small_data(
        env=EnvConfig(id="helpers.odd_envs:Witness-v0"),
        actors=background(1, start_method="spawn"),  # the tests' fork server holds torch already
        inference=InferenceConfig(num_servers=1),
    )
    make_run(tmp_path, ActorLearnerCallback(5, 0, 0), data=data, max_steps=5).fit()
    frames = np.concatenate([rows.frame for _, rows in received])
    facts = dict(zip(Witness.FACTS, frames[0], strict=True))
    assert facts["threads"] == 0  # torch's, if it were there
    assert facts["lightning"] == 0
    assert facts["actor"] == 0


@pytest.mark.parametrize(
    ("actors", "inference", "message"),
    [
        ({}, {"groups_per_actor": 4}, r"envs_per_actor 2 cannot be .*groups_per_actor 4"),
        ({"num_actors": 0}, {}, r"actors.num_actors is 0 .* but data.inference has servers"),
        ({"num_actors": 300}, {}, r"inference.num_servers 1 leaves 300 groups .* serve 256"),
        ({}, {"num_servers": 3}, r"inference.num_servers 3 is more than the 2 groups"),
        ({}, {"batch_size": 1}, r"inference.batch_size 1 is below the 2 observations"),
        ({}, {"batch_size": 5}, r"inference.batch_size 5 is more than the 4 environments"),
        ({}, {"devices": ("cuda:99",)}, r"inference.devices 'cuda:99' cannot be used here"),
        ({}, {"devices": ("meta",)}, r"inference.devices 'meta' cannot be used here"),
        ({}, {"devices": ("nowhere",)}, r"inference.devices 'nowhere' cannot be used here"),
    ],
)
def test_what_cannot_work_is_refused_at_setup(tmp_path, actors, inference, message):
    settings = {"num_actors": 2, "envs_per_actor": 2, **actors}
    data = small_data(
        actors=background(**settings),
        inference=InferenceConfig(**{"num_servers": 1, **inference}),
    )
    with pytest.raises(ConfigError, match=message):
        make_run(tmp_path, data=data).fit()


def test_a_failing_network_is_asked_again(tmp_path, caplog):
    encoder = functools.partial(BreaksInServers, hidden_sizes=(8,), times=2)
    data = small_data(actors=background(1), inference=InferenceConfig(num_servers=1))
    make_run(
        tmp_path, ActorLearnerCallback(5, 0, 0), module=DQN(encoder=encoder), data=data
    ).fit()  # fmt: skip
    assert "inference server 0: a batch failed; its actors ask again" in caplog.text
    assert "the weights are lost" in caplog.text


@pytest.mark.slow
def test_a_network_that_always_fails_ends_the_run_with_its_traceback(tmp_path):
    encoder = functools.partial(BreaksInServers, hidden_sizes=(8,), times=10**9)
    data = small_data(actors=background(1), inference=InferenceConfig(num_servers=1))
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=DQN(encoder=encoder), data=data)
    with pytest.raises(InferenceError, match="the weights are lost") as caught:
        run.fit()
    assert "inference server 0 (pid" in str(caught.value)
    assert "Traceback (most recent call last)" in str(caught.value)
    assert multiprocessing.active_children() == []


def test_a_killed_server_comes_back_and_actors_keep_their_episodes(tmp_path, received):
    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        pool = pool_of(run)
        assert pool.inference is not None
        if trainer.global_step == 20:
            kill(pool.inference.processes[0])
            deadline = time.monotonic() + 30.0
            while pool.inference.restarts == 0:
                assert time.monotonic() < deadline
                run.take(0.05)
            run.take(5.0)

    data = small_data(
        "lrl/Ledger-v0",
        actors=background(2),
        inference=InferenceConfig(num_servers=1),
        rate=RateLimiterConfig(None, warm_up_env_steps=20),
    )
    run = make_run(
        tmp_path,
        AfterEachStep(after_each_step),
        ActorLearnerCallback(5, 0, 0),
        data=data,
        max_steps=200,
    )
    run.fit()
    assert float(run.metrics()[-1]["count/inference_restarts"]) == 1
    assert float(run.metrics()[-1]["count/actor_restarts"]) == 0
    assert_rows_are_whole(received, gaps=0)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["outcome"] == "finished"


@pytest.mark.slow
def test_a_hung_server_is_replaced(tmp_path, received):
    stopped: list[Any] = []

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        pool = pool_of(run)
        assert pool.inference is not None
        if trainer.global_step == 5 and not stopped:
            stopped.append(pool.inference.processes[0])
            os.kill(stopped[0].pid, signal.SIGSTOP)

    data = small_data(
        actors=background(1, timeout_seconds=3.0),
        inference=InferenceConfig(num_servers=1, timeout_seconds=6.0),
    )
    run = make_run(
        tmp_path, AfterEachStep(after_each_step), ActorLearnerCallback(5, 0, 0),
        data=data, max_steps=300,
    )  # fmt: skip
    run.fit()
    assert not stopped[0].is_alive()
    assert pool_of(run).inference.restarts == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert pool_of(run).manager.restarts == 0  # they were only waiting


class Killer(threading.Thread):
    """Kills a server every 5 s and an actor every 3 s, in turn, for some time."""

    def __init__(self, run: Run, seconds: float) -> None:
        super().__init__()
        self.run_to_end, self.seconds = run, seconds
        self.killed = {"servers": 0, "actors": 0}

    def run(self) -> None:
        pool = pool_of(self.run_to_end)
        assert pool.inference is not None
        victims = {"servers": pool.inference, "actors": pool.manager}
        period = {"servers": 5.0, "actors": 3.0}
        started = time.monotonic()
        due = {name: started + seconds for name, seconds in period.items()}
        while time.monotonic() < started + self.seconds:
            name = min(due, key=due.__getitem__)
            time.sleep(max(0.0, due[name] - time.monotonic()))
            due[name] += period[name]
            processes = victims[name].processes
            kill(processes[self.killed[name] % len(processes)])
            self.killed[name] += 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_minute_of_kills_corrupts_nothing_and_stalls_nobody(tmp_path, received):
    """A server every 5 s, an actor every 3 s; a row is whole or it is not there."""
    killers: list[Killer] = []

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        if trainer.global_step == 20:
            killers.append(Killer(run, 60.0))
            killers[0].start()
        trainer.should_stop = trainer.global_step > 20 and not killers[0].is_alive()

    data = small_data(
        "lrl/Ledger-v0",
        actors=background(4, max_restarts=100, chunk_rows=64),
        inference=InferenceConfig(num_servers=2, max_restarts=100),
        rate=RateLimiterConfig(8.0, warm_up_env_steps=1000),
        replay=ReplayConfig(capacity=100_000, batch_size=256, n_step=1),
    )
    run = make_run(
        tmp_path, AfterEachStep(after_each_step), ActorLearnerCallback(5, 0, 0),
        data=data, max_steps=10**9, log_every_n_steps=10**6,
    )  # fmt: skip
    run.fit()
    killed = killers[0].killed
    pool = pool_of(run)
    assert pool.inference is not None
    assert killed["servers"] >= 11
    assert killed["actors"] >= 19
    assert pool.inference.restarts >= killed["servers"] - 2
    assert pool.manager.restarts >= killed["actors"] - 2
    assert pool.queue.rows_dropped == 0
    assert_rows_are_whole(received)
    arrivals = np.array([at for at, rows in received if (rows.kind == RowKind.STEP).any()])
    assert np.diff(arrivals).max() <= 3.0


def assert_rows_are_whole(received: list[tuple[float, Rows]], gaps: int | None = None) -> None:
    """Every row is what its environment made, in order, and nothing is missing but at gaps."""
    streams: dict[int, list[Any]] = defaultdict(list)
    for _, rows in received:
        labels = LedgerEnv.decode(rows.frame)
        for i in range(len(rows)):
            streams[int(rows.stream[i])].append(
                (rows.kind[i], *labels[i], rows.action[i], rows.reward[i], rows.policy_version[i])
            )
    found = 0
    for stream in streams.values():
        before: Any = None
        version = -1
        for kind, instance, episode, step, action, reward, policy_version in stream:
            if kind == RowKind.GAP:
                found += 1
                before = None
                continue
            if before is not None:
                assert instance == before[0]
                assert (episode, step) in ((before[1], before[2] + 1), (before[1] + 1, 0))
            if kind == RowKind.STEP:
                assert reward == LedgerEnv.reward(episode, step, int(action))
                assert policy_version >= version
                version = policy_version
            before = (instance, episode, step)
    if gaps is not None:
        assert found == gaps
