"""Inference servers on a cluster: batches of their own, and what happens when one is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cluster_run import ENVS, RECIPE, Run, of_stream

from lrl.actors.actor import Decision
from lrl.actors.policy import NetworkPolicy
from lrl.cluster.remote_server import RemoteServer, RemoteServerPlan
from lrl.inference.config import InferenceConfig
from lrl.networks.q_network import vector_size, write_vector

INFERENCE = InferenceConfig(max_batch_delay_seconds=0.001)
TWO = InferenceConfig(num_servers=2, groups_per_actor=2, max_batch_delay_seconds=0.001)


def server_of(run: Run, index: int = 0) -> Any:
    assert run.fleet.servers is not None
    return run.fleet.servers.all[index]


def test_rows_are_those_of_actors_with_networks_of_their_own(ray):
    alone, served = Run(), Run(inference=INFERENCE)
    alone.poll(12)
    served.poll(12)
    for stream in range(2 * ENVS):
        for column in ("frame", "action", "reward", "kind", "terminated"):
            ours, theirs = (of_stream(r.rows, stream, column) for r in (served, alone))
            both = min(len(ours), len(theirs))
            assert both > 30
            assert (ours[:both] == theirs[:both]).all()


def test_each_group_has_a_server_and_every_row_is_there_once(ray):
    run = Run(inference=TWO)
    run.poll(12)
    assert run.ledger().counts["instances"] == 2 * ENVS
    assert all(server_of(run, index).counters["batches"] > 20 for index in (0, 1))


def test_servers_are_sent_weights_and_actors_none(ray):
    run = Run(inference=INFERENCE, calls_per_actor=1)
    run.poll(8)
    assert ray.objects_put == 1
    run.pool.publish(run.network, 9)
    assert {int(v) for r in run.poll(1) for v in r.policy_version} == {0}
    rows = run.poll(6)
    assert int(rows[-1].policy_version[-1]) == 9
    assert ray.objects_put == 2


def test_actors_lose_nothing_when_a_server_dies(ray):
    run = Run(inference=INFERENCE)
    run.poll(8)
    server_of(run).body.is_dead = True
    run.poll(3)
    server_of(run).restart_at = 0.0
    assert len(run.poll(8)) > 4
    assert run.ledger().counts["instances"] == 2 * ENVS
    metrics = run.pool.metrics()
    assert metrics["count/calls_lost"] == 0
    assert metrics["count/inference_restarts"] == 1
    assert run.pool.counts().restarts == 0


def test_a_silent_server_is_given_up_and_what_it_was_asked_is_asked_again(ray):
    run = Run(inference=INFERENCE, silence_seconds=15.0)
    run.poll(8)
    old = server_of(run)
    old.body.is_silent = True
    assert run.poll(3) == []
    old.since -= 16.0
    assert run.poll(1) == []
    assert old.state == "dead"
    old.restart_at = 0.0
    assert len(run.poll(8)) > 4
    assert run.ledger().counts["instances"] == 2 * ENVS
    assert run.pool.counts().restarts == 0
    needs = server_of(run).body.options
    assert needs["label_selector"] == {"ray.io/node-id": f"!in(node{old.body.number})"}


def test_a_network_that_fails_ends_the_run_with_its_reason(ray, monkeypatch):
    def fail(self, observation, memory=None):
        raise ValueError("not with me")

    monkeypatch.setattr("lrl.actors.policy.NetworkPolicy.__call__", fail)
    run = Run(inference=INFERENCE, max_restarts=0)
    run.poll(10)
    with pytest.raises(RuntimeError, match="not with me"):
        run.pool.check()


def test_a_server_that_cannot_begin_ends_the_run(ray, monkeypatch):
    def fail(self):
        raise ValueError("no such layer")

    monkeypatch.setattr("lrl.networks.NetworkRecipe.build", fail)
    with pytest.raises(ValueError, match="no such layer"):
        Run(inference=INFERENCE)


def test_figures_of_the_servers_are_since_the_last_call(ray):
    run = Run(inference=INFERENCE)
    run.poll(10)
    metrics = run.pool.metrics()
    assert metrics["inference/batch_size_mean"] == ENVS
    assert metrics["inference/batch_fill"] == 0.5  # of two actors one waits for the other's turn
    assert metrics["inference/latency_ms_p50"] >= 1.0
    assert "inference/batch_fill" not in run.pool.metrics()


@pytest.fixture
def server():
    torch.manual_seed(3)
    network = RECIPE.build()
    vector = torch.empty(vector_size(network))
    write_vector(network, vector)
    found = RemoteServer()
    found.begin(RemoteServerPlan(RECIPE, 3, 0.05, "cpu", 1, 5), vector.numpy(), 4)
    found.network = network  # pyright: ignore[reportAttributeAccessIssue]
    return found


def observations(count: int, rows: int = ENVS) -> list[Any]:
    rng = np.random.default_rng(1)
    shape = RECIPE.env_spec.observation[""].shape
    return [rng.random((rows, *shape)).astype(np.float32) for _ in range(count)]


def test_a_full_batch_runs_at_once_and_everybody_gets_their_own_rows(server):
    asked = observations(3)

    async def ask() -> list[Decision]:
        return await asyncio.gather(*(server.decide(o, None) for o in asked))

    decisions = asyncio.run(asyncio.wait_for(ask(), 0.04))
    policy = NetworkPolicy(server.network)
    for observation, decision in zip(asked, decisions, strict=True):
        assert decision.version == 4
        np.testing.assert_allclose(decision.values, policy(observation).values, atol=1e-6)
    counters = server.update(None, 4)
    assert (counters["batches"], counters["requests"], counters["capacity"]) == (1, 3, 3)
    assert counters["latency"].sum() == 3


def test_a_batch_that_is_not_full_runs_after_the_delay(server):
    async def ask() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(server.decide(observations(1)[0], None)), 0.02)
        await asyncio.sleep(0.05)

    asyncio.run(ask())
    assert server.update(None, 4)["batches"] == 1
