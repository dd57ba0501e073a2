"""Runs of an agent that remembers: replay holds what the policy remembered, and it learns."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.exact_runs import assert_same, outcome, saving_run
from helpers.training_runs import (
    AfterEachStep,
    Run,
    actor_processes,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
    spy_on_rows,
)

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
    SequenceConfig,
)
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.policy import NetworkPolicy
from lrl.envs import WrapperConfig
from lrl.evaluation.episodes import run_episodes
from lrl.learner import DoubleBootstrap, MunchausenBootstrap
from lrl.learner.agent import load_agent
from lrl.networks import GRUCore, LSTMCore, MultiEncoder
from lrl.networks.q_network import read_vector
from lrl.replay import PrioritizedSampler
from lrl.schedules import Linear
from lrl.testing import Ledger, LedgerEnv
from lrl.transport import WeightStore
from lrl.types import Batch, RowKind, Rows

pytestmark = quiet
HIDDEN = 7


def recurrent_agent(**settings: Any) -> DQN:
    core = functools.partial(GRUCore, hidden_size=HIDDEN)
    return small_agent(**{"core": core, **settings})


def recall_data(truncate: bool = True, delay: int = 2, **settings: Any) -> Any:
    """Truncated episodes: targets look at the memory of BOUNDARY rows."""
    kwargs = {"cues": 3, "delay": delay, "truncate": truncate}
    return small_data(env=EnvConfig("lrl/Recall-v0", kwargs), **settings)


@pytest.fixture
def received(monkeypatch) -> list[Rows]:
    rows: list[Rows] = []
    spy_on_rows(monkeypatch, lambda new: rows.append(copy.deepcopy(new)))
    return rows


def streams_of(received: list[Rows]) -> dict[int, list[dict[str, Any]]]:
    """The rows of each stream in their order: the numbers by which keys of a batch name them."""
    streams: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for rows in received:
        columns = rows.columns()
        columns.setdefault("memory.hidden", np.zeros((len(rows), HIDDEN), np.float32))
        for index in range(len(rows)):
            row = {name: column[index] for name, column in columns.items()}
            streams[int(row["stream"])].append(row)
    return streams


@pytest.mark.parametrize("bootstrap", [DoubleBootstrap, MunchausenBootstrap])
@pytest.mark.parametrize("updates", [1, 5])
def test_batches_hold_what_the_policy_remembered_bit_for_bit(
    tmp_path, monkeypatch, received, bootstrap, updates
):
    """The policy's memory is computed once more beside it, by the cell itself."""
    remembered: list[np.ndarray] = []  # before each of the policy's calls
    ended = np.zeros(2, np.bool_)
    act = NetworkPolicy.__call__

    def spied(self: NetworkPolicy, observation: Any, memory: Any = None) -> Any:
        network: Any = self.network
        with torch.inference_mode():
            if not remembered:
                remembered.append(np.zeros((2, HIDDEN), np.float32))
            hidden = torch.from_numpy(remembered[-1])
            after = network.core.cell(network.encoder(torch.from_numpy(observation)), hidden)
        # Rows come after the call: an episode that ended in the last one begins anew after this.
        if received:
            ended[:] = received[-1].truncated & (received[-1].kind == RowKind.STEP)
        remembered.append(np.where(ended[:, None], 0, after.numpy()).astype(np.float32))
        return act(self, observation, memory)

    batches: list[Any] = []
    monkeypatch.setattr(NetworkPolicy, "__call__", spied)
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        AfterEachStep(lambda trainer, batch: batches.extend(batch if updates > 1 else [batch])),
        module=recurrent_agent(bootstrap=bootstrap, updates_per_step=updates),
        data=recall_data(),
        max_steps=40,
    ).fit()
    assert len(received) == len(remembered) - 1 > 40
    for rows, before in zip(received, remembered, strict=False):
        assert rows.memory is not None
        np.testing.assert_array_equal(rows.memory["hidden"], before)
    streams, bootstrapped = streams_of(received), 0
    assert len(batches) == 40
    for batch in batches:
        for index, (stream, number) in enumerate(batch.keys.tolist()):
            here, there = streams[stream][number], streams[stream][number + 1]
            assert here["kind"] == RowKind.STEP
            before, after = here["memory.hidden"], there["memory.hidden"]
            np.testing.assert_array_equal(batch.memory["hidden"][index], before)
            np.testing.assert_array_equal(batch.next_memory["hidden"][index], after)
            bootstrapped += int(there["kind"] == RowKind.BOUNDARY and after.any())
    assert bootstrapped > 20
    assert run.module.env_spec == run.data.env_spec


SEQUENCES = SequenceConfig(length=6, overlap=3, burn_in=4)
MODES = {
    "synchronous": {"actors": ActorConfig(0, 2)},
    "asynchronous": {"actors": background(2, 2)},
    "central": {"actors": background(2, 2), "inference": InferenceConfig(groups_per_actor=2)},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("updates", [1, 5])
def test_sequences_hold_the_rows_as_they_came(tmp_path, received, mode, updates):
    """With what the policy remembered at the first of them, wherever it acts."""
    batches: list[Any] = []
    replay = ReplayConfig(2000, 8, n_step=2, sampler=PrioritizedSampler, sequences=SEQUENCES)
    make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        AfterEachStep(lambda trainer, batch: batches.extend(batch if updates > 1 else [batch])),
        module=recurrent_agent(bootstrap=DoubleBootstrap, updates_per_step=updates),
        data=recall_data(replay=replay, **MODES[mode]),
        max_steps=30,
    ).fit()
    streams, ends, time = streams_of(received), 0, 4 + 6 + 2
    assert len(batches) == 30
    for batch in batches:
        assert batch.kind.shape == (8, time)
        for index, (stream, number) in enumerate(batch.keys.tolist()):
            rows = streams[stream][number : number + time]
            assert batch.kind[index].tolist() == [row["kind"] for row in rows]
            frames = np.stack([row["frame"] for row in rows])
            np.testing.assert_array_equal(batch.observation[index], frames)
            np.testing.assert_array_equal(batch.action[index], [r["action"] for r in rows[4:10]])
            hidden = batch.memory["hidden"][index]
            np.testing.assert_array_equal(hidden, rows[0]["memory.hidden"])
            ends += int(hidden.any())
    assert ends > 100


def killing(received: list[Rows]) -> Callable[[L.Trainer, Any], None]:
    """Kill an actor, and stop once rows of the one in its place have come, which takes seconds."""
    killed: list[int] = []

    def kill(trainer: L.Trainer, batch: Any) -> None:
        if not killed and trainer.global_step >= 50:
            streams = {int(stream) for rows in received for stream in rows.stream}
            if len(streams) == 4:
                killed.append(actor_processes()[0].pid)
                os.kill(killed[0], signal.SIGKILL)
        elif trainer.global_step % 100 == 0 and trainer.global_step >= 600:
            gaps = sum((rows.kind == RowKind.GAP).sum() for rows in received)
            trainer.should_stop = bool(gaps == 2)

    return kill


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("inference", [None, InferenceConfig(groups_per_actor=2)])
def test_memory_crosses_processes(tmp_path, monkeypatch, received, inference, is_killed):
    """Each row's memory follows from the row before it, by the weights of that row's version.

    An actor that takes the place of a killed one remembers nothing of it.
    """

    weights: dict[int, torch.Tensor] = {}
    publish = WeightStore.publish

    def spied(self: WeightStore, vector: Any, version: int) -> None:
        weights[version] = torch.from_numpy(vector.copy())
        publish(self, vector, version)

    monkeypatch.setattr(WeightStore, "publish", spied)
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        *([AfterEachStep(killing(received))] if is_killed else []),
        module=recurrent_agent(),
        data=recall_data(actors=background(2, 2), inference=inference),
        max_steps=50_000 if is_killed else 100,
    ).fit()
    networks: dict[int, Any] = {}
    for version, vector in weights.items():
        networks[version] = run.module.network_recipe.build()
        read_vector(networks[version], vector)
    seen = versions = restarts = 0
    for stream in streams_of(received).values():
        for row, after in itertools.pairwise(stream):
            if after["kind"] == RowKind.GAP:
                restarts += 1
                continue
            hidden = torch.from_numpy(row["memory.hidden"])[None]
            expected = torch.zeros_like(hidden)
            if row["kind"] == RowKind.STEP:
                network = networks[int(row["policy_version"])]
                frame = torch.from_numpy(row["frame"])[None]
                expected = network.core(network.encoder(frame), {"hidden": hidden})[0].detach()
                seen += 1
            elif row["kind"] == RowKind.BOUNDARY:
                assert hidden.any()
            np.testing.assert_allclose(
                after["memory.hidden"], expected[0].numpy(), rtol=1e-4, atol=1e-6
            )
            versions = max(versions, int(row["policy_version"]))
    assert seen > 100
    assert versions > 5
    assert restarts == 2 * is_killed  # the environments of one actor


def test_the_last_action_and_reward_may_be_inputs(tmp_path):
    """As R2D2 has them: leaves of the observation, which sequences hold like any other."""
    replay = ReplayConfig(2000, 8, n_step=2, sequences=SEQUENCES)
    env = EnvConfig("lrl/Chain-v0", wrappers=[WrapperConfig("lrl.envs.LastStep")])
    batches: list[Any] = []
    encoder: Any = MultiEncoder
    make_run(
        tmp_path,
        ActorLearnerCallback(5, 10, 0),
        AfterEachStep(lambda trainer, batch: batches.append(batch)),
        module=DQN(encoder, core=functools.partial(GRUCore, hidden_size=HIDDEN)),
        data=small_data(env=env, replay=replay),
        max_steps=20,
    ).fit()
    for batch in batches:
        shown, taken = batch.observation["action"][:, 5:10], batch.action[:, :5]
        goes_on = ~batch.begins[:, 5:10] & (batch.kind[:, 5:10] == RowKind.STEP)
        assert torch.equal(shown[goes_on], taken[goes_on].to(shown.dtype) + 1)
        assert not shown[batch.begins[:, 5:10]].any()


def single_transitions(batch: Any) -> Batch:
    """What is learnt from of sequences, by the observations themselves."""
    index, place = batch.learns.nonzero(as_tuple=True)
    rows, ahead = place + batch.burn_in, batch.next_row[index, place]
    numbers = torch.stack((batch.keys[index, 0], batch.keys[index, 1] + rows), dim=1)
    parts = {name: getattr(batch, name)[index, place] for name in ("action", "reward", "discount")}
    return Batch(
        observation=batch.observation[index, rows],
        next_observation=batch.observation[index, ahead],
        weights=batch.weights[index],
        keys=numbers,
        **parts,
    )


@pytest.mark.slow
def test_the_ledger_balances_with_memory_though_an_actor_is_killed(tmp_path, monkeypatch):
    """Rows once each and in order, and every transition of every sequence as it was made."""
    ledger, env = Ledger(LedgerEnv()), EnvConfig("lrl/Ledger-v0")
    spy_on_rows(monkeypatch, ledger.take)
    killed: list[int] = []

    def look(trainer: L.Trainer, batch: Any) -> None:
        ledger.take_batch(single_transitions(batch), n_step=3, gamma=0.9)
        if not killed and trainer.global_step >= 50 and ledger.counts["instances"] == 4:
            killed.append(actor_processes()[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        trainer.should_stop = trainer.global_step >= 400 and ledger.counts["instances"] == 6

    replay = ReplayConfig(3000, batch_size=8, n_step=3, gamma=0.9, sequences=SEQUENCES)
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        AfterEachStep(look),
        module=recurrent_agent(),
        data=small_data(env=env, actors=background(2, 2), replay=replay),
        max_steps=50_000,
    ).fit()
    ledger.raise_faults()
    assert ledger.counts["instances"] == 6
    assert ledger.counts["transitions"] > 10_000
    assert run.data.dataset is not None
    assert ledger.counts["steps"] == run.data.dataset.env_steps


def recall(folder: Path, *, max_steps: int, seed: int = 0, **replay: Any) -> Run:
    L.seed_everything(seed, verbose=False)
    data = recall_data(replay=ReplayConfig(300, batch_size=16, n_step=2, **replay), seed=seed)
    core = functools.partial(LSTMCore if replay else GRUCore, hidden_size=HIDDEN)
    agent = recurrent_agent(core=core)
    return saving_run(folder, agent, data, max_steps=max_steps, evaluate=25)


@pytest.mark.parametrize(
    "replay",
    [{}, {"sequences": SEQUENCES}, {"sequences": SEQUENCES, "sampler": PrioritizedSampler}],
)
def test_an_interrupted_run_equals_one_that_was_not(tmp_path, replay):
    expected = outcome(recall(tmp_path, max_steps=60, **replay).fit())
    assert expected["pool"]["memory"]["hidden"].any()
    first = recall(tmp_path, max_steps=31, **replay).fit()
    second = recall(tmp_path, max_steps=60, seed=7, **replay).fit(first.checkpoint("last"))
    assert_same(outcome(second), expected)


def test_a_saved_replay_is_of_its_own_sequences(tmp_path, caplog):
    first = recall(tmp_path, max_steps=31, sequences=SEQUENCES).fit()
    other = SequenceConfig(length=8, overlap=3, burn_in=4)
    recall(tmp_path, max_steps=35, sequences=other).fit(first.checkpoint("last"))
    assert "is left out, and filled to its minimum again" in caplog.text
    assert "replay.sequences.length was 6 and is 8" in caplog.text


def trained(folder: Path, steps: int, delay: int = 2, replay: Any = None, **agent: Any) -> Run:
    L.seed_everything(0, verbose=False)
    module = recurrent_agent(
        **{
            "core": functools.partial(GRUCore, hidden_size=32),
            "optimizer": functools.partial(torch.optim.Adam, lr=3e-3),
            "target_update_period_learner_steps": 20,
            **agent,
        }
    )
    data = recall_data(
        truncate=False,
        delay=delay,
        actors=ActorConfig(num_actors=0, envs_per_actor=8),
        exploration=EpsilonGreedy(Linear(1.0, 0.1, 3000)),
        replay=replay or ReplayConfig(capacity=3000, batch_size=64, n_step=1, gamma=0.9),
        rate=RateLimiterConfig(samples_per_insert=8.0, warm_up_env_steps=500),
        evaluation=EvaluationConfig(episodes=50),
    )
    callback = ActorLearnerCallback(1, steps // 4, 0)
    return make_run(folder, callback, module=module, data=data, max_steps=steps, seed=None).fit()


def test_it_recalls_what_it_has_seen(tmp_path):
    run = trained(tmp_path, 800)
    assert run.callback.best_model_score == 1.0
    agent = load_agent(run.checkpoint("best"))
    settings = agent.evaluation()
    episodes = run_episodes(
        agent.env, agent.policy(), range(50),
        epsilon=settings["epsilon"], max_frames=settings["max_frames_per_episode"],
    )  # fmt: skip
    assert episodes.returns.mean() == 1.0


def test_without_memory_there_is_nothing_to_recall(tmp_path):
    assert trained(tmp_path, 400, core=None).callback.best_model_score < 0.6


def test_sequences_teach_it_to_remember_for_longer(tmp_path):
    """With single transitions it would have to learn what to remember from one step to the next."""
    sequences = SequenceConfig(length=24, overlap=12, burn_in=0)
    replay = ReplayConfig(3000, batch_size=8, n_step=1, gamma=0.9, sequences=sequences)
    assert trained(tmp_path, 600, delay=10, replay=replay).callback.best_model_score == 1.0
