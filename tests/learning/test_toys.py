"""Every head with every bootstrap rule solves the toys (minutes; `make test-all`)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from helpers.training_runs import make_run, quiet, small_data

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    RateLimiterConfig,
)
from lrl.actors.exploration import EpsilonGreedy
from lrl.learner import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.networks import (
    CategoricalHead,
    Head,
    ImplicitQuantileHead,
    MLPEncoder,
    MultiEncoder,
    QuantileHead,
    ScalarHead,
)
from lrl.replay import PrioritizedSampler, ReplayConfig
from lrl.schedules import Linear

pytestmark = [*quiet, pytest.mark.learning]

HEADS = {
    "scalar": functools.partial(ScalarHead, loss="huber"),
    "categorical": functools.partial(CategoricalHead, num_atoms=51, v_min=-5.0, v_max=1.5),
    "quantile": functools.partial(QuantileHead, num_quantiles=16),
    "implicit": functools.partial(ImplicitQuantileHead, num_quantiles=8, num_target_quantiles=8),
}
OPTIMAL = {"lrl/Chain-v0": 0.6, "lrl/Catch-v0": 1.0, "lrl/Dials-v0": -4.0}
KWARGS: dict[str, dict[str, Any]] = {"lrl/Dials-v0": {"locks": 4, "masks": True}}
RULES = {"max": MaxBootstrap, "double": DoubleBootstrap, "munchausen": MunchausenBootstrap}


def score(folder, toy: str, seed: int, **parts) -> tuple[float, float]:
    """Train for 2000 learner steps; return the best mean of 20 episodes and the optimal return."""
    torch.manual_seed(seed)
    replay = parts.pop("replay", ReplayConfig(capacity=5000, batch_size=64, n_step=1, gamma=0.95))
    run = make_run(
        folder,
        ActorLearnerCallback(1, 250, 0),
        module=DQN(
            encoder=functools.partial(MLPEncoder, hidden_sizes=(64,)),
            optimizer=functools.partial(torch.optim.Adam, lr=3e-3),
            target_update_period_learner_steps=20,
            **parts,
        ),
        data=small_data(
            env=EnvConfig(toy, KWARGS.get(toy, {}), action_masks=toy in KWARGS),
            actors=ActorConfig(num_actors=0, envs_per_actor=8),
            exploration=EpsilonGreedy(Linear(1.0, 0.1, 3000)),
            replay=replay,
            rate=RateLimiterConfig(samples_per_insert=16.0, warm_up_env_steps=500),
            evaluation=EvaluationConfig(episodes=20),
            seed=seed,
        ),
        max_steps=2000,
        log_every_n_steps=200,
    ).fit()
    return run.callback.best_model_score, OPTIMAL[toy]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("toy", ["lrl/Chain-v0", "lrl/Catch-v0"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", HEADS)
def test_every_head_with_every_rule(tmp_path, head: str, rule: str, toy: str, seed: int):
    reached, optimal = score(tmp_path, toy, seed, head=HEADS[head], bootstrap=RULES[rule])
    assert reached >= optimal - 1e-6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", HEADS)
def test_every_head_with_every_rule_in_branches(tmp_path, head: str, rule: str, seed: int):
    """Two settings of each dial are allowed: what one branch chooses shows its worth often."""
    parts: dict[str, Any] = {"head": HEADS[head], "bootstrap": RULES[rule]}
    reached, optimal = score(tmp_path, "lrl/Dials-v0", seed, **parts)
    assert reached >= optimal - 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_all_parts_together(tmp_path, seed: int):
    head: type[Head] | functools.partial[Head] = functools.partial(
        HEADS["implicit"], dueling=True, noisy=True, hidden_size=64
    )
    replay = ReplayConfig(5000, 64, n_step=3, gamma=0.95, sampler=PrioritizedSampler)
    parts = {"head": head, "bootstrap": MunchausenBootstrap, "replay": replay}
    reached, optimal = score(tmp_path, "lrl/Catch-v0", seed, **parts)
    assert reached >= optimal - 1e-6


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ignored", [None, "board", "sign"])
def test_signpost_is_learnt_from_both_leaves_and_from_neither_alone(tmp_path, ignored: str | None):
    torch.manual_seed(0)
    encoder = functools.partial(MultiEncoder, ignored=[ignored] if ignored else [])
    run = make_run(
        tmp_path,
        ActorLearnerCallback(1, 3000, 0),
        module=DQN(encoder, bootstrap=DoubleBootstrap, target_update_period_learner_steps=50),
        data=small_data(
            "lrl/Signpost-v0",
            actors=ActorConfig(num_actors=0, envs_per_actor=16),
            exploration=EpsilonGreedy(Linear(1.0, 0.05, 30_000)),
            replay=ReplayConfig(capacity=50_000, batch_size=128, n_step=3, gamma=0.9),
            rate=RateLimiterConfig(samples_per_insert=8.0, warm_up_env_steps=1000),
            evaluation=EvaluationConfig(episodes=100),
        ),
        max_steps=6000,
        log_every_n_steps=500,
    ).fit()
    (metrics,) = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    if ignored is None:
        assert metrics["eval/return_mean"] >= 0.9
    else:
        assert abs(metrics["eval/return_mean"]) <= 0.4
