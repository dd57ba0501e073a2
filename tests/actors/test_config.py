import math

import pytest

from lrl.actors.config import ActorConfig
from lrl.types import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_actors", -1),
        ("envs_per_actor", 0),
        ("max_restarts", -1),
        ("chunk_rows", 0),
        ("chunks_per_actor", 1),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", math.nan),
        ("start_method", "fork"),
        ("on_failure", "ignore"),
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
        ("timeout_seconds", 0.1),
        ("start_method", "spawn"),
        ("on_failure", "fail"),
    ],
)
def test_limits_are_allowed(name: str, value):
    assert getattr(ActorConfig(**{name: value}), name) == value
