"""Learner steps that are repeated teach what eager ones do, bit for bit, and are counted alike."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import replace
from typing import Any

import lightning as L
import pytest
import torch
from helpers.exact_runs import assert_same as assert_same_outcome
from helpers.exact_runs import outcome, saving_run
from helpers.heads import HEADS
from helpers.tiny_networks import FlatEncoder, random_batch
from helpers.trainers import Loader, Recorder, batches, equal, quiet_trainer, weights_of
from helpers.training_runs import Run, make_run, quiet, small_agent, small_data
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn

from lrl import DQN, ActorLearnerCallback, EnvConfig, ReplayConfig, SequenceConfig
from lrl.learner.bootstrap import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.learner.captured import CapturedUpdater
from lrl.learner.updater import Losses
from lrl.networks import (
    GRUCore,
    MLPEncoder,
)
from lrl.parts.tape import Tape
from lrl.preflight.trainer import check_captured
from lrl.replay import PrioritizedSampler, RankSampler, UniformSampler
from lrl.schedules import Linear
from lrl.types import Batch, ConfigError, EnvSpec

pytestmark = quiet

ADAM = functools.partial(torch.optim.Adam, lr=1e-2, fused=True)
RULES: dict[str, Any] = {
    "max": MaxBootstrap, "double": DoubleBootstrap, "munchausen": MunchausenBootstrap
}  # fmt: skip
STEPS = 100


@pytest.fixture(autouse=True)
def one_batch_at_once(monkeypatch):
    """Some processors round other numbers of rows in a product in other ways."""
    monkeypatch.setattr("lrl.learner.updater._ROWS_ASKED_AT_ONCE", 8)


def learnt(spec: EnvSpec, updater: Any, **settings: Any) -> tuple[DQN, Recorder]:
    torch.manual_seed(0)
    agent = DQN(
        FlatEncoder, updater=updater, env_spec=spec,
        **{"optimizer": ADAM, "target_update_period_learner_steps": 7, **settings},
    )  # fmt: skip
    recorder = Recorder()
    trainer = quiet_trainer(STEPS, recorder, log_every_n_steps=25)
    trainer.fit(agent, train_dataloaders=Loader(batches(STEPS)))
    assert trainer.global_step == STEPS
    return agent, recorder


def assert_same(found: Recorder, expected: Recorder) -> None:
    assert found.global_steps == expected.global_steps
    assert found.learning_rates == expected.learning_rates
    assert found.statistics == expected.statistics
    for name in ("online", "target"):
        pairs = zip(getattr(found, name), getattr(expected, name), strict=True)
        assert [equal(*pair) for pair in pairs] == [True] * (STEPS + 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", HEADS)
def test_a_repeated_step_is_the_eager_one(tiny_spec: EnvSpec, head: str, rule: str):
    parts = {"head": HEADS[head], "bootstrap": RULES[rule]}
    _, expected = learnt(tiny_spec, "eager", **parts)
    agent, found = learnt(tiny_spec, "captured", **parts)
    assert_same(found, expected)
    updater: Any = agent.updater
    assert type(agent.updater) is CapturedUpdater
    (tape,) = updater._recorded.values()
    assert tape.num_operations > 40


def scheduler(kind: Any, **settings: Any) -> dict[str, Any]:
    return {"lr_scheduler": functools.partial(kind, **settings)}


@pytest.mark.parametrize(
    "settings",
    [
        scheduler(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.9),
        scheduler(torch.optim.lr_scheduler.LinearLR, total_iters=80),
        scheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=200),  # betas too
        {"gradient_clip_norm": 0.05},
        {"target_update_tau": 0.3},
        {"optimizer": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True, amsgrad=True)},
    ],
)
def test_nothing_is_baked_in(tiny_spec: EnvSpec, settings: dict[str, Any]):
    _, expected = learnt(tiny_spec, "eager", **settings)
    _, found = learnt(tiny_spec, "captured", **settings)
    assert_same(found, expected)
    assert len(set(found.learning_rates)) > 30 or "lr_scheduler" not in settings


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize(
    ("sampler", "index"),
    [
        (UniformSampler, "host"),
        (PrioritizedSampler, "host"),
        (PrioritizedSampler, "device"),
        (RankSampler, "host"),
    ],
)
def test_whole_runs_are_equal(tmp_path, sampler: Any, index: str, updates: int):
    """With checkpoints, metrics and replay; and an interrupted one that goes on."""

    def run(updater: Any, max_steps: int, folder: str) -> Any:
        torch.manual_seed(3)
        agent = small_agent(optimizer=ADAM, updater=updater, updates_per_step=updates)
        replay = ReplayConfig(200, batch_size=8, sampler=sampler, index=index)
        data = small_data(replay=replay)
        return saving_run(
            tmp_path / folder, agent, data, max_steps=max_steps, evaluate=20, log_every_n_steps=20
        )

    expected = outcome(run("eager", 60, "eager").fit())
    assert_same_outcome(outcome(run("captured", 60, "captured").fit()), expected)
    first = run("captured", 32, "again").fit()
    again = run("captured", 60, "again").fit(first.checkpoint("last"))
    assert_same_outcome(outcome(again), expected)


class ChangesRate(L.Callback):
    """As a user's schedule of his own may do."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step % 10 == 0:
            trainer.optimizers[0].param_groups[0]["lr"] = 0.03 / (1 + trainer.global_step)


def test_a_rate_that_somebody_sets_is_used(tiny_spec: EnvSpec):
    found = []
    for updater in ("eager", "captured"):
        torch.manual_seed(0)
        agent = DQN(FlatEncoder, optimizer=ADAM, updater=updater, env_spec=tiny_spec)
        trainer = quiet_trainer(STEPS, ChangesRate())
        trainer.fit(agent, train_dataloaders=Loader(batches(STEPS)))
        found.append(weights_of(agent.online))
    assert equal(*found)


class GoesBack(L.Callback):
    """Load an earlier state of the optimizer in the middle of training."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        optimizer = trainer.optimizers[0]
        if trainer.global_step == 20:
            self.state = copy.deepcopy(optimizer.state_dict())
        if trainer.global_step == 50:
            optimizer.load_state_dict(self.state)


def test_a_state_of_the_optimizer_that_is_loaded_counts(tiny_spec: EnvSpec):
    found = []
    for updater in ("eager", "captured"):
        torch.manual_seed(0)
        agent = DQN(FlatEncoder, optimizer=ADAM, updater=updater, env_spec=tiny_spec)
        trainer = quiet_trainer(STEPS, GoesBack(), log_every_n_steps=1000)
        trainer.fit(agent, train_dataloaders=Loader(batches(STEPS)))
        (state, *_) = trainer.optimizers[0].state.values()
        assert state["step"].item() == 70
        found.append(weights_of(agent.online))
    assert equal(*found)


class LooksAtKeys(DQN):
    """Weighs rows by their number."""

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        return losses._replace(loss=(batch.keys[:, 1] % 2 * losses.td.loss).mean())


def test_the_batch_at_hand_is_learnt_from(tiny_spec: EnvSpec):
    """Its keys too; and what was one tensor in the first batch need not be one later."""
    ones = torch.ones(8)
    given = [
        replace(
            random_batch(seed=n),
            keys=torch.randint(0, 100, (8, 2), generator=torch.Generator().manual_seed(n)),
            **({"weights": ones, "discount": ones} if n < 5 else {}),
        )
        for n in range(20)
    ]
    weights = []
    for updater in ("eager", "captured"):
        torch.manual_seed(0)
        agent = LooksAtKeys(FlatEncoder, optimizer=ADAM, updater=updater, env_spec=tiny_spec)
        quiet_trainer(20, log_every_n_steps=1000).fit(agent, train_dataloaders=Loader(given))
        weights.append(weights_of(agent.online))
    assert equal(*weights)


class SpectralEncoder(MLPEncoder):
    """Its weights are divided by their largest singular value, which it goes on estimating."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__(observation_shape, (8,))
        nn.utils.parametrizations.spectral_norm(self.layers[1])


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "leaves": ({}, {"env": EnvConfig("lrl/Signpost-v0")}),
    "branches": ({}, {"env": EnvConfig("lrl/Dials-v0")}),
    "masks": ({}, {"env": EnvConfig("lrl/Masked-v0", action_masks=True)}),
    "memory": ({"core": functools.partial(GRUCore, hidden_size=8)}, {}),
    "spectral norm": ({"encoder": SpectralEncoder}, {}),
    "bfloat16": ({}, {"precision": "bf16-mixed"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_whole_runs_of_all_kinds_are_equal(tmp_path, name: str):
    def run(updater: Any) -> Run:
        torch.manual_seed(3)
        agent, settings = RUNS[name]
        encoder = agent.get("encoder")
        module = DQN(
            **({} if encoder is None else {"encoder": encoder}),
            **{n: v for n, v in agent.items() if n != "encoder"}, optimizer=ADAM, updater=updater,
        )  # fmt: skip
        trainer = {n: v for n, v in settings.items() if n == "precision"}
        data = small_data(
            **{n: v for n, v in settings.items() if n != "precision"},
            replay=ReplayConfig(200, batch_size=8),
        )
        return make_run(
            tmp_path, module=module, data=data, max_steps=24, seed=None, log_every_n_steps=12,
            **trainer,
        ).fit()  # fmt: skip

    expected, found = run("eager").module, run("captured").module
    updater: Any = found.updater
    assert [type(each) for each in updater._recorded.values()] == [Tape]
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
    copies = [copy.deepcopy(found)]
    if name != "spectral norm":  # which torch does not pickle
        copies.append(pickle.loads(pickle.dumps(found)))
    for again in copies:
        torch.testing.assert_close(again.state_dict(), found.state_dict(), rtol=0, atol=0)


def test_a_module_may_be_fitted_twice(tiny_spec: EnvSpec):
    weights = []
    for updater in ("eager", "captured"):
        torch.manual_seed(0)
        agent = DQN(FlatEncoder, optimizer=ADAM, updater=updater, env_spec=tiny_spec)
        for _ in range(2):
            quiet_trainer(10).fit(agent, train_dataloaders=Loader(batches(10)))
        weights.append(weights_of(agent.online))
    assert equal(*weights)


def test_a_run_goes_on_with_the_way_of_counting_that_it_had(tmp_path):
    def run(updater: Any, max_steps: int) -> Run:
        agent = small_agent(optimizer=ADAM, updater=updater)
        return make_run(tmp_path, module=agent, max_steps=max_steps)

    for before, after in (("eager", "captured"), ("captured", "eager")):
        checkpoint = run(before, 20).fit().checkpoint("last")
        words = (
            f"model.updater is {after}, but the checkpoint's run had {before}.*set it to {before}"
        )
        with pytest.raises(ConfigError, match=words):
            run(after, 40).fit(checkpoint)


def test_an_optimizer_of_a_checkpoint_that_is_not_fused_is_refused(tiny_spec: EnvSpec):
    agent = DQN(FlatEncoder, optimizer=ADAM, updater="captured", env_spec=tiny_spec)

    class Loads(L.Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.optimizers[0].param_groups[0]["fused"] = None

    with pytest.raises(ConfigError, match=r"is not fused, .*set the updater to eager"):
        quiet_trainer(10, Loads()).fit(agent, train_dataloaders=Loader(batches(10)))


def test_batches_of_another_layout_are_learnt_from_as_well(tiny_spec: EnvSpec):
    def train(updater: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        agent = DQN(FlatEncoder, optimizer=ADAM, updater=updater, env_spec=tiny_spec)
        loader = Loader([random_batch(size=8 if n % 3 else 5, seed=n) for n in range(20)])
        trainer = quiet_trainer(20)
        trainer.fit(agent, train_dataloaders=loader)
        assert trainer.global_step == 20
        return weights_of(agent.online)

    assert equal(train("captured"), train("eager"))


class Branching(DQN):
    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        return losses if losses.loss < 1e9 else losses._replace(loss=losses.loss * 0)


class Clipping(L.Callback):
    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Would be left out."""


class OwnGroup(ActorLearnerCallback):
    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Would be left out."""


class OwnStep(DQN):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Would be left out."""


class OwnClipping(DQN):
    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        """Would be left out."""


def test_what_cannot_be_repeated_is_refused(tmp_path, tiny_spec: EnvSpec):
    for optimizer in (torch.optim.Adam, torch.optim.SGD):
        with pytest.raises(
            ConfigError, match=r"model\.optimizer is .*fused true, or the updater to"
        ):
            DQN(optimizer=functools.partial(optimizer, lr=1.0), updater="captured")
    for kind in (OwnStep, OwnClipping):
        with pytest.raises(ConfigError, match=rf"{kind.__name__} has a .*set it to eager"):
            kind(optimizer=ADAM, updater="captured")
    OwnClipping(updates_per_step=4)
    with pytest.raises(ConfigError, match=r"model\.updater is 'fast', but is one of \['eager'"):
        DQN(updater="fast")  # pyright: ignore[reportArgumentType]

    agent = functools.partial(small_agent, optimizer=ADAM, updater="captured")
    lambdas = LambdaCallback(on_after_backward=lambda *_: None)
    for callback in (Clipping(), lambdas, OwnGroup()):
        with pytest.raises(ConfigError, match=f"{type(callback).__name__} has on_after_backward"):
            make_run(tmp_path, callback, module=agent()).fit()
    of_trainer: list[tuple[dict[str, Any], str]] = [
        ({"log_every_n_steps": 1}, "log_every_n_steps is 1"),
        ({"detect_anomaly": True}, "detect_anomaly is True"),
    ]
    for settings, words in of_trainer:
        with pytest.raises(ConfigError, match=words):
            make_run(tmp_path, module=agent(), **settings).fit()
    for setting in ("devices", "num_nodes"):
        ranks: dict[str, Any] = {"devices": 1, setting: 2}
        several = L.Trainer(accelerator="cpu", strategy="ddp", logger=False, **ranks)
        with pytest.raises(ConfigError, match=rf"trainer\.{setting} is 2, .*updater to eager"):
            check_captured(several)
    sequences = SequenceConfig(length=4, overlap=2)
    data = small_data(replay=ReplayConfig(200, batch_size=8, sequences=sequences))
    with pytest.raises(ConfigError, match=r"model\.updater is captured, but .* replay\.sequences"):
        make_run(
            tmp_path, module=agent(core=functools.partial(GRUCore, hidden_size=4)), data=data
        ).fit()

    branching = Branching(
        functools.partial(MLPEncoder, hidden_sizes=(8,)), optimizer=ADAM, updater="captured"
    )
    with pytest.raises(ConfigError, match=r"step cannot be repeated: aten\._local_scalar_dense"):
        make_run(tmp_path, module=branching).fit()


def test_a_step_is_recorded_again_for_every_n_step_of_a_schedule(tmp_path, monkeypatch):
    """With rows drawn in the step, whose shapes depend on it."""
    recorded: list[int] = []
    record = CapturedUpdater._record

    def noted(self: CapturedUpdater, batch: Any, columns: Any) -> Any:
        recorded.append(batch.index.layout)
        return record(self, batch, columns)

    monkeypatch.setattr(CapturedUpdater, "_record", noted)

    def run(updater: Any) -> Run:
        replay = ReplayConfig(
            200, batch_size=8, sampler=PrioritizedSampler, index="device",
            n_step=Linear(8.0, 2.0, 60),
        )  # fmt: skip
        agent = small_agent(optimizer=ADAM, updater=updater)
        callback = ActorLearnerCallback(eval_period_learner_steps=0)
        return make_run(
            tmp_path, callback, module=agent, data=small_data(replay=replay), max_steps=80,
            log_every_n_steps=40,
        ).fit()  # fmt: skip

    expected, found = run("eager").module, run("captured").module
    assert recorded == [8, 7, 6, 5, 4, 3, 2]
    updater: Any = found.updater
    assert len(updater._recorded) == 1
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
