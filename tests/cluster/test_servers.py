"""Inference servers on a cluster: batches of their own, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cluster_run import ENVS, RECIPE, Run, of_stream

from lrl.actors.actor import Decision
from lrl.actors.policy import NetworkPolicy
from lrl.cluster.asked_policy import NoAnswer
from lrl.cluster.remote_server import RemoteServer, RemoteServerPlan
from lrl.inference.config import InferenceConfig
from lrl.inference.manager import InferenceError
from lrl.networks import GRUCore, QNetwork
from lrl.networks.q_network import weights_of
from lrl.parts.recipe import Recipe

INFERENCE = InferenceConfig(max_batch_delay_seconds=0.001)
RECIPE_WITH_MEMORY = replace(RECIPE, core=Recipe.of(GRUCore))
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


def test_an_answer_that_is_lost_on_its_way_is_asked_for_again(ray):
    run = Run(inference=INFERENCE)
    run.poll(8)
    policy = run.actor().body._asked_policies[0]
    ray.is_lost = True
    with pytest.raises(NoAnswer):
        policy(policy._asked, None)
    run.poll(4)
    assert run.ledger().counts["instances"] == 2 * ENVS


def test_new_weights_are_sent_at_most_once_a_period(ray):
    run = Run(inference=replace(INFERENCE, sync_period_seconds=50.0))
    run.poll(8)
    run.pool.publish(run.network, 5)
    run.poll(1)
    assert server_of(run).version == 5
    run.pool.publish(run.network, 9)
    run.poll(4)  # with a sign of life at each
    assert server_of(run).version == 5
    assert run.fleet.servers is not None
    run.fleet.servers._updated[0] -= 50.0
    run.poll(1)
    assert server_of(run).version == 9


def failing(self, observation, memory=None):
    raise ValueError("not with me")


def test_a_network_that_fails_three_times_ends_its_server(ray, monkeypatch):
    run = Run(inference=replace(INFERENCE, max_restarts=0))
    run.poll(8)
    with monkeypatch.context() as patch:
        patch.setattr("lrl.actors.policy.NetworkPolicy.__call__", failing)
        run.poll(2)
    assert server_of(run).state == "acting"  # two of its batches failed
    run.poll(4)
    assert run.pool.metrics()["count/inference_failures"] == 2
    monkeypatch.setattr("lrl.actors.policy.NetworkPolicy.__call__", failing)
    run.poll(6)
    with pytest.raises(InferenceError, match=r"(?s)not with me.*inference.max_restarts is 0"):
        run.pool.check()
    assert run.ledger().counts["instances"] == 2 * ENVS


def test_a_server_that_cannot_begin_ends_the_run(ray, monkeypatch):
    run = Run(inference=INFERENCE)
    monkeypatch.setattr("lrl.networks.NetworkRecipe.build", failing)
    run.poll(4)
    with pytest.raises(InferenceError, match="not restarted"):
        run.pool.check()


def test_figures_of_the_servers_are_since_the_last_call(ray):
    run = Run(inference=INFERENCE)
    run.poll(10)
    metrics = run.pool.metrics()
    assert metrics["inference/batch_size_mean"] == ENVS
    assert metrics["inference/batch_fill"] == 0.5  # of two actors one waits for the other's turn
    assert metrics["inference/latency_ms_p50"] >= 1.0
    assert "inference/batch_fill" not in run.pool.metrics()


@pytest.fixture
def network():
    torch.manual_seed(3)
    return RECIPE_WITH_MEMORY.build()


def serving(network: QNetwork, delay: float) -> RemoteServer:
    vector = weights_of(network)
    server = RemoteServer()
    server.begin(RemoteServerPlan(RECIPE_WITH_MEMORY, 3, delay, "cpu", 1, 5), vector.numpy(), 4)
    return server


def questions(network: QNetwork, count: int) -> list[tuple[Any, Any]]:
    """Return observations and memories of groups of environments."""
    rng = np.random.default_rng(1)
    shape = RECIPE.env_spec.observation[""].shape
    return [
        (
            rng.random((ENVS, *shape)).astype(np.float32),
            {
                name: rng.random((ENVS, *c.shape)).astype(c.dtype)
                for name, c in network.memory.items()
            },
        )
        for _ in range(count)
    ]


def test_a_full_batch_runs_at_once_and_everybody_gets_their_own_rows(network):
    server, asked = serving(network, delay=60.0), questions(network, 3)

    async def ask() -> list[Decision]:
        return await asyncio.gather(*(server.decide(*question) for question in asked))

    decisions = asyncio.run(ask())
    policy = NetworkPolicy(network)
    for question, decision in zip(asked, decisions, strict=True):
        expected = policy(*question)
        assert decision.version == 4
        np.testing.assert_allclose(decision.values, expected.values, atol=1e-6)
        assert decision.memory is not None
        assert expected.memory is not None
        for name, column in expected.memory.items():
            np.testing.assert_allclose(decision.memory[name], column, atol=1e-6)
    counters = server.update(None, 4)
    assert (counters["batches"], counters["requests"], counters["capacity"]) == (1, 3, 3)
    assert counters["latency"].sum() == 3


def test_a_batch_that_is_not_full_runs_after_the_delay_of_its_own_oldest(network):
    server, asked = serving(network, delay=1.0), questions(network, 4)

    async def ask() -> float:
        first = asyncio.ensure_future(server.decide(*asked[0]))
        await asyncio.sleep(0.5)
        await asyncio.gather(first, server.decide(*asked[1]), server.decide(*asked[2]))
        started = time.monotonic()
        await server.decide(*asked[3])
        return time.monotonic() - started

    assert asyncio.run(ask()) >= 1.0
    assert server.update(None, 4)["batches"] == 2
