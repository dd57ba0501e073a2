"""Actors on a cluster, with a Ray that runs in this process: what is asked, counted, replaced."""

from __future__ import annotations

import dataclasses
import math
import socket
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.cluster_run import ENVS, LEDGER, SLOT, Run, of_stream
from helpers.fake_ray import RayError

from lrl import ReplayDataModule
from lrl.actors.actor import Actor
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorError
from lrl.actors.policy import NetworkPolicy
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.nodes import packages_of
from lrl.cluster.remote_actor import RemotePlan
from lrl.envs import EnvConfig, make_envs
from lrl.envs.minatar import register_minatar
from lrl.pools.joined import JoinedPools
from lrl.testing import LedgerEnv
from lrl.types import ConfigError, RowKind, Rows


def test_selectors_are_taken_where_there_are_nodes_to_choose_from():
    labels = {"zone": "!in(a,b)", "example.com/kind": "!c", "ray.io/accelerator-type": "in(T4, L4)"}
    assert ClusterConfig(address="head:6379", labels=labels).labels == labels


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
    run.settle()
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


def test_a_replaced_actor_is_told_how_far_the_run_is(ray, monkeypatch):
    """Actors beside the cluster, and those of other ranks, are taken to be as fast."""
    slot = dataclasses.replace(SLOT, num_actors=6, world_size=2)
    monkeypatch.setattr("helpers.cluster_run.SLOT", slot)
    run = Run()
    run.poll(6)
    actors, told = run.fleet.actors, []
    plan_of = actors._plan

    def watched(number: int, slot: ActorSlot, env_steps: int) -> RemotePlan:
        told.append((env_steps, sum(actor.env_steps for actor in actors.statistics())))
        return plan_of(number, slot, env_steps)

    monkeypatch.setattr(actors, "_plan", watched)
    run.actor().is_dead = True
    run.poll(1)
    run.restart()
    run.poll(1)
    ((env_steps, of_two),) = told
    assert env_steps == of_two * 6 > 0


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
    run.settle()
    assert first.is_killed
    assert run.actor().options["label_selector"] is None
    ray.has_room = True
    assert len(run.poll(6)) > 4
    assert run.pool.counts().restarts == 1


def later(run: Run, seconds: float) -> None:
    """Look after so many seconds."""
    run.fleet._looked_at -= seconds
    run.fleet._session.head._silent_since -= seconds
    for remote in run.fleet.actors.all:
        remote.since -= seconds
    run.poll(1)


def test_a_learner_that_was_away_takes_nobody_for_silent(ray):
    run = Run(silence_seconds=15.0)
    run.poll(6)
    run.actor().is_silent = True
    later(run, 100.0)  # an evaluation, or Ctrl-Z
    assert run.fleet.actors.all[0].state == "acting"


@pytest.mark.parametrize("seconds", [0.5, 2.0, 9.0])
def test_a_learner_that_looks_seldom_finds_out_still(ray, seconds: float):
    run = Run(silence_seconds=15.0)
    run.poll(6)
    run.actor().is_silent = True
    looks, began = 0, time.monotonic()
    while run.fleet.actors.all[0].state == "acting":
        looks += 1
        later(run, seconds)
    passed = time.monotonic() - began  # which counts, too
    assert 15.0 <= looks * seconds + passed < 3 * 15.0 + passed
    assert looks >= 3
    assert run.fleet.actors.all[1].state == "acting"


def test_a_learner_that_takes_no_rows_looks_after_actors_still(ray):
    run = Run(silence_seconds=15.0)
    run.poll(6)
    run.actor().is_silent = True
    run.fleet.actors.all[0].since -= 16.0
    time.sleep(0.1)
    run.pool.check()
    assert run.fleet.actors.all[0].state == "dead"


@pytest.fixture
def silent_head(ray):
    """Let the head answer nothing from now on, and again at the end, so that threads end."""
    yield ray.head_answers.clear
    ray.head_answers.set()


def test_a_head_node_that_is_silent_ends_the_run_before_ray_does(ray, silent_head):
    run = Run()
    head = run.fleet._session.head

    def look() -> None:
        run.poll(1)
        run.pool.check()

    look()
    run.settle()
    look()
    silent_head()
    head._asked_at -= 5.0
    look()
    run.fleet._looked_at -= 100.0  # an evaluation, or Ctrl-Z
    head._silent_since -= 109.0
    look()
    head._silent_since -= 2.0
    text = (
        "head node of the Ray cluster cannot be reached: it has answered nothing for 16 s; .*last"
    )
    with pytest.raises(ActorError, match=text):
        look()
    began = time.monotonic()
    run.pool.close(lambda delivery: None)
    assert time.monotonic() - began < 5.0  # nobody waits for its leave


def test_a_head_node_that_answers_with_errors_is_asked_until_it_has_answered(ray, monkeypatch):
    def lost() -> None:
        raise RuntimeError("lost")

    run = Run()
    head = run.fleet._session.head
    with monkeypatch.context() as patch:
        patch.setattr(ray, "nodes", lost)
        run.poll(1)
        run.settle()
    run.poll(1)
    run.settle()
    run.poll(1)
    assert head.room({}) == "0 of 2 CPU"
    monkeypatch.setattr(ray, "nodes", lost)
    head._asked_at -= 5.0
    run.poll(1)
    run.settle()
    head._silent_since -= 16.0
    run.poll(1)
    with pytest.raises(ActorError, match="cannot be reached: RuntimeError: lost; with another"):
        run.pool.check()


def test_a_silent_head_node_keeps_nobody_from_leaving(ray, silent_head, monkeypatch, caplog):
    run = Run()
    run.poll(6)
    monkeypatch.setattr("lrl.cluster.session._LEAVE_SECONDS", 0.1)
    silent_head()
    run.pool.close(lambda delivery: None)
    assert "Ray has not left the cluster within 0.1 s" in caplog.text


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


def test_a_module_that_a_node_does_not_have_is_told_in_a_sentence(ray):
    run = Run(env=EnvConfig(factory="nowhere.make"))
    run.poll(4)
    with pytest.raises(ActorError, match=r"No module named 'nowhere'.*; install it on every node"):
        run.pool.check()


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
    run = Run(num_cpus=4, labels={"zone": "c"})
    run.poll(1)
    run.settle()
    waiting = run.fleet.actors.all[0]
    waiting.since -= 1000.0
    waiting.launched_at -= 1000.0
    assert run.poll(3) == []
    (said,) = [message for message in caplog.messages if "waits for room" in message]
    assert said.startswith("cluster actor 0 waits for room")
    assert said.endswith(
        "it takes num_cpus 4, label_selector {'zone': 'c'}, and free are 0 of 2 CPU; of the nodes, "
        "zone is a, b, not set"
    )
    ray.has_room = True
    assert run.poll(5)


def test_who_has_joined_while_the_learner_was_away_is_not_told_to_wait(ray, caplog):
    run = Run()
    run.poll(6)
    run.actor().is_dead = True
    run.poll(1)
    ray.has_room = False
    run.restart()
    run.poll(1)
    joining = run.fleet.actors.all[0]
    assert joining.state == "joining"
    ray.has_room = True
    joining.launched_at -= 11.0  # of an evaluation
    run.poll(3)
    assert "waits for room" not in caplog.text
    assert run.fleet.actors.all[0] is joining
    assert joining.state == "acting"


class Unplayable(LedgerEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        raise FileNotFoundError("no such map")


def test_an_environment_that_never_begins_is_not_tried_again(ray):
    run = Run(env=EnvConfig(factory=Unplayable))
    run.poll(8)
    with pytest.raises(ActorError, match=r"no such map(.|\n)*it failed before its first step: not"):
        run.pool.check()
    assert len(ray.actors) == 2
    assert run.fleet.actors.calls_lost == 0


def test_the_rate_limiter_knows_how_much_one_answer_brings(ray):
    run = Run()
    most = max(int((rows.kind == RowKind.STEP).sum()) for rows in run.poll(40))
    data = ReplayDataModule(
        LEDGER,
        ActorConfig(num_actors=0, envs_per_actor=ENVS, chunk_rows=16),
        cluster=ClusterConfig(),
    )
    data.trainer = SimpleNamespace(
        global_rank=0, world_size=1, callbacks=[], strategy=None, lightning_module=None
    )  # pyright: ignore[reportAttributeAccessIssue]
    limiter = data._build_dataset(data.env_spec, data.replay.sampler()).limiter
    assert most <= limiter._insert_size == 17


def test_what_was_asked_for_is_taken_at_the_end(ray):
    run = Run()
    run.poll(6)
    last: list[Any] = []
    run.pool.close(last.append)
    run.pool.close(last.append)
    assert len(last) == 4  # two calls of each
    assert all(actor.is_killed for actor in ray.actors)
    assert [len(actor.calls) for actor in ray.actors] == [0, 0]


def test_actors_are_ended_though_their_last_rows_cannot_be_taken(ray):
    run = Run()
    run.poll(6)

    def take(delivery: Any) -> None:
        raise ValueError("wrong rows")

    with pytest.raises(ValueError, match="wrong rows"):
        run.pool.close(take)
    assert all(actor.is_killed for actor in ray.actors)


def test_the_environments_package_is_among_those_compared():
    import ale_py.env  # registers its own, as a run has by then

    assert packages_of(EnvConfig("CartPole-v1")) == ["lrl", "torch", "numpy", "gymnasium"]
    assert packages_of(EnvConfig("ALE/Pong-v5"))[4:] == ["ale-py"]
    assert packages_of(EnvConfig("ale_py:ALE/Pong-v5"))[4:] == ["ale-py"]
    of_a_class: Any = ale_py.env.AtariEnv
    gymnasium.register("OfAClass-v0", entry_point=of_a_class)
    assert packages_of(EnvConfig("OfAClass-v0"))[4:] == ["ale-py"]
    gymnasium.registry.pop("OfAClass-v0")
    register_minatar()
    assert packages_of(EnvConfig("lrl/MinAtarBreakout-v0"))[4:] == ["minatar"]
    assert packages_of(EnvConfig(factory="helpers.factories.make"))[4:] == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_actors": 0}, "cluster.num_actors must be at least 1, got 0"),
        ({"calls_per_actor": 0}, "cluster.calls_per_actor must be at least 1"),
        ({"object_store_mib": 10}, "cluster.object_store_mib must be at least 80"),
        ({"address": "auto"}, "cluster.address must be host:port"),
        ({"num_cpus": -1.0}, "cluster.num_cpus must be 0 or a finite number .* got -1.0"),
        ({"num_cpus": math.inf}, "cluster.num_cpus must be 0 or a finite number .* got inf"),
        ({"num_cpus": 0.00001}, "cluster.num_cpus must be 0 or a .* from 0.0001 on, got 1e-05"),
        ({"resources": {"gpu": -1.0}}, "cluster.resources 'gpu' must be 0 or .* got -1.0"),
        ({"resources": {"gpu": "1"}}, "cluster.resources 'gpu' must be 0 or .* got '1'"),
        ({"resources": {"": 1.0}}, "cluster.resources has '', but names are text"),
        ({"labels": {"zone": 1}}, "cluster.labels 'zone' must be a value, .*got 1"),
        ({"labels": {"a b": "x"}}, "cluster.labels has the key 'a b'"),
        ({"labels": {"zone": "in()"}}, r"cluster.labels 'zone' must be a value, .*got 'in\(\)'"),
        ({"labels": {"zone": "!in(a, b)"}}, r"'!in\(a, b\)' chooses among nodes, but a Ray that"),
        ({"labels": {"ray.io/node-id": "a"}}, "'ray.io/node-id': 'a' chooses among nodes"),
        ({"resources": {"CPU": 1}}, "cluster.resources has 'CPU', which Ray counts itself"),
        ({"silence_seconds": 1.0}, "cluster.silence_seconds must be at least 3"),
    ],
)
def test_wrong_settings_are_told(settings, text):
    with pytest.raises(ConfigError, match=text):
        ClusterConfig(**settings)


def test_a_ray_that_is_started_here_has_whole_numbers_of_a_resource(ray):
    ray.is_member = False
    run = Run(num_actors=3, resources={"a": 0.5})
    run.pool.close(lambda delivery: None)
    assert ray.settings["resources"] == {"a": 2}


@pytest.fixture
def head_address(ray, monkeypatch):
    """Let somebody listen who says nothing; return where."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr("lrl.cluster.session._LEAVE_SECONDS", 0.1)
    ray.is_member = False
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield f"127.0.0.1:{head.getsockname()[1]}"


def refusal(run: Run) -> str:
    run.poll(1)
    with pytest.raises(ConfigError) as caught:
        run.pool.check()
    run.pool.close(lambda delivery: None)
    return str(caught.value)


@pytest.mark.usefixtures("head_address")
def test_nobody_at_the_address_is_told_at_once():
    text = "data.cluster.address 127.0.0.1:1: nobody listens there: [Errno 111] Connection refused"
    assert refusal(Run(address="127.0.0.1:1")) == text


def test_somebody_who_is_no_head_node_is_told_after_a_while(head_address, silent_head):
    silent_head()
    run = Run(address=head_address, waits=False)
    run.poll(1)
    run.pool.check()
    run.fleet._session._give_up_at -= 20.0
    where = f"data.cluster.address {head_address} cannot be joined"
    text = f"{where}: it took over 20 s; a head node of Ray has to listen there, and the token here"
    assert refusal(run).startswith(text)


@pytest.mark.parametrize("error", [ValueError("too much"), RayError("no token")])
def test_what_ray_says_while_it_is_joined_is_told(ray, head_address, monkeypatch, error):
    def init(**settings: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)
    assert f"cannot be joined: {error}; a head node" in refusal(Run(address=head_address))
    monkeypatch.delenv("RAY_AUTH_MODE")
    run = Run(address=head_address, i_know_this_network_is_private=True)
    assert "and if it asks for a token, set RAY_AUTH_MODE=token" in refusal(run)


def test_a_cluster_without_authentication_is_joined_only_if_one_says_so(ray, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    ray.is_member = False
    assert "RAY_AUTH_MODE=token" in refusal(Run(address="head:6379"))
