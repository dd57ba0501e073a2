"""What is refused before a run with actors on a cluster begins."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from helpers.training_runs import make_run, quiet, small_data

from lrl import ActorConfig, ActorLearnerCallback, ClusterConfig, InferenceConfig
from lrl.types import ConfigError

pytestmark = quiet


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"inference": InferenceConfig(), "actors": ActorConfig(num_actors=1)},
            "set actors.num_actors, which is 1, to 0",
        ),
        ({"inference": InferenceConfig(devices=("cuda:1",))}, "where Ray chooses the GPU"),
        ({"inference": InferenceConfig(num_servers=3)}, "num_servers 3 is more than the 2 groups"),
        (
            {
                "inference": InferenceConfig(devices=("cuda",), num_threads=2),
                "cluster": ClusterConfig(address="head:6379", i_know_this_network_is_private=True),
            },
            "has no cpu",
        ),
        (
            {"cluster": ClusterConfig(object_store_mib=99_999_999)},
            r"object_store_mib is 99999999, .* would take 104857.60 GB",
        ),
        (
            {"cluster": ClusterConfig(address="head:6379", object_store_mib=300)},
            "object_store_mib is 300, but cluster.address is head:6379, so that it would do",
        ),
        (
            {"cluster": ClusterConfig(i_know_this_network_is_private=True)},
            "i_know_this_network_is_private is True, but cluster.address is null",
        ),
        ({"cluster": ClusterConfig(address="head:6379")}, "set RAY_AUTH_MODE=token on all nodes"),
        ({"inference": InferenceConfig(devices=("cuda",))}, "torch sees 0 GPUs"),
        ({"actors": ActorConfig(num_actors=0, chunks_per_actor=8)}, "actors.chunks_per_actor is 8"),
        ({"actors": ActorConfig(num_actors=0, start_method="spawn")}, "actors.start_method is"),
    ],
)
def test_what_does_not_fit_a_cluster_is_refused_at_setup(tmp_path, monkeypatch, settings, text):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = {"actors": ActorConfig(num_actors=0), "cluster": ClusterConfig(), **settings}
    data = small_data(**settings)
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 0), data=data)
    with pytest.raises(ConfigError, match=text):
        run.fit()


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    data = small_data(cluster=ClusterConfig())
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 0), data=data)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[ray\]'"):
        run.fit()


def test_a_pool_of_ones_own_and_a_cluster_are_refused():
    from lrl.learner import ActorPool

    class Own(ActorPool):
        num_streams = 1
        start = poll = close = None  # pyright: ignore[reportAssignmentType]

    with pytest.raises(ConfigError, match=r"and data\.cluster would do nothing: leave them out"):
        small_data(pool=Own(), cluster=ClusterConfig())
