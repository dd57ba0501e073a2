"""In synchronous mode a run that was interrupted equals one that was not, bit for bit.

All that the second session is given for itself is another: its seeds, and the state of the global
generators. So whatever is random in it, it has from the checkpoint.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.exact_runs import (
    EndAt,
    assert_same,
    fit_until_it_ends,
    outcome,
    rows_until,
    saving_run,
)
from helpers.training_runs import Run, quiet, small_agent, small_data

from lrl import DQN, ActorConfig, AtariConfig, EnvConfig, RateLimiterConfig, ReplayConfig
from lrl.actors.exploration import EpsilonGreedy, Greedy
from lrl.envs import restorable
from lrl.learner import DoubleBootstrap, MunchausenBootstrap
from lrl.networks import ConvEncoder, ImplicitQuantileHead
from lrl.replay import PrioritizedSampler
from lrl.schedules import Linear

pytestmark = quiet

LR = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=20, gamma=0.7)
NOISY_IQN = functools.partial(
    ImplicitQuantileHead,
    num_quantiles=4,
    num_target_quantiles=4,
    num_acting_quantiles=4,
    embedding_size=8,
    noisy=True,
    dueling=True,
)
PRIORITIES = functools.partial(PrioritizedSampler, alpha=0.6, beta=Linear(0.4, 1.0, 120))
AGENTS: dict[str, dict[str, Any]] = {
    "plain": {
        "module": {"bootstrap": DoubleBootstrap, "lr_scheduler": LR},
        "replay": {"n_step": 3},
        "exploration": EpsilonGreedy(Linear(1.0, 0.1, 300)),
    },
    "rich": {
        "module": {"head": NOISY_IQN, "target_update_tau": 0.3},
        "replay": {"n_step": 2, "sampler": PRIORITIES},
        "exploration": Greedy(),
    },
    "all": {
        "module": {
            "head": NOISY_IQN,
            "lr_scheduler": LR,
            "bootstrap": MunchausenBootstrap,
            "optimizer": functools.partial(torch.optim.Adam, lr=1e-3, amsgrad=True),
        },
        "replay": {
            "n_step": Linear(4.0, 1.0, 80),
            "gamma": Linear(0.9, 0.99, 80),
            "sampler": PRIORITIES,
        },
        "exploration": EpsilonGreedy(Linear(1.0, 0.1, 300)),
        "trainer": {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0},
    },
}
STEPS = 110


@pytest.fixture
def handlers():
    """Lightning ignores Ctrl-C for good once there was one."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 60)


def cartpole(
    folder: Path,
    agent: str,
    *callbacks: L.Callback,
    env: EnvConfig = EnvConfig("CartPole-v1"),  # noqa: B008 (frozen)
    seed: int = 0,
    evaluate: int = 25,
    **run: Any,
) -> Run:
    """4 environment steps for each learner step; the replay wraps, and episodes begin anew."""
    parts = AGENTS[agent]
    L.seed_everything(seed, verbose=False)
    data = small_data(
        env=env,
        actors=ActorConfig(num_actors=0, envs_per_actor=2),
        replay=ReplayConfig(capacity=300, batch_size=16, **parts["replay"]),
        rate=RateLimiterConfig(samples_per_insert=4.0, warm_up_env_steps=50),
        exploration=parts["exploration"],
        seed=seed,
    )
    module = small_agent(**parts["module"])
    settings = {**parts.get("trainer", {}), **run}
    return saving_run(folder, module, data, *callbacks, evaluate=evaluate, **settings)


@functools.cache
def straight(agent: str, folder: Path, evaluate: int) -> tuple[dict[str, Any], list[Any]]:
    run = cartpole(folder, agent, max_steps=STEPS, evaluate=evaluate).fit()
    return outcome(run), rows_until(run, STEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("straight")


@pytest.mark.parametrize(
    ("agent", "how", "end", "saved", "evaluate", "save"),
    [
        ("plain", "max_steps", 62, 62, 25, 0),
        ("plain", "max_steps", 50, 50, 25, 0),  # with an evaluation
        ("plain", "power cut", 57, 50, 25, 50),  # the checkpoint waited for an evaluation
        ("plain", "power cut", 57, 40, 0, 40),  # it was at the end of an epoch
        ("plain", "Ctrl-C in evaluation", 50, 50, 25, 0),
        ("rich", "max_steps", 62, 62, 25, 0),
        ("rich", "power cut", 69, 60, 25, 30),
        ("all", "max_steps", 62, 62, 25, 0),
    ],
)
def test_an_interrupted_run_equals_one_that_was_not(
    tmp_path, folder, handlers, agent, how, end, saved, evaluate, save
):
    epoch: dict[str, Any] = {"limit_train_batches": 40} if evaluate == 0 else {}
    max_steps = end if how == "max_steps" else STEPS
    first = cartpole(
        tmp_path, agent, EndAt(how, end), max_steps=max_steps, evaluate=evaluate, save=save, **epoch
    )
    fit_until_it_ends(first, how)
    second = cartpole(
        tmp_path, agent, seed=7, max_steps=STEPS, evaluate=evaluate, save=save, **epoch
    ).fit(first.checkpoint("last"))
    resumed = outcome(second)
    expected, expected_rows = straight(agent, folder / f"{agent}-{evaluate}", evaluate)
    assert_same(resumed, expected)
    assert rows_until(first, saved) + rows_until(second, STEPS) == expected_rows
    assert torch.load(first.checkpoint("last"), weights_only=True)["global_step"] == saved


@pytest.mark.parametrize(
    ("source", "is_exact"), [("reset", True), ("own", False), ("global", False)]
)
def test_what_an_environment_draws_must_follow_its_seed(tmp_path, caplog, source, is_exact):
    """Else it begins new episodes, and the log says that the run is not the same, and why."""
    env = EnvConfig("helpers.odd_envs:Drawing-v0", kwargs={"source": source})
    run = functools.partial(cartpole, tmp_path, "all", env=env, evaluate=0, limit_train_batches=40)
    first = run(max_steps=62).fit()
    second = run(seed=7, max_steps=STEPS).fit(first.checkpoint("last"))
    assert ("begin new episodes, and this run is not exactly" in caplog.text) != is_exact
    assert ("a generator other than its np_random" in caplog.text) != is_exact
    if is_exact:
        assert_same(outcome(second), outcome(run(max_steps=STEPS).fit()))


class Early(L.Callback):
    """Presses Ctrl-C before the first batch."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_run_may_be_interrupted_often(tmp_path, folder, handlers):
    """Also before it has made a step of its own; the last session need not save its replay."""
    before = None
    evaluating = EndAt("Ctrl-C in evaluation", 25)
    endings = EndAt("Ctrl-C", 20), Early(), Early(), EndAt("Ctrl-C", 21), evaluating, evaluating
    for seed, callback in enumerate(endings):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run = cartpole(tmp_path, "plain", callback, seed=seed, max_steps=STEPS)
        with pytest.raises(SystemExit):
            run.fit(before)
        before = run.checkpoint("last")
    last = cartpole(tmp_path, "plain", seed=9, max_steps=STEPS, saves_replay=False).fit(before)
    assert_same(outcome(last), straight("plain", folder / "plain-25", 25)[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("agent", ["plain", "rich"])
def test_twice_two_thousand_steps_of_cartpole_are_four_thousand(tmp_path, agent, monkeypatch):
    monkeypatch.setattr(restorable, "STEPS_PER_SEED", 200)
    run = functools.partial(cartpole, tmp_path, agent, evaluate=200)
    half, whole = 488, 988  # learner steps: 50 environment steps come before the first, then 4
    first = run(max_steps=half).fit()
    assert first.data.dataset is not None
    assert first.data.dataset.env_steps == pytest.approx(2_000, abs=8)
    second = run(seed=7, max_steps=whole).fit(first.checkpoint("last"))
    resumed, rows = outcome(second), [*rows_until(first, half), *rows_until(second, whole)]
    uninterrupted = run(max_steps=whole).fit()
    assert resumed["env_steps"] == pytest.approx(4_000, abs=8)
    assert_same(resumed, outcome(uninterrupted))
    assert rows == rows_until(uninterrupted, whole)


def pong(folder: Path, *, seed: int = 0, **run: Any) -> Run:
    """16 environment steps for each learner step, with sticky actions and a small network."""
    L.seed_everything(seed, verbose=False)
    encoder = functools.partial(ConvEncoder, layers=((8, 8, 8),), hidden_size=32)
    data = small_data(
        env=EnvConfig(
            "ALE/Pong-v5",
            atari=AtariConfig(repeat_action_probability=0.25, max_frames_per_episode=6000),
            reward_clip=1.0,
        ),
        actors=ActorConfig(num_actors=0, envs_per_actor=4),
        replay=ReplayConfig(capacity=3000, batch_size=16, n_step=3, sampler=PRIORITIES),
        rate=RateLimiterConfig(samples_per_insert=1.0, warm_up_env_steps=1000),
        exploration=EpsilonGreedy(Linear(1.0, 0.1, 8_000)),
        seed=seed,
    )
    module = DQN(encoder=encoder, target_update_period_learner_steps=100)
    return saving_run(folder, module, data, evaluate=0, limit_train_batches=200, **run)


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.timeout(600)
def test_twice_four_thousand_steps_of_pong_are_eight_thousand(tmp_path):
    half, whole = 188, 438
    first = pong(tmp_path, max_steps=half).fit()
    assert first.data.dataset is not None
    assert first.data.dataset.env_steps == pytest.approx(4_000, abs=32)
    second = pong(tmp_path, seed=7, max_steps=whole).fit(first.checkpoint("last"))
    resumed, rows = outcome(second), [*rows_until(first, half), *rows_until(second, whole)]
    uninterrupted = pong(tmp_path, max_steps=whole).fit()
    assert resumed["env_steps"] == pytest.approx(8_000, abs=32)
    assert resumed["episodes"] >= 4
    assert_same(resumed, outcome(uninterrupted))
    assert rows == rows_until(uninterrupted, whole)
