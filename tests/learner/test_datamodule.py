"""Settings are checked before anything starts; what was taken is given back."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import (
    AfterEachStep,
    Run,
    actor_processes,
    background,
    make_run,
    quiet,
    small_data,
)

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
)
from lrl.actors.actor import rows_without_action
from lrl.actors.exploration import Boltzmann, EpsilonGreedy, Greedy, Mixture
from lrl.actors.manager import ActorManager
from lrl.callbacks import NonFiniteGuard, PeriodicEvaluation, WeightSync
from lrl.cluster.config import ClusterConfig
from lrl.envs import make_spec
from lrl.inference.config import InferenceConfig
from lrl.learner import ActorPool, Delivery
from lrl.networks import GRUCore
from lrl.pools import choice
from lrl.preflight.cores import share_cores
from lrl.ranks.watch import rank_watch
from lrl.replay import PrioritizedSampler, Replay, UniformSampler
from lrl.schedules import Constant
from lrl.types import ConfigError, RowKind

pytestmark = quiet

REFUSED = {
    "no weight sync": (
        {"actors": background()},
        PeriodicEvaluation(0),
        r"no callback sends weights to the actors.*add ActorLearnerCallback\(\)",
    ),
    "free running alone": (
        {"rate": RateLimiterConfig(samples_per_insert=None)},
        ActorLearnerCallback(),
        r"rate.samples_per_insert is null \(free running\) but actors.num_actors is 0",
    ),
    "warm-up above capacity": (
        {
            "replay": ReplayConfig(100, batch_size=32),
            "rate": RateLimiterConfig(warm_up_env_steps=101),
        },
        ActorLearnerCallback(),
        "rate.warm_up_env_steps is 101, but the replay keeps only 100 rows",
    ),
    "rings too short": (
        {"replay": ReplayConfig(capacity=40, batch_size=8, n_step=20)},
        ActorLearnerCallback(),
        "replay.capacity leaves 20 rows for each of 2 streams.*set replay.capacity to at least 44",
    ),
    "max samples ahead too small": (
        {"actors": background(), "rate": RateLimiterConfig(4.0, max_samples_ahead=5.0)},
        ActorLearnerCallback(),
        "rate.max_samples_ahead is 5.0.*at least 72",
    ),
    "unknown environment": (
        {"env": EnvConfig(id="Nowhere-v0")},
        ActorLearnerCallback(),
        "env.id is 'Nowhere-v0', which cannot be made",
    ),
    "memory": (
        {"replay": ReplayConfig(capacity=10**13)},
        ActorLearnerCallback(),
        "replay.capacity 10000000000000 needs .* at most .* rows fit",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_a_process_starts(tmp_path, monkeypatch, case):
    settings, callback, message = REFUSED[case]
    monkeypatch.setattr(ActorManager, "start", lambda self: pytest.fail("actors were started"))
    run = make_run(tmp_path, callback, data=small_data(**settings), limit_train_batches=5)
    threads = torch.get_num_threads()
    with pytest.raises(ConfigError, match=message):
        run.fit()
    assert actor_processes() == []
    assert torch.get_num_threads() == threads
    assert run.data.dataset is None


def test_a_datamodule_is_printed_without_drawing_from_it():
    assert str(ReplayDataModule()) == "ReplayDataModule(CartPole-v1)"


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (ReplayDataModule, {"seed": -1}, "data.seed must be at least 0, got -1"),
        (ReplayDataModule, {"seed": 1.0}, "data.seed is 1.0, but must be a whole number"),
        (ReplayDataModule, {"env": "CartPole-v1"}, "data.env is 'CartPole-v1', but .* EnvConfig"),
        (ReplayDataModule, {"replay": {}}, "data.replay is {}, but must be of .* ReplayConfig"),
        (ReplayDataModule, {"learner_threads": 0}, "data.learner_threads must be at least 1"),
        (ReplayDataModule, {"learner_threads": 1025}, "at most 1024, got 1025"),
        (ReplayDataModule, {"learner_threads": "2"}, "data.learner_threads is '2', but must be a"),
        (ReplayDataModule, {"cluster": {}}, "data.cluster is {}, but must be of .* ClusterConfig"),
        (ReplayDataModule, {"inference": {}}, "data.inference is {}, but must be of .* Inference"),
        (ReplayDataModule, {"exploration": Greedy}, "data.exploration is .*, but must be of the"),
        (ReplayDataModule, {"exploration": 0}, "data.exploration is 0, but must be of the class"),
        (
            ReplayConfig,
            {"sequences": {"length": 3}},
            "replay.sequences is .* SequenceConfig",
        ),
        (ReplayConfig, {"gamma": "0.9"}, "replay.gamma is '0.9', but must be a number or a schedu"),
        (ReplayConfig, {"n_step": len}, "replay.n_step is .*, but must be a number or a schedule"),
        (Boltzmann, {"temperature": 1.0}, "exploration.temperature is 1.0, but must be a schedule"),
        (
            Mixture,
            {"first": Greedy, "second": Greedy(), "share": Constant(0.5)},
            "exploration.first is .*, but must be of the class Exploration",
        ),
        (ReplayConfig, {"capacity": 1e3}, "replay.capacity is 1000.0, but must be a whole number"),
        (ActorConfig, {"envs_per_actor": 2.0}, "actors.envs_per_actor is 2.0, but must be a"),
        (RateLimiterConfig, {"samples_per_insert": "8"}, "rate.samples_per_insert is '8', but"),
        (EvaluationConfig, {"episodes": True}, "evaluation.episodes is True, but must be a"),
        (InferenceConfig, {"batch_size": 3.0}, "inference.batch_size is 3.0, but must be a"),
        (ClusterConfig, {"num_actors": 3.0}, "cluster.num_actors is 3.0, but must be a whole"),
        (EpsilonGreedy, {"schedule": 0.1}, r"exploration.schedule is 0.1, but .*Constant\(0.1\)"),
        (ActorLearnerCallback, {"eval_period_learner_steps": 2.0}, "eval_period_.* is 2.0, but"),
        (ActorLearnerCallback, {"sync_period_learner_steps": 2.0}, "sync_period_.* is 2.0, but"),
        (DQN, {"updates_per_step": 2.0}, "model.updates_per_step is 2.0, but must be a whole"),
        (DQN, {"target_update_period_learner_steps": 2.5}, "learner_steps is 2.5, but must be a"),
    ],
)
def test_what_is_out_of_range_or_of_another_type_is_refused_at_once(part, settings, message):
    with pytest.raises(ConfigError, match=message):
        part(**settings)


def test_numbers_of_numpy_are_numbers():
    assert type(ReplayDataModule(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    assert ReplayConfig(np.int64(600)).capacity == 600  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_an_agent_of_another_environment_is_refused(tmp_path, stage):
    """Its actions would be taken, or left out, as if they were those of this one."""
    agent = DQN(env_spec=make_spec(EnvConfig("CartPole-v1")))
    run = make_run(tmp_path, ActorLearnerCallback(), data=small_data("Acrobot-v1"), module=agent)
    message = r"with observation_shape \(6,\) instead of \(4,\), num_actions 3 instead of 2, for"
    with pytest.raises(ConfigError, match=message):
        getattr(run.trainer, stage)(run.module, datamodule=run.data)


def trainer_of(ranks: int) -> Any:
    return SimpleNamespace(
        world_size=ranks,
        global_rank=0,
        callbacks=[],
        num_devices=ranks,
        strategy=None,
        lightning_module=None,
    )


@pytest.mark.parametrize(
    ("episodes", "test_episodes"), [(10, 100), (9, 101)], ids=["episodes", "test_episodes"]
)
def test_every_rank_plays_equally_many_episodes(episodes, test_episodes):
    data = small_data(evaluation=EvaluationConfig(episodes=episodes, test_episodes=test_episodes))
    data.trainer = trainer_of(ranks=3)
    with pytest.raises(ConfigError, match=r"must be multiples of the 3 ranks"):
        data.setup("validate")


def test_ranks_play_different_episodes_and_explore_differently():
    data = small_data(actors=background(num_actors=2, envs_per_actor=3))
    data.trainer = trainer = trainer_of(ranks=2)
    seeds: list[list[int]] = []
    environments: list[list[int]] = []
    for rank in range(2):
        trainer.global_rank = rank
        slot = data.slot
        seeds.append(slot.env_seeds())
        environments.append(slot.environments.tolist())
        assert slot.total_environments == 12
    assert environments == [[0, 1, 2], [6, 7, 8]]
    assert not set(seeds[0]) & set(seeds[1])


def test_ranks_are_watched_again_after_a_validation(tmp_path, monkeypatch):
    run, events = make_run(tmp_path, max_steps=2), list[str]()
    for name in ("watch_first", "stop"):
        monkeypatch.setattr(rank_watch, name, functools.partial(events.append, name))
    run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    run.fit()
    assert events == ["stop", "watch_first", "stop"]


def test_outside_of_a_trainer_it_says_where_it_belongs():
    with pytest.raises(ConfigError, match=r"trainer\.fit\(model, datamodule=\.\.\.\)"):
        small_data().setup("fit")


def test_only_what_goes_to_processes_has_to_be_in_a_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # a notebook's
    data, here = small_data(actors=background()), {"class_path": "__main__.Mine"}
    module = SimpleNamespace(hparams={"bootstrap": here, "optimizer": here})
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), lightning_module=module)
    data.trainer = trainer  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr("lrl.learner.datamodule.evaluates_in_background", lambda _: False)
    data.prepare_data()
    for part in ("encoder", "head"):
        module.hparams = {part: here}
        with pytest.raises(ConfigError, match="Mine is defined in a notebook"):
            data.prepare_data()


def test_the_environment_is_asked_for_its_specification():
    spec = small_data(env=EnvConfig(id="lrl/Identity-v0", kwargs={"num_contexts": 7})).env_spec
    assert spec.observation_shape == (7,)
    assert spec.num_actions == 7


@pytest.mark.parametrize("exception", [None, ZeroDivisionError])
def test_threads_are_chosen_logged_and_given_back(tmp_path, caplog, exception):
    before = torch.get_num_threads()
    seen = set()

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        seen.add(torch.get_num_threads())
        if exception:
            raise exception

    data = small_data(learner_threads=before + 2)
    run = make_run(
        tmp_path, AfterEachStep(after_each_step), ActorLearnerCallback(5, 0, 0), data=data
    )
    with caplog.at_level(logging.INFO):
        if exception:
            with pytest.raises(exception):
                run.fit()
        else:
            run.fit()
    assert seen == {before + 2}
    assert torch.get_num_threads() == before
    assert data.threads == before + 2
    assert f"the learner on cpu with {before + 2} threads (" in caplog.text


def test_threads_leave_the_actors_their_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(16), raising=False)
    before = share_cores(None, ranks=2, busy=3)
    try:
        assert torch.get_num_threads() == 16 // 2 - 3
    finally:
        torch.set_num_threads(before)


def test_a_learner_keeps_what_it_frees_and_its_games_step_with_all_its_threads(
    tmp_path, monkeypatch
):
    kept, threads = [], []
    make = choice.make_envs

    def note(*args: Any, num_threads: int = 1, **options: Any) -> Any:
        threads.append(num_threads)
        return make(*args, num_threads=num_threads, **options)

    monkeypatch.setattr("lrl.learner.datamodule.keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(choice, "make_envs", note)
    make_run(tmp_path, data=small_data(learner_threads=3), max_steps=2).fit()
    assert kept == [True]
    assert threads == [3]


def test_a_used_datamodule_says_that_it_is_used(tmp_path, monkeypatch):
    run = make_run(tmp_path, WeightSync(), limit_train_batches=5, max_steps=5).fit()
    again = make_run(tmp_path, WeightSync(), data=run.data, limit_train_batches=5, max_steps=5)
    used_up = "lrl.preflight.machine.available_bytes"  # by the replay that is there already
    monkeypatch.setattr(used_up, lambda: 1000)
    with pytest.raises(ConfigError, match=r"has trained before.*build a new datamodule"):
        again.fit()


def test_batches_are_plain_tensors_of_fixed_types(tmp_path):
    seen = []

    def note(trainer: L.Trainer, batch: Any) -> None:
        parts = {name: part for name, part in vars(batch).items() if part is not None}
        seen.append({name: (part.dtype, part.shape) for name, part in parts.items()})

    make_run(tmp_path, AfterEachStep(note), ActorLearnerCallback(5, 0, 0), max_steps=3).fit()
    expected = {
        "observation": (torch.float32, (8, 4)),
        "action": (torch.int64, (8,)),
        "reward": (torch.float32, (8,)),
        "discount": (torch.float32, (8,)),
        "next_observation": (torch.float32, (8, 4)),
        "weights": (torch.float32, (8,)),
        "keys": (torch.int64, (8, 2)),
    }
    assert seen == [expected] * 3


class Own(ActorPool):
    num_streams = 3

    def start(self, network: Any, run_env_steps: int) -> None: ...

    def poll(self, timeout: float) -> Iterator[Delivery]:
        yield from ()

    def close(self, take: Any) -> None: ...


class OwnThatLearns(Own):
    def publish(self, network: Any, version: int) -> None: ...


def own_run(tmp_path: Path, pool: ActorPool, callback: L.Callback) -> Run:
    data = ReplayDataModule(
        EnvConfig("lrl/Identity-v0"), replay=ReplayConfig(2000, 8), pool=pool, learner_threads=1
    )
    return make_run(tmp_path, callback, data=data)


def test_a_pool_of_ones_own_is_sent_weights_if_it_publishes_them(tmp_path, monkeypatch):
    period = ActorLearnerCallback(50, 0, 0)
    with pytest.raises(ConfigError, match="sync_period_learner_steps is 50, but nobody takes"):
        own_run(tmp_path, Own(), period).fit()
    with pytest.raises(ConfigError, match="no callback sends weights to the actors"):
        own_run(tmp_path, OwnThatLearns(), NonFiniteGuard()).fit()
    for pool, sends in ((Own(), False), (OwnThatLearns(), True)):
        run, sync = own_run(tmp_path, pool, ActorLearnerCallback()), WeightSync(7)
        monkeypatch.setattr("lrl.callbacks.feedback.datamodule_of", lambda _, data=run.data: data)
        sync.setup(run.trainer, run.module, "fit")
        assert sync.period_learner_steps == (7 if sends else 0)


def test_a_pool_of_ones_own_is_told_what_its_rows_lack(tmp_path):
    class Forgets(Own):
        def poll(self, timeout: float) -> Iterator[Delivery]:
            frames = np.zeros((1, 4), np.float32)
            yield Delivery([rows_without_action(RowKind.STEP, np.zeros(1, np.int32), frames)], [])

    data = ReplayDataModule(EnvConfig("CartPole-v1"), pool=Forgets(), learner_threads=1)
    run = make_run(tmp_path, ActorLearnerCallback(), data=data, module=DQN(core=GRUCore))
    with pytest.raises(ConfigError, match=r"Forgets delivered wrong rows: rows\.memory\.hidden is"):
        run.fit()


def test_a_pool_of_ones_own_has_to_clip_rewards_itself(tmp_path):
    class Rich(Own):
        def poll(self, timeout: float) -> Iterator[Delivery]:
            frames = np.zeros((1, 4), np.float32)
            rows = rows_without_action(RowKind.STEP, np.zeros(1, np.int32), frames)
            yield Delivery([replace(rows, reward=np.full(1, 3.0, np.float32))])

    data = ReplayDataModule(EnvConfig("CartPole-v1", reward_clip=1.0), pool=Rich())
    run = make_run(tmp_path, ActorLearnerCallback(), data=data)
    with pytest.raises(ConfigError, match=r"Rich delivered wrong rows: reward is 3\.0, but env"):
        run.fit()


def test_the_ratio_of_a_pool_of_ones_own_counts_its_own_streams(tmp_path):
    class Stops(Own):
        def start(self, network: Any, run_env_steps: int) -> None:
            raise RuntimeError("enough")

    run = own_run(tmp_path, Stops(), ActorLearnerCallback())
    with pytest.raises(RuntimeError, match="enough"):
        run.fit()
    assert run.data.dataset is not None
    assert run.data.dataset.limiter._insert_size == 3
    assert ReplayDataModule().takes_weights
    assert not ReplayDataModule(actors=ActorConfig(0)).takes_weights


def test_a_pool_of_ones_own_takes_the_place_of_actors():
    with pytest.raises(ConfigError, match=r"data\.pool Own brings rows of its own.*leave them out"):
        ReplayDataModule(actors=ActorConfig(num_actors=1), pool=Own())
    assert ReplayDataModule(pool=Own()).pool is not None
    # As the command line does, which writes the default out.
    assert ReplayDataModule(exploration=EpsilonGreedy(), pool=Own()).pool is not None


def test_a_replay_of_which_nothing_was_said_makes_room_for_an_experience():
    own: Any = Replay
    written_out = ReplayConfig(sampler=functools.partial(UniformSampler))  # by the command line
    assert ReplayDataModule(replay=written_out, experience=own).has_own_experience
    for said in (ReplayConfig(capacity=999), ReplayConfig(sampler=PrioritizedSampler)):
        with pytest.raises(ConfigError, match=r"data\.replay would do nothing: leave it out"):
            ReplayDataModule(replay=said, experience=own)
