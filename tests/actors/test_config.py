import math

import pytest

from lrl.actors.config import ActorConfig
from lrl.inference.config import InferenceConfig
from lrl.types import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_actors", -1),
        ("envs_per_actor", 0),
        ("max_restarts", -1),
        ("chunk_rows", 0),
        ("chunks_per_actor", 1),
        ("chunks_per_actor", 1025),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", math.nan),
        ("start_method", "fork"),
        ("on_failure", "ignore"),
        ("timeout_seconds", 0.9),  # a sign of life may be so old
    ],
)
def test_a_wrong_setting_is_named_with_its_value(name: str, value):
    with pytest.raises(ConfigError, match=rf"actors\.{name} .*{value}"):
        ActorConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_actors", 0),
        ("envs_per_actor", 1),
        ("max_restarts", 0),
        ("chunk_rows", 1),
        ("chunks_per_actor", 2),
        ("timeout_seconds", 1.0),
        ("start_method", "spawn"),
        ("on_failure", "fail"),
    ],
)
def test_limits_are_allowed(name: str, value):
    assert getattr(ActorConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("num_servers", 0, "0: where actors compute .* inference is null"),
        ("groups_per_actor", 0, "0"),
        ("groups_per_actor", 64, "64"),
        ("batch_size", 0, "0"),
        ("max_batch_delay_seconds", -0.1, "-0.1"),
        ("max_batch_delay_seconds", math.nan, "nan"),
        ("devices", (), r"\[\]"),
        ("devices", "cuda", r"\[cuda\]"),
        ("devices", ("cpu", "cuda"), r"\['cpu', 'cuda'\]"),
        ("sync_period_seconds", -1.0, "-1.0"),
        ("num_threads", 0, "0"),
        ("on_failure", "ignore", "ignore"),
        ("max_restarts", -1, "-1"),
        ("timeout_seconds", 0.0, "0.0"),
    ],
)
def test_a_wrong_setting_of_inference_is_named_with_its_value(name: str, value, shown: str):
    with pytest.raises(ConfigError, match=rf"inference\.{name} .*{shown}"):
        InferenceConfig(**{name: value})


@pytest.mark.parametrize(
    ("servers", "actors", "groups", "dealt"),
    [
        (1, 3, 1, [[0, 1, 2]]),
        (2, 3, 1, [[0, 2], [1]]),
        (2, 2, 2, [[0, 2], [1, 3]]),  # each actor's first group to the first server
        (4, 2, 2, [[0], [1], [2], [3]]),
    ],
)
def test_groups_are_dealt_out_to_servers(servers: int, actors: int, groups: int, dealt):
    config = InferenceConfig(num_servers=servers, groups_per_actor=groups)
    asking = ActorConfig(num_actors=actors)
    assert [config.slots_of(server, asking) for server in range(servers)] == dealt


@pytest.mark.parametrize(
    ("batch_size", "groups", "requests"),
    [
        (None, 1, [4]),  # all that can wait at once
        (None, 2, [4]),  # one of each actor's two groups
        (None, 1, [2, 2]),
        (None, 2, [4, 4]),  # each server has one group of each actor
        (None, 1, [2, 1, 1]),
        (8, 1, [1]),
        (31, 1, [3]),  # a fourth request of 8 would not fit
        (32, 1, [4]),
        (4, 2, [1]),
        (16, 1, [2, 2]),
    ],
)
def test_a_batch_is_so_many_requests(batch_size, groups: int, requests: list[int]):
    config = InferenceConfig(len(requests), groups, batch_size)
    actors = ActorConfig(num_actors=4, envs_per_actor=8)
    config.check(actors)
    servers = range(len(requests))
    assert [config.requests_per_batch(server, actors) for server in servers] == requests


def test_the_cores_that_servers_keep_busy():
    assert InferenceConfig().busy_threads == 1
    assert InferenceConfig(num_servers=2, num_threads=3).busy_threads == 6
    devices = ("cpu", "cuda")
    assert InferenceConfig(num_servers=3, num_threads=3, devices=devices).busy_threads == 7
