"""One run with actors in the background, looked at from many sides.

The environment labels every observation with where it is from, so each row can be accounted for.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training_runs import (
    Run,
    actor_processes,
    background,
    make_run,
    quiet,
    shared_blocks,
    small_agent,
    small_data,
    spy_on_rows,
)

from lrl import ActorLearnerCallback, EvaluationConfig, RateLimiterConfig, ReplayConfig
from lrl.actors.exploration import EpsilonSpread
from lrl.networks.q_network import read_vector
from lrl.testing import LedgerEnv
from lrl.transport import WeightStore
from lrl.types import RowKind, Rows

pytestmark = quiet
ACTORS, ENVS, BATCH, RATIO, SYNC, STEPS = 4, 4, 32, 2.0, 20, 700


@dataclass
class Records:
    """All rows in the order of their arrival, and all weights that were published."""

    run: Run
    received: list[tuple[int, Rows]] = field(default_factory=list)
    published: dict[int, np.ndarray] = field(default_factory=dict)
    blocks_before: int = 0

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([getattr(rows, name) for _, rows in self.received])

    @property
    def learner_steps(self) -> np.ndarray:
        """The learner step at which each row arrived."""
        return np.concatenate([np.full(len(rows), step) for step, rows in self.received])

    def of(self, stream: int, name: str) -> np.ndarray:
        return self.column(name)[self.column("stream") == stream]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    run = make_run(
        tmp_path_factory.mktemp("asynchronous"),
        ActorLearnerCallback(SYNC, 300, 0),
        module=small_agent(),
        data=small_data(
            "lrl/Ledger-v0",
            actors=background(ACTORS, ENVS),
            exploration=EpsilonSpread(0.0, 1.0),
            replay=ReplayConfig(capacity=5000, batch_size=BATCH),
            rate=RateLimiterConfig(samples_per_insert=RATIO, warm_up_env_steps=500),
            evaluation=EvaluationConfig(episodes=2),
        ),
        max_steps=STEPS,
        log_every_n_steps=50,
    )
    records = Records(run, blocks_before=shared_blocks())
    publish = WeightStore.publish

    def note(rows: Rows) -> None:
        records.received.append((run.trainer.global_step, copy.deepcopy(rows)))

    def spied_publish(self: WeightStore, vector: Any, version: int) -> None:
        records.published[version] = vector.copy()
        publish(self, vector, version)

    with pytest.MonkeyPatch.context() as patch:
        spy_on_rows(patch, note)
        patch.setattr(WeightStore, "publish", spied_publish)
        run.fit()
    return records


def test_every_row_arrives_exactly_once(records):
    kinds = records.column("kind")
    assert set(kinds) == {RowKind.STEP, RowKind.BOUNDARY}
    assert (kinds == RowKind.STEP).sum() > 10_000
    for stream in range(ACTORS * ENVS):
        _, episode, time = LedgerEnv.decode(records.of(stream, "frame")).T
        # Time counts up and starts anew after a boundary, which holds an episode's last frame.
        new = np.r_[False, records.of(stream, "kind")[:-1] == RowKind.BOUNDARY]
        np.testing.assert_array_equal(episode, np.cumsum(new))
        np.testing.assert_array_equal(time[new], 0)
        np.testing.assert_array_equal(np.diff(time)[~new[1:]], 1)


def test_rewards_and_ends_belong_to_their_rows(records):
    acted = records.column("kind") == RowKind.STEP
    _, episode, time = LedgerEnv.decode(records.column("frame"))[acted].T
    action = records.column("action")[acted]
    expected = (31 * episode + 7 * time + 3 * action) % 17 - 8
    np.testing.assert_array_equal(records.column("reward")[acted], expected)
    for stream in range(ACTORS * ENVS):
        ended = records.of(stream, "terminated") | records.of(stream, "truncated")
        boundary = records.of(stream, "kind") == RowKind.BOUNDARY
        np.testing.assert_array_equal(ended[:-1], boundary[1:])


def test_every_actor_has_environments_of_its_own(records):
    instances = [set(LedgerEnv.decode(records.of(s, "frame"))[:, 0]) for s in range(ACTORS * ENVS)]
    assert all(len(instance) == 1 for instance in instances)
    assert len(set.union(*instances)) == ACTORS * ENVS


def test_actors_begin_with_the_weights_that_were_published_before(records):
    """The first to act had version 0; on a busy machine another may start after a later one."""
    first = [records.of(stream, "policy_version")[0] for stream in range(ACTORS * ENVS)]
    assert min(first) == 0
    assert set(first) <= set(records.published)


def test_weights_are_published_in_their_period_and_never_older_ones_used(records):
    assert list(records.published) == list(range(0, STEPS + 1, SYNC))
    versions = records.column("policy_version")
    assert set(versions) <= set(records.published)
    assert len(set(versions)) > 10
    for stream in range(ACTORS * ENVS):
        assert (np.diff(records.of(stream, "policy_version")) >= 0).all()


def test_lag_is_bounded_by_the_period_and_the_rows_on_their_way(records):
    warm = records.learner_steps > 0
    lag = (records.learner_steps - records.column("policy_version"))[warm]
    assert lag.min() >= 0
    waiting = ACTORS * 4 * 16  # 4 chunks of 16 rows in each ring
    ahead = 2 * (BATCH + RATIO * 16)  # max_samples_ahead
    bound = SYNC + (waiting * RATIO + ahead) / BATCH
    # A process that the system leaves aside in the middle of a step may be older.
    assert np.quantile(lag, 0.9) <= bound + 2


def test_actors_act_as_the_learner_would_with_the_version_they_name(records):
    """The first environment never explores. So no version was torn, aliased, or misnamed."""
    network = records.run.module.network_recipe.build()
    vector = torch.empty(len(records.published[0]))
    versions, frames = records.of(0, "policy_version"), records.of(0, "frame")
    actions, acted = records.of(0, "action"), records.of(0, "kind") == RowKind.STEP
    assert acted.sum() > 500
    for version in set(versions):
        chosen = acted & (versions == version)
        vector.copy_(torch.from_numpy(records.published[version]))
        read_vector(network, vector)
        with torch.no_grad():
            q = network.q_values(torch.from_numpy(frames[chosen])).sort(dim=1)
        clear = (q.values[:, -1] - q.values[:, -2] > 1e-5).numpy()
        np.testing.assert_array_equal(
            actions[chosen][clear], q.indices[:, -1].numpy()[clear], f"version {version}"
        )


def test_published_weights_are_copies_that_training_leaves_alone(records):
    vectors = list(records.published.values())
    assert all((a != b).any() for a, b in itertools.pairwise(vectors))


def test_the_ratio_of_learning_to_acting_is_held(records):
    dataset = records.run.data.dataset
    assert dataset is not None
    assert 0.95 * RATIO <= dataset.limiter.samples_per_insert <= RATIO
    last = [row for row in records.run.metrics() if "train/loss" in row][-1]
    assert float(last["speed/samples_per_insert"]) == pytest.approx(RATIO, rel=0.05)


def test_metrics_tell_of_versions_and_rows(records):
    for row in records.run.metrics():
        if "train/loss" in row:
            step = int(row["step"])
            assert int(float(row["sync/policy_version"])) == step - step % SYNC
            assert 0 <= float(row["sync/policy_lag_mean"]) < STEPS
            assert 0 <= float(row["transport/queue_fill"]) <= 1
            assert 0 <= float(row["speed/actor_wait_fraction"]) <= 1
            received = sum(len(rows) for at, rows in records.received if at < step)
            assert float(row["count/rows_received"]) == received
            assert float(row["count/rows_dropped"]) == 0


def test_statistics_sum_up_to_what_was_received(records):
    env_steps = int((records.column("kind") == RowKind.STEP).sum())
    summary = json.loads((records.run.folder / "summary.json").read_text())
    assert summary["env_steps"] == env_steps
    assert [actor["actor"] for actor in summary["actors"]] == list(range(ACTORS))
    assert sum(actor["env_steps"] for actor in summary["actors"]) == env_steps
    ended = records.column("terminated") | records.column("truncated")
    assert sum(actor["episodes"] for actor in summary["actors"]) == ended.sum()
    assert summary["episodes"] == ended.sum()


def test_nothing_is_left_running(records):
    assert actor_processes() == []
    assert records.run.data.dataset is not None
    with pytest.raises(RuntimeError, match="closed"):
        next(records.run.data.dataset)
    gc.collect()
    assert shared_blocks() <= records.blocks_before + 1  # the weights, as long as the datamodule
