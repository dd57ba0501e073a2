"""On a real GPU: captured updates teach what eager ones do, and whole runs end, save and go on."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.heads import HEADS
from helpers.tiny_networks import FlatEncoder
from helpers.trainers import Loader, batches, quiet_trainer, weights_of
from helpers.training_runs import background, make_run, quiet, small_agent, small_data

from lrl import DQN, ActorLearnerCallback, ReplayConfig
from lrl.bench.ladder import LADDER, measure
from lrl.learner.bootstrap import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.replay import PrioritizedSampler
from lrl.types import EnvSpec

pytestmark = [pytest.mark.gpu, *quiet]

ADAM = functools.partial(torch.optim.Adam, lr=2**-10, fused=True)  # the same in 32 and 64 bits
RULES = [MaxBootstrap, DoubleBootstrap, MunchausenBootstrap]
STEPS = 60


def learnt(spec: EnvSpec, updater: Any, updates: int, **settings: Any) -> list[torch.Tensor]:
    precision = settings.pop("precision", "32-true")
    torch.manual_seed(0)
    agent = DQN(
        FlatEncoder, updater=updater, env_spec=spec, optimizer=ADAM, updates_per_step=updates,
        **{"target_update_period_learner_steps": 7, **settings},
    )  # fmt: skip
    loaded: Any = batches(STEPS)
    if updates > 1:
        loaded = [tuple(loaded[i : i + updates]) for i in range(0, STEPS, updates)]
    trainer = quiet_trainer(
        len(loaded), accelerator="gpu", precision=precision, log_every_n_steps=20
    )
    trainer.fit(agent, train_dataloaders=Loader(loaded))
    assert trainer.global_step == STEPS
    return [tensor.cpu() for tensor in (*weights_of(agent.online), *weights_of(agent.target))]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", HEADS)
def test_a_captured_step_is_the_eager_one(
    monkeypatch, tiny_spec: EnvSpec, head: str, rule: Any, precision: str
):
    """Noise and quantile levels included: a graph draws what eager steps would have drawn."""
    monkeypatch.setattr("lrl.learner.updater._ROWS_ASKED_AT_ONCE", 8)  # IQN draws for each batch
    settings = {
        "head": HEADS[head], "bootstrap": rule, "gradient_clip_norm": 1.0, "precision": precision
    }  # fmt: skip
    expected = learnt(tiny_spec, "eager", 1, **settings)
    for updates in (1, 4):
        found = learnt(tiny_spec, "captured", updates, **settings)
        # torch adds up projected probabilities in no fixed order there.
        atol = 1e-5 if head == "categorical" else 0.0
        torch.testing.assert_close(found, expected, rtol=0.0, atol=atol)


def test_a_schedule_moves_a_captured_rate(tiny_spec: EnvSpec):
    settings = {
        "lr_scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5),
        "target_update_tau": 0.25,
        "target_update_period_learner_steps": 1,
    }
    expected = learnt(tiny_spec, "eager", 1, **settings)
    torch.testing.assert_close(learnt(tiny_spec, "captured", 1, **settings), expected)


def test_the_device_learns_what_the_host_learns(tiny_spec: EnvSpec):
    torch.manual_seed(0)
    agents = [DQN(FlatEncoder, env_spec=tiny_spec) for _ in range(2)]
    agents[1].load_state_dict(agents[0].state_dict())
    for agent, accelerator in zip(agents, ("cpu", "gpu"), strict=True):
        trainer = quiet_trainer(20, accelerator=accelerator)
        trainer.fit(agent, train_dataloaders=Loader(batches(20)))
    weights = [[tensor.cpu() for tensor in weights_of(agent.online)] for agent in agents]
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("updater", ["eager", "captured"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("index", ["host", "device"])
def test_a_run_with_actors_saves_and_goes_on(
    tmp_path: Path, updater: Any, precision: str, index: str
):
    def run(max_steps: int) -> Any:
        return make_run(
            tmp_path,
            ActorLearnerCallback(20, 40, 40, checkpoint_replay=True),
            module=small_agent(optimizer=ADAM, updater=updater, updates_per_step=4),
            data=small_data(
                actors=background(2),
                replay=ReplayConfig(
                    2000, batch_size=8, sampler=PrioritizedSampler, device="cuda", index=index
                ),
            ),
            accelerator="gpu",
            devices=1,
            precision=precision,
            max_steps=max_steps,
            log_every_n_steps=20,
        )

    first = run(120).fit()
    again = run(200).fit(first.checkpoint("last"))
    assert again.trainer.global_step == 200
    assert again.data.dataset.env_steps > first.data.dataset.env_steps > 0


def test_every_side_of_the_ladder_is_measured():
    sides = {n: side for n, side in LADDER.items() if side.updater != "compiled"}  # checked shapes
    found, remarks = measure("mlp", sides, "cuda", updates=16, rounds=1)
    assert remarks == []
    launches = {each.name: each.values[0] for each in found if each.unit == "launches"}
    assert launches["captured"] < launches["fused optimizer"] / 3


def test_an_encoder_of_pixels_is_captured_with_rainbows_head():
    """Convolutions choose their algorithms before anything is captured."""
    found, remarks = measure("der", {"captured": LADDER["captured"]}, "cuda", updates=8, rounds=1)
    assert (len(found), remarks) == (5, [])


def test_memory_of_the_device_does_not_grow(tiny_spec: EnvSpec):
    sizes = []
    for _ in range(3):
        learnt(tiny_spec, "captured", 1)
        torch.cuda.empty_cache()
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[2] <= sizes[1] + 2**16
