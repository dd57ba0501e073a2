"""Actors on a cluster, with a Ray that runs in this process: what is asked, counted, replaced."""

from __future__ import annotations

import dataclasses
import signal
import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.cluster_run import ENVS, LEDGER, SLOT, Run, of_stream
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lrl.actors.actor import Actor
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorError
from lrl.actors.policy import NetworkPolicy
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import packages_of
from lrl.envs import EnvConfig, make_envs
from lrl.learner.cluster_pool import JoinedPools
from lrl.types import ConfigError, RowKind, Rows


class ListSink:
    def __init__(self) -> None:
        self.rows: list[Rows] = []

    def put(self, rows: Rows) -> None:
        self.rows.append(rows)

    def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
        pass


def test_rows_are_those_of_the_same_actor_in_this_process(ray):
    run = Run()
    run.poll(12)
    slot = dataclasses.replace(SLOT, actor=1)
    sink = ListSink()
    envs = make_envs(LEDGER, ENVS, training=True)
    actor = Actor(envs, NetworkPolicy(run.network), EpsilonGreedy(), sink, slot)
    for _ in range(120):
        actor.step()
    for stream in (2, 3):
        for column in ("frame", "action", "reward", "kind", "terminated"):
            there = of_stream(run.rows, stream, column)
            assert len(there) > 30
            assert (there == of_stream(sink.rows, stream, column)[: len(there)]).all()
    statistics = run.pool.counts().actors
    assert [s.actor for s in statistics] == [0, 1]
    assert [s.node.split()[1] for s in statistics] == ["node0", "node1"]
    steps = sum(int((rows.kind == RowKind.STEP).sum()) for rows in run.rows)
    assert sum(s.env_steps for s in statistics) == steps


def test_an_actor_makes_no_more_than_was_asked_of_it(ray):
    run = Run(calls_per_actor=3)
    run.poll(10)
    assert [actor.most_unfinished for actor in ray.actors] == [3, 3]
    run.actor().is_silent = True
    run.poll(10)
    assert len(run.actor().calls) == 3


def test_a_learner_that_takes_one_answer_at_a_time_takes_them_of_all_actors_in_turn(ray):
    run = Run()
    run.poll(6)
    taken = [next(run.fleet.answers(0.0))[0].actor for _ in range(6)]
    assert sorted(taken) == [0, 0, 0, 1, 1, 1]


def test_pools_that_are_joined_give_as_many_rows_for_each_stream():
    def pool(name: str, num_streams: int) -> Any:
        delivery = SimpleNamespace(rows=[range(10)], name=name)
        return SimpleNamespace(num_streams=num_streams, poll=lambda timeout: iter([delivery] * 9))

    joined: Any = JoinedPools([pool("cluster", 2), pool("processes", 1)])
    taken = Counter(next(joined.poll(0.0)).name for _ in range(9))
    assert taken == {"cluster": 6, "processes": 3}
    assert len(list(joined.poll(0.0))) == 18


def test_new_weights_are_put_once_for_all_and_act_from_the_next_call(ray):
    run = Run(calls_per_actor=1)
    run.poll(4)
    assert ray.objects_put == 1
    run.pool.publish(run.network, 5)
    run.pool.publish(run.network, 9)
    rows = run.poll(3)
    assert ray.objects_put == 2
    assert {int(v) for r in rows for v in r.policy_version} == {0, 9}
    assert all(int(r.policy_version[-1]) == 9 for r in rows[-2:])


def test_a_dead_actor_is_replaced_and_its_calls_are_counted_as_lost(ray, caplog):
    run = Run()
    run.poll(6)
    run.actor().is_dead = True
    run.poll(1)
    assert "RayActorError: it died\nfor a reason; restart 1" in caplog.text
    assert run.actor().is_killed
    assert run.pool.metrics() == {"count/calls_lost": 2.0}
    run.restart()
    rows = run.poll(6)
    (first, *_) = (r for r in rows if (r.stream < ENVS).any())
    assert [int(k) for k in first.kind[:ENVS]] == [RowKind.GAP] * ENVS
    assert run.ledger().counts["instances"] == 3 * ENVS
    counts = run.pool.counts()
    assert (counts.restarts, [s.restarts for s in counts.actors]) == (1, [1, 0])
    assert ray.actors[2].options["max_restarts"] == ray.actors[2].options["max_task_retries"] == 0


def test_a_silent_actor_is_given_up_and_its_node_avoided(ray, caplog):
    run = Run(silence_seconds=15.0, labels={"zone": "a"})
    run.poll(6)
    node = f"node{run.actor().number}"
    run.actor().is_silent = True
    run.fleet.actors.all[0].since -= 14.0
    run.poll(1)
    assert run.fleet.actors.restarts == 0
    run.fleet.actors.all[0].since -= 1.0
    run.poll(1)
    assert "answered nothing for 15 s" in caplog.text
    assert ray.objects_put == 1
    run.restart()
    run.poll(2)
    assert ray.objects_put == 2  # whoever comes next fetches none from the silent node
    assert run.actor().options["label_selector"] == {"zone": "a", "ray.io/node-id": f"!in({node})"}


def test_who_waits_may_have_a_node_that_is_no_longer_avoided(ray):
    run = Run()
    run.poll(6)
    run.actor().is_dead = True
    run.fleet._nodes.avoid("node0")
    run.poll(1)
    ray.has_room = False
    run.restart()
    run.poll(1)
    first = run.actor()
    run.fleet.actors.all[0].launched_at -= 11.0
    run.poll(1)
    assert run.actor() is first
    run.fleet._nodes._avoided.clear()
    run.poll(1)
    assert first.is_killed
    assert run.actor().options["label_selector"] is None
    ray.has_room = True
    assert len(run.poll(6)) > 4
    assert run.pool.counts().restarts == 1


def test_a_learner_that_was_away_takes_nobody_for_silent(ray):
    run = Run(silence_seconds=15.0)
    run.poll(6)
    run.actor().is_silent = True
    run.fleet.actors.all[0].since -= 20.0
    run.fleet._looked_at -= 20.0  # an evaluation, or Ctrl-Z
    run.poll(1)
    assert run.fleet.actors.all[0].state == "acting"
    run.fleet._looked_at -= 2.0  # and who looks seldom finds out still
    run.fleet.actors.all[0].since -= 18.0
    run.poll(1)
    assert run.fleet.actors.all[0].state == "dead"


def test_a_head_node_that_is_gone_ends_the_run_before_ray_does(ray):
    run = Run()

    def look() -> None:
        run.fleet._knocked_at = 0.0
        run.poll(1)
        run.pool.check()

    with socket.create_server(("127.0.0.1", 0)) as head:
        ray.head = f"127.0.0.1:{head.getsockname()[1]}"
        run.fleet._had_head_at -= 100.0
        look()
    look()
    run.fleet._had_head_at -= 15.0
    with pytest.raises(ActorError, match=r"head node .* Connection refused; .*--ckpt_path last"):
        look()


def test_an_answer_that_waits_is_no_silence(ray):
    run = Run()
    run.poll(6)
    run.fleet.actors.all[0].since -= 100.0
    run.poll(1)
    assert run.fleet.actors.all[0].state == "acting"


def test_an_environment_that_fails_before_the_first_step_ends_the_run(ray):
    run = Run(env=EnvConfig("Nowhere-v0"))
    run.poll(4)
    with pytest.raises(ActorError, match=r"(?s)cluster actor 0 .*Nowhere.*not restarted"):
        run.pool.check()
    assert run.poll(1) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"on_failure": "fail"}, "on_failure is 'fail'"),
        ({"max_restarts": 0}, r"failed 1 times in 60 s; actors.max_restarts is 0"),
    ],
)
def test_failures_are_met_as_those_of_processes(ray, settings, text):
    run = Run(**settings)
    run.poll(6)
    run.actor().is_dead = True
    run.poll(2)
    with pytest.raises(ActorError, match=text):
        run.pool.check()


@pytest.mark.parametrize("damage", ["column", "incarnation", "run", "episodes"])
def test_a_damaged_answer_is_dropped_and_nothing_joined_across_it(ray, damage):
    run = Run(calls_per_actor=1)
    run.poll(6)
    received = sum(len(r) for r in run.rows)

    def damaged(answer):
        if damage == "column":
            answer.columns["reward"][3] += 1
            return answer
        value = [(1.0, 2, 3.0)] if damage == "episodes" else 17
        return answer._replace(**{damage: value})

    run.actor().answered = damaged
    lost = len(run.poll(1))
    run.actor().answered = lambda answer: answer
    dropped = run.pool.counts().rows_dropped
    assert dropped >= 16
    assert lost == 1  # that of the other actor
    rows = run.poll(2)
    first = next(r for r in rows if (r.stream < ENVS).any())
    assert set(first.kind) == {RowKind.GAP}
    assert sorted(first.stream) == [0, 1]
    assert received < sum(len(r) for r in run.rows)


def test_other_versions_are_refused_by_name(ray, monkeypatch):
    run = Run()
    monkeypatch.setattr("lrl.cluster.nodes.version", lambda name: "0.1")
    run.poll(1)
    here = np.__version__
    with pytest.raises(ActorError, match=rf"numpy 0.1 is installed there and {here} here"):
        run.pool.check()


def test_actors_without_room_wait_and_say_so(ray, caplog):
    ray.has_room = False
    run = Run(num_cpus=4)
    waiting = run.fleet.actors.all[0]
    waiting.since -= 1000.0
    waiting.launched_at -= 1000.0
    waiting.warned_at -= 31.0
    assert run.poll(3) == []
    (said,) = [message for message in caplog.messages if "waits for room" in message]
    assert said.startswith("cluster actor 0 waits for room")
    assert said.endswith("it takes num_cpus 4, and free are 0 of 2 CPU")
    ray.has_room = True
    assert run.poll(5)


def test_what_was_asked_for_is_taken_at_the_end(ray):
    run = Run()
    run.poll(6)
    last: list[Any] = []
    run.pool.close(last.append)
    run.pool.close(last.append)
    assert len(last) == 4  # two calls of each
    assert all(actor.is_killed for actor in ray.actors)
    assert [len(actor.calls) for actor in ray.actors] == [0, 0]


def test_the_environments_package_is_among_those_compared():
    assert packages_of(EnvConfig("CartPole-v1")) == ["lrl", "torch", "numpy", "gymnasium"] + [
        "gymnasium"
    ] * (len(packages_of(EnvConfig("CartPole-v1"))) - 4)
    assert packages_of(EnvConfig("ALE/Pong-v5"))[4:] == ["ale-py"]
    assert packages_of(EnvConfig(factory="helpers.factories.make"))[4:] == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_actors": 0}, "cluster.num_actors must be at least 1, got 0"),
        ({"calls_per_actor": 0}, "cluster.calls_per_actor must be at least 1"),
        ({"object_store_mib": 10}, "cluster.object_store_mib must be at least 80"),
        ({"address": "auto"}, "cluster.address must be host:port"),
        ({"num_cpus": -1.0}, "cluster.num_cpus must be at least 0"),
        ({"resources": {"gpu": -1.0}}, "cluster.gpu must be at least 0"),
        ({"resources": {"CPU": 1}}, "cluster.resources has 'CPU', which Ray counts itself"),
        ({"silence_seconds": 1.0}, "cluster.silence_seconds must be at least 3"),
    ],
)
def test_wrong_settings_are_told(settings, text):
    with pytest.raises(ConfigError, match=text):
        ClusterConfig(**settings)


def test_a_sigterm_while_ray_starts_ends_the_run_as_any_other(ray, monkeypatch):
    def init(**settings: Any) -> None:
        raise SystemExit(signal.SIGTERM)  # as Ray's own handler does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init, raising=False)
    monkeypatch.setattr(ray, "shutdown", lambda: None, raising=False)
    with pytest.raises(SIGTERMException):
        Run(address="head:6379", i_know_this_network_is_private=True)


def test_a_cluster_without_authentication_is_joined_only_if_one_says_so(ray, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        Run(address="head:6379")
