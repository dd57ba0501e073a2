"""Offline runs: a Minari dataset in the place of actors, from its file to what is learnt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from helpers.training_runs import Run, make_run, quiet, small_agent

from lrl import (
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
    SequenceConfig,
)
from lrl.actors.exploration import Greedy
from lrl.envs import make_spec
from lrl.networks import LSTMCore
from lrl.offline import ConservativeDQN, MinariPool
from lrl.offline.episodes import RecordedEpisode
from lrl.offline.minari_files import write_dataset
from lrl.replay import PrioritizedSampler, Rollouts, UniformSampler
from lrl.types import ConfigError

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

pytestmark = [*quiet, pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning:minari")]


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def create(name: str, episodes: int = 30, steps: int = 20, env: str = "lrl/Identity-v0") -> Any:
    """Write a dataset with Minari's own functions: random actions."""
    made: Any = gymnasium.make(env)
    rng = np.random.default_rng(0)
    buffers = []
    for seed in range(episodes):
        observations, buffer = [made.reset(seed=seed)[0]], []
        for step in range(steps):
            action = int(rng.integers(made.action_space.n)) if env == "lrl/Identity-v0" else 0
            observation, reward, terminated, truncated, _ = made.step(action)
            observations.append(observation)
            buffer.append((action, reward, terminated, truncated or step == steps - 1))
            if terminated or truncated:
                break
        actions, rewards, terminated, truncated = zip(*buffer, strict=True)
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=np.stack(observations), actions=list(actions), rewards=list(rewards),
                terminations=list(terminated), truncations=list(truncated), infos={},
            )
        )  # fmt: skip
    made.close()
    return minari.create_dataset_from_buffers(name, buffers, env=env)


def offline(name: str, **settings: Any) -> ReplayDataModule:
    defaults = {
        "env": EnvConfig("lrl/Identity-v0"),
        "replay": ReplayConfig(capacity=2000, batch_size=32, n_step=1, gamma=0.9),
        "evaluation": EvaluationConfig(episodes=2, test_episodes=4),
        "learner_threads": 1,
    }
    return ReplayDataModule(**{**defaults, **settings}, pool=MinariPool(name))


def fit(folder: Path, data: ReplayDataModule, steps: int = 20, *, saves: bool = False,
        ckpt_path: Path | None = None, **agent: Any) -> Run:  # fmt: skip
    callback = ActorLearnerCallback(
        eval_period_learner_steps=steps, save_period_learner_steps=10, checkpoint_replay=saves
    )
    module = agent.pop("module", None) or small_agent(**agent)
    return make_run(folder, callback, module=module, data=data, max_steps=steps).fit(ckpt_path)


def test_all_rows_are_there_before_the_first_batch_and_no_more_come(tmp_path):
    made = create("identity/random-v0")
    run = fit(tmp_path, offline("identity/random-v0"))
    dataset = run.data.dataset
    assert dataset is not None
    assert len(dataset.replay) == dataset.env_steps == made.total_steps
    assert dataset.replay.streams.num_rows == made.total_steps + made.total_episodes
    assert dataset.episodes == made.total_episodes
    (row, *_), (*_, last) = run.metrics(), run.metrics()
    assert float(row["count/env_steps"]) == made.total_steps
    returns = [episode.rewards.sum() for episode in made]
    assert float(row["rollout/return_mean"]) == pytest.approx(np.mean(returns[-100:]))
    assert "rollout/start_value_mean" not in row
    assert "eval/return_mean" in last


@pytest.mark.parametrize(
    ("saves", "sampler"),
    [(False, UniformSampler), (True, UniformSampler), (True, PrioritizedSampler)],
)
def test_a_run_that_goes_on_learns_as_if_it_had_not_been_interrupted(tmp_path, saves, sampler):
    made = create("identity/random-v0", episodes=5)
    replay = ReplayConfig(2000, 32, n_step=2, gamma=0.9, sampler=sampler)

    def go(steps: int, ckpt_path: Path | None = None) -> Run:
        data = offline("identity/random-v0", replay=replay)
        return fit(tmp_path, data, steps, saves=saves, ckpt_path=ckpt_path)

    whole = go(20)
    second = go(20, go(10).checkpoint("last"))
    assert second.data.dataset is not None
    assert second.data.dataset.env_steps == made.total_steps
    assert len(second.data.dataset.replay) == made.total_steps
    torch.testing.assert_close(
        second.module.state_dict(), whole.module.state_dict(), rtol=0, atol=0
    )


def begun(name: str) -> MinariPool:
    env, spec = EnvConfig("lrl/Identity-v0"), make_spec(EnvConfig("lrl/Identity-v0"))
    pool = MinariPool(name)
    pool.prepare(env, spec)
    pool.start(small_agent(env_spec=spec).online, 0)
    return pool


def test_reading_goes_on_where_it_stopped_in_the_same_dataset():
    create("identity/random-v0", episodes=5)
    pool = begun("identity/random-v0")
    assert not list(pool.poll(0.0))
    reading = pool.poll(60.0)
    first = [next(reading), next(reading)]
    state = pool.state_dict()
    later = begun("identity/random-v0")
    later.load_state_dict(state)
    rest = [delivery.rows[0].frame.tolist() for delivery in later.poll(60.0)]
    assert rest == [delivery.rows[0].frame.tolist() for delivery in reading]
    assert [len(first), len(rest)] == [2, 3]
    assert later.state_dict() == pool.state_dict()
    create("identity/other-v0", episodes=6)
    with pytest.raises(ConfigError, match=r"identity/other-v0.*holds rows of .*identity/random-v0"):
        begun("identity/other-v0").load_state_dict(state)


def test_an_environment_of_another_name_is_told(caplog):
    create("identity/random-v0", episodes=1)
    spec = make_spec(EnvConfig("lrl/Identity-v0"))
    for name in ("lrl/Identity-v0", "lrl.envs.toy:lrl/Identity-v0"):
        MinariPool("identity/random-v0").prepare(EnvConfig(name), spec)
    assert caplog.messages == []
    MinariPool("identity/random-v0").prepare(EnvConfig("own/Identity-v0"), spec)
    assert "was recorded in lrl/Identity-v0, and its agent is evaluated in" in caplog.text


def test_a_dataset_with_more_steps_than_it_says_is_damaged(tmp_path):
    create("identity/random-v0", episodes=2, steps=10)
    file = tmp_path / "minari/identity/random-v0/data/metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "total_steps": 10}))
    with pytest.raises(ConfigError, match="has 20 steps, but says that it has 10: it is damaged"):
        next(begun("identity/random-v0").poll(60.0))


def test_an_offline_run_goes_on_online_and_back(tmp_path):
    """With as many streams: rows of the dataset stay in the replay, and are not read twice."""
    made = create("identity/random-v0", episodes=5)
    first = fit(tmp_path, offline("identity/random-v0"), 10, saves=True)
    online = ReplayDataModule(
        EnvConfig("lrl/Identity-v0"),
        actors=ActorConfig(0, 1),
        replay=ReplayConfig(capacity=2000, batch_size=32, n_step=1, gamma=0.9),
        rate=RateLimiterConfig(samples_per_insert=8.0, warm_up_env_steps=20),
        evaluation=EvaluationConfig(episodes=2, test_episodes=4),
        learner_threads=1,
    )
    second = fit(tmp_path, online, 20, saves=True, ckpt_path=first.checkpoint("last"))
    assert second.data.dataset is not None
    assert second.data.dataset.env_steps > made.total_steps
    assert second.data.dataset.replay.streams.num_rows > made.total_steps + made.total_episodes
    back = offline("identity/random-v0")
    third = fit(tmp_path, back, 30, ckpt_path=second.checkpoint("last"))
    assert third.data.dataset is not None
    assert third.data.dataset.env_steps == made.total_steps
    rows = made.total_steps + made.total_episodes
    assert third.data.dataset.replay.streams.num_rows == rows


def test_a_dataset_of_which_nothing_can_be_learnt_ends_the_run(tmp_path):
    spec, running = make_spec(EnvConfig("lrl/Identity-v0")), np.zeros(2, np.bool_)
    part = RecordedEpisode(
        np.zeros((3, 4), np.float32), np.zeros(2, np.int32), np.zeros(2), running, running
    )
    write_dataset("short/parts-v0", spec, [part] * 3, None, "none", "")
    data = offline("short/parts-v0", replay=ReplayConfig(2000, 32, n_step=5, gamma=0.9))
    with pytest.raises(
        ConfigError, match="all of its 6 steps, but nothing can be learnt from them"
    ):
        fit(tmp_path, data)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_what_random_actions_did_is_enough_to_act_well(tmp_path, alpha: float | None):
    """One action of four is right in each state, so that they score a quarter of what can be."""
    made = create("identity/random-v0")
    behaviour = np.mean([episode.rewards.sum() for episode in made])
    module = (
        None if alpha is None else ConservativeDQN(alpha, target_update_period_learner_steps=10)
    )
    sampler = ReplayConfig(2000, 32, n_step=1, gamma=0.9, sampler=PrioritizedSampler)
    run = fit(tmp_path, offline("identity/random-v0", replay=sampler), 300, module=module)
    best = float(run.callback.best_model_score)
    assert best > 2 * behaviour


REFUSED = {
    "data.rate would do nothing": {"rate": RateLimiterConfig(samples_per_insert=4.0)},
    "data.exploration and data.cluster would do nothing": {"exploration": Greedy()},
    "data.experience would forget it": {"experience": Rollouts, "replay": ReplayConfig()},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_would_do_nothing_is_refused(sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        offline("identity/random-v0", **REFUSED[sentence])


def test_a_dataset_that_does_not_fit_is_refused_before_anything_starts(tmp_path):
    def said(name: str = "identity/random-v0", agent: Any = None, **settings: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            fit(tmp_path, offline(name, **settings), **(agent or {}))
        return str(caught.value)

    assert "cannot be read: The data path" in said()
    made = create("identity/random-v0", episodes=3)
    rows = made.total_steps + 3
    assert f"set replay.capacity to at least {rows}" in said(replay=ReplayConfig(rows - 1, 8))
    assert "has actions of [4] choices, but data.env has [2]" in said(env=EnvConfig("CartPole-v1"))
    words = said(env=EnvConfig("lrl/Catch-v0"))
    assert "(recorded in lrl/Identity-v0) has observations of float32[4], but data.env" in words
    sequences = ReplayConfig(2000, 4, sequences=SequenceConfig(length=5, overlap=0, burn_in=0))
    words = said(replay=sequences, agent={"core": LSTMCore})
    assert "does not hold what an agent remembers" in words
    create("masked/first-v0", episodes=2, steps=1, env="lrl/Masked-v0")
    words = said("masked/first-v0", env=EnvConfig("lrl/Masked-v0", action_masks=True))
    assert "infos['action_mask'] has the shape (0,) instead of" in words


def test_a_dataset_is_named_and_the_extra_is_there(monkeypatch):
    with pytest.raises(ConfigError, match=r"data\.pool\.init_args\.dataset is empty"):
        MinariPool("")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[minari\]'"):
        MinariPool("identity/random-v0")
