"""Counters beyond 2**31: a run of months, or a game with 4 frames a step, gets there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training_runs import make_run, quiet, small_data
from helpers.transport_actors import SPEC, numbered

from lrl import ActorLearnerCallback, EnvConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.checkpoints.stamp import make_stamp
from lrl.evaluation.episodes import EvaluationConfig
from lrl.learner.statistics import RolloutStatistics
from lrl.replay import PrioritizedSampler, RateLimiter, RateLimiterConfig, Replay
from lrl.transport import Channel, ChunkLayout, ChunkQueue, WeightStore
from lrl.types import EnvSpec, RowKind, Rows

pytestmark = quiet

NEAR = 2**31 - 10
BEYOND = 2**31 + 10


def steps(first: int, count: int) -> Rows:
    """STEP rows whose frames tell their numbers."""
    zeros = np.zeros(count)
    return Rows(
        stream=zeros.astype(np.int32),
        kind=np.full(count, RowKind.STEP, np.uint8),
        frame=(first + np.arange(count, dtype=np.float32))[:, None],
        action=zeros.astype(np.int32),
        reward=np.ones(count, np.float32),
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        policy_version=np.full(count, BEYOND, np.int64),
    )


@pytest.mark.parametrize("sampler", [None, PrioritizedSampler()])
def test_the_replay_goes_on(sampler):
    buffer = Replay(EnvSpec.box((1,), "float32", 2), 30, 1, sampler=sampler)
    buffer.env_steps = NEAR
    buffer.streams.counts[:] = NEAR  # its rows of before read as a gap
    buffer.streams._advance(np.zeros(1, np.int64))
    for first in range(0, 80, 8):
        buffer.add(steps(first, 8))
    assert buffer.env_steps == NEAR + 80
    batch = buffer.sample(64)
    numbers = batch.keys[:, 1]
    assert bool((numbers > 2**31).all())
    assert (numbers - NEAR).tolist() == batch.observation[:, 0].tolist()
    assert bool((batch.next_observation == batch.observation + 1).all())
    if sampler is not None:
        buffer.learnt(batch.keys, torch.rand(64))


def test_the_rate_limiter_holds_its_ratio():
    limiter = RateLimiter(RateLimiterConfig(4.0, warm_up_env_steps=8), 8, 8)
    limiter.record_insert(BEYOND)
    assert limiter.can_sample()
    limiter.record_sample(4 * BEYOND)
    assert limiter.samples_per_insert == 4 * BEYOND / (BEYOND - 8)
    assert not limiter.can_sample()  # the warm-up earned nothing


def test_chunks_carry_versions_sequences_and_counters():
    channel = Channel(ChunkLayout(SPEC, 8, 4), actor=0, incarnation=2**32 - 1)
    chunks = ChunkQueue()
    chunks.add(channel)
    writer = channel.actor_end.open()
    writer._sequence = NEAR
    (receiver,) = chunks._receivers
    receiver._sequence = NEAR
    for name in ("env_steps", "frames", "episodes"):
        channel.counters[name] = NEAR
        channel.counters[name] += 20
        assert channel.counters[name] == BEYOND
    for index in range(20):
        rows = numbered(8 * index, 8)
        rows.policy_version[:] = NEAR + index
        writer.put(rows)
        with chunks.get(timeout=5) as chunk:
            assert chunk.sequence == NEAR + index
            assert set(chunk.rows.policy_version.tolist()) == {NEAR + index}
    writer.put_episode(1.0, BEYOND, 0.0)
    writer.flush()
    with chunks.get(timeout=5) as chunk:
        assert chunk.episode_length.tolist() == [BEYOND]
    chunks.close()


def test_weights_have_versions_beyond():
    store = WeightStore(3)
    out = np.zeros(3, np.float32)
    for version in (NEAR, BEYOND, 2**40):
        store.publish(np.full(3, version % 7, np.float32), version)
        assert store.read(out, newer_than=NEAR - 1) == version
    store.close()


def test_policy_lag_is_exact():
    rollout = RolloutStatistics()
    rollout.add_lag(steps(0, 5), BEYOND + 3)
    assert rollout.take_lag_mean() == 3.0


def test_exploration_and_stamp_take_them():
    epsilons = EpsilonGreedy().epsilons(BEYOND, np.arange(4), 4)
    assert np.isfinite(epsilons).all()
    stamp = make_stamp(
        EnvConfig(), EvaluationConfig(), seed=0, learner_steps=BEYOND, env_steps=BEYOND,
        frames=4 * BEYOND,
    )  # fmt: skip
    assert json.loads(json.dumps(stamp))["training"]["frames"] == 4 * BEYOND


def at_learner_step(content: dict[str, Any], step: int) -> dict[str, Any]:
    """Return a checkpoint as if it had been written at another learner step."""
    loop = content["loops"]["fit_loop"]
    progress = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    progress["total"] = {"ready": step, "completed": step}
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step
    total = loop["epoch_loop.batch_progress"]["total"]
    total.update(dict.fromkeys(total, step))  # one batch for each
    return {**content, "global_step": step}


def test_a_run_goes_on_beyond(tmp_path):
    first = make_run(tmp_path, ActorLearnerCallback(5, 0, 5), data=small_data(), max_steps=5).fit()
    content = torch.load(first.checkpoint("last"), weights_only=True)
    changed: Path = tmp_path / "changed.ckpt"
    torch.save(at_learner_step(content, NEAR), changed)
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 5), data=small_data(), max_steps=BEYOND)
    run.fit(changed)
    assert run.trainer.global_step == BEYOND
    last = torch.load(run.checkpoint("last"), weights_only=True)
    assert last["global_step"] == last["lrl"]["training"]["learner_steps"] == BEYOND
    assert max(int(row["step"]) for row in run.metrics()) > 2**31
