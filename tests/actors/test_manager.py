"""The actor manager with real processes: how they start, are held back, and stop."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
import torch
from helpers.managed_actors import VERSION, Learner, faulty
from helpers.odd_envs import Witness
from helpers.waiting import wait_for

from lrl.actors.exploration import EpsilonGreedy, EpsilonSpread, Greedy, PerActor
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.schedules import Constant
from lrl.testing import LedgerEnv
from lrl.types import RowKind


@pytest.mark.parametrize(("start_method", "actors"), [("forkserver", 3), ("spawn", 2)])
def test_actors_start_as_they_are_told(learner, monkeypatch, start_method, actors):
    monkeypatch.setenv("RANK", "1")
    made = learner(
        EnvConfig(id="helpers.odd_envs:Witness-v0"),
        EpsilonSpread(0.0, 1.0),
        num_actors=actors,
        envs_per_actor=2,
        start_method=start_method,
    )
    made.take_until(lambda: made.all_acted(60), "60 steps of each actor")
    epsilons = np.linspace(0.0, 1.0, 2 * actors)
    for actor in range(actors):
        frames = made.column(actor, "frame")
        facts = dict(zip(Witness.FACTS, frames[0], strict=True))
        assert facts == {
            "actor": actor,
            "threads": 1,
            "gpu_hidden": 1,
            "interrupt_ignored": 1,
            "interrupt_blocked": 0,  # for what environments start
            "rank_hidden": 1,
            "lightning": 0,
        }
        assert set(made.column(actor, "stream")) == {2 * actor, 2 * actor + 1}
        assert set(made.column(actor, "policy_version")) == {VERSION}
        seeds = ActorSlot(3, actor=actor, num_actors=actors, envs_per_actor=2).env_seeds()
        assert list(made.column(actor, "reward")[:2]) == [seed % 2**20 for seed in seeds]
        with torch.no_grad():
            greedy = made.network.q_values(torch.from_numpy(frames)).argmax(1).numpy()
        different = (made.column(actor, "action") != greedy).reshape(-1, 2).mean(axis=0)
        expected = 0.75 * epsilons[2 * actor : 2 * actor + 2]  # 1 of 4 random actions is greedy
        np.testing.assert_allclose(different, expected, atol=0.25)  # 5 standard deviations
        assert actor > 0 or different[0] == 0


def test_each_actor_may_have_an_exploration_of_its_own(learner):
    exploration = PerActor([Greedy(), EpsilonGreedy(Constant(1.0))])
    env = EnvConfig(id="helpers.odd_envs:Witness-v0")
    made = learner(env, exploration, num_actors=2, envs_per_actor=2)
    made.take_until(lambda: made.all_acted(60), "60 steps of each actor")
    deviates = []
    for actor in range(2):
        frames = made.column(actor, "frame")
        with torch.no_grad():
            greedy = made.network.q_values(torch.from_numpy(frames)).argmax(1).numpy()
        deviates.append((made.column(actor, "action") != greedy).mean())
    assert deviates[0] == 0
    assert deviates[1] == pytest.approx(0.75, abs=0.25)  # 1 of 4 random actions is greedy


def test_a_stalled_learner_blocks_actors_and_loses_nothing(learner):
    made = learner(num_actors=2, chunks_per_actor=3)
    channels = [handle.channel for handle in made.manager._handles]
    wait_for(lambda: all(c.counters["wait_seconds"] > 0 for c in channels), "full rings")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    produced = [c.counters["rows_produced"] for c in channels]
    time.sleep(0.3)
    assert [c.counters["rows_produced"] for c in channels] == produced
    assert all(8 < rows <= 3 * 8 for rows in produced)  # a chunk may have been sent half full
    assert made.queue.fill == 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 5_000  # kB
    made.take_until(lambda: made.all_acted(500), "all actors going on")
    made.stop()
    totals = made.queue.totals()
    assert totals.received == totals.produced
    for actor in range(2):
        _assert_contiguous(made, actor)


def _assert_contiguous(made: Learner, actor: int) -> None:
    """Every row of the one environment is there once: its episodes and steps count up."""
    acted = made.column(actor, "kind") == RowKind.STEP
    _, episode, step = LedgerEnv.decode(made.column(actor, "frame")).T
    previous = (0, -1)
    for position, is_step in zip(zip(episode, step, strict=True), acted, strict=True):
        following = {(previous[0], previous[1] + 1)} | (
            {(previous[0] + 1, 0)} if is_step else set()
        )
        assert position in following
        previous = position


def test_statistics_sum_up_to_what_was_received(learner):
    made = learner(num_actors=2, envs_per_actor=3)
    made.take_until(lambda: made.all_acted(100), "some rows")
    made.stop()
    statistics = made.manager.statistics()
    assert [one.actor for one in statistics] == [0, 1]
    assert [one.env_steps for one in statistics] == [made.steps(0), made.steps(1)]
    assert sum(one.frames for one in statistics) == made.steps(0) + made.steps(1)
    assert sum(one.episodes for one in statistics) == made.episodes > 0
    for one in statistics:
        assert one.env_steps_per_second == pytest.approx(one.env_steps / one.seconds)
        assert 0.0 <= one.wait_seconds < one.seconds


def test_stop_ends_blocked_actors_without_a_loss(learner, caplog):
    made = learner(num_actors=2)
    channels = [handle.channel for handle in made.manager._handles]
    wait_for(lambda: all(c.counters["wait_seconds"] > 0 for c in channels), "full rings")
    made.stop()
    assert [process.exitcode for process in made.manager.processes] == [0, 0]
    totals = made.queue.totals()
    assert totals.received == totals.produced > 0
    assert not caplog.records
    made.stop()  # idempotent


def test_stop_kills_actors_that_are_still_starting(learner, caplog):
    made = learner(faulty(fault="hang", where="init"), num_actors=2)
    made.manager.stop(timeout=0.3)
    assert [process.exitcode for process in made.manager.processes] == [-9, -9]
    assert "actor 1 did not stop in time and is killed" in caplog.text


def test_stop_during_a_restart_leaves_no_actor(learner, tmp_path):
    made = learner(faulty(after=3), num_actors=4, max_restarts=100)
    made.take_until(lambda: made.manager.restarts > 3, "restarts")
    made.stop()
    assert not any(process.is_alive() for process in made.manager.processes)
