"""Several learner steps in one training step: the same learning, and nothing due in between."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tiny_networks import FlatEncoder, linear_dqn, random_batch
from helpers.trainers import (
    Loader,
    Recorder,
    batches,
    equal,
    quiet_trainer,
    train,
    weights_of,
)
from helpers.training_runs import (
    AfterEachStep,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
)
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

from lrl import DQN, ActorLearnerCallback, ReplayConfig
from lrl.callbacks import WeightSync
from lrl.learner.bootstrap import (
    BootstrapRule,
    DoubleBootstrap,
    MaxBootstrap,
    MunchausenBootstrap,
    NextValues,
)
from lrl.learner.datamodule import dataset_of
from lrl.learner.updater import Losses
from lrl.networks import (
    CategoricalHead,
    Head,
    QuantileHead,
    ScalarHead,
)
from lrl.preflight.trainer import check_updates_per_step
from lrl.replay import PrioritizedSampler
from lrl.report.contents import contents
from lrl.types import Batch, ConfigError, EnvSpec

pytestmark = quiet


class Groups:
    """A dataloader of tuples of batches."""

    def __init__(self, parts: list[Batch], size: int) -> None:
        self.groups = [tuple(parts[i : i + size]) for i in range(0, len(parts), size)]

    def __iter__(self) -> Any:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


PARTS = {
    "optimizer": functools.partial(torch.optim.Adam, lr=0.1),
    "lr_scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "target_update_period_learner_steps": 3,
}


@pytest.mark.parametrize("updates", [2, 3, 12])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_same_batches_teach_the_same(
    tiny_spec: EnvSpec, monkeypatch, updates: int, precision: Any
):
    """Bit for bit: optimizer, learning rate, target network, statistics.

    Some processors round other numbers of rows in a product in other ways, hence one batch at once.
    """
    monkeypatch.setattr("lrl.learner.updater._ROWS_ASKED_AT_ONCE", 8)
    settings = {"precision": precision, "log_every_n_steps": 12}
    torch.manual_seed(0)
    one_by_one, together = Recorder(), Recorder()
    agent = linear_dqn(tiny_spec, **PARTS)
    start = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    train(agent, batches(12), one_by_one, **settings)
    agent = linear_dqn(tiny_spec, updates_per_step=updates, **PARTS)
    agent.load_state_dict(start)
    groups = Groups(batches(12), updates)
    trainer = quiet_trainer(len(groups), together, **settings)
    trainer.fit(agent, train_dataloaders=groups)
    assert together.global_steps == list(range(0, 13, updates))
    for index, step in enumerate(together.global_steps):
        assert equal(together.online[index], one_by_one.online[step])
        assert equal(together.target[index], one_by_one.target[step])
        assert together.learning_rates[index] == one_by_one.learning_rates[step]
    assert together.statistics[-1] == one_by_one.statistics[-1]
    assert together.statistics[-1]["train/grad_norm"] > 0


class OwnLoss(DQN):
    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        return super().compute_loss(batch, next_values)


class OwnMove(DQN):
    def move_target(self, learner_step: int) -> None:
        self.update_target()


NOISY = {"head": functools.partial(ScalarHead, noisy=True)}


@pytest.mark.parametrize(
    ("kind", "settings", "rows"),
    [
        (DQN, {}, [5 * 8, 5 * 8, 2 * 8]),
        (DQN, {"target_update_period_learner_steps": 1}, [8] * 12),
        (DQN, {"target_update_period_learner_steps": 100}, [9 * 8, 3 * 8]),  # 72 rows at most
        (DQN, NOISY, [8] * 12),
        (OwnLoss, {}, [5 * 8, 5 * 8, 2 * 8]),
        (OwnMove, {}, [8] * 12),
    ],
)
def test_the_target_network_answers_for_the_batches_until_it_moves(
    tiny_spec: EnvSpec, monkeypatch, kind, settings, rows
):
    monkeypatch.setattr("lrl.learner.updater._ROWS_ASKED_AT_ONCE", 9 * 8 + 7)
    period = {"target_update_period_learner_steps": 5}
    agent = kind(FlatEncoder, env_spec=tiny_spec, updates_per_step=12, **period | settings)
    asked: list[int] = []
    agent.target.encoder.register_forward_pre_hook(
        lambda encoder, inputs: asked.append(len(inputs[0]))
    )
    groups = Groups(batches(12), 12)
    quiet_trainer(1, log_every_n_steps=12).fit(agent, train_dataloaders=groups)
    assert asked == rows


def test_a_loss_set_on_the_agent_itself_is_used(tiny_spec: EnvSpec):
    agent = linear_dqn(tiny_spec, updates_per_step=4)
    compute_loss, seen = agent.compute_loss, []
    agent.compute_loss = lambda batch, next_values: (
        seen.append(batch),
        compute_loss(batch, next_values),
    )[1]
    quiet_trainer(1, log_every_n_steps=4).fit(agent, train_dataloaders=Groups(batches(4), 4))
    assert len(seen) == 4


def test_joined_answers_are_dealt_out_by_the_sizes_of_the_batches(tiny_spec: EnvSpec):
    allowed = torch.tensor([[True, False], [True, True]])
    parts = [
        dataclasses.replace(
            random_batch(size, seed=size), next_action_mask=allowed.repeat(size // 2, 1)
        )
        for size in (2, 6, 4)
    ]
    weights: list[list[torch.Tensor]] = []
    for groups in (Groups(parts, 3), Groups(parts, 1)):
        torch.manual_seed(0)
        agent = linear_dqn(tiny_spec, updates_per_step=3)
        quiet_trainer(len(groups), log_every_n_steps=3).fit(agent, train_dataloaders=groups)
        weights.append(weights_of(agent.online))
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("rule", [MaxBootstrap, DoubleBootstrap, MunchausenBootstrap])
@pytest.mark.parametrize("head", [ScalarHead, CategoricalHead, QuantileHead])
def test_every_head_and_rule_learns_the_same_from_joined_answers(
    tiny_spec: EnvSpec, head: type[Head], rule: type[BootstrapRule]
):
    weights: list[list[torch.Tensor]] = []
    for updates in (1, 6):
        torch.manual_seed(0)
        agent = DQN(FlatEncoder, head, rule, updates_per_step=updates, env_spec=tiny_spec, **PARTS)
        agent.target.load_state_dict(agent.network_recipe.build().state_dict())
        loader = Groups(batches(12), 6) if updates > 1 else Loader(batches(12))
        trainer = quiet_trainer(len(loader), log_every_n_steps=12)
        trainer.fit(agent, train_dataloaders=loader)
        weights.append(weights_of(agent.online))
    torch.testing.assert_close(*weights)


def test_a_run_learns_evaluates_and_keeps_its_ratio(tmp_path):
    seen: list[tuple[int, int]] = []
    run = make_run(
        tmp_path,
        ActorLearnerCallback(8, 16, 16),
        AfterEachStep(lambda trainer, batch: seen.append((trainer.global_step, len(batch)))),
        module=small_agent(updates_per_step=4),
        data=small_data(replay=ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler)),
        max_steps=32,
        log_every_n_steps=8,
    ).fit()
    assert seen == [(step, 4) for step in range(4, 33, 4)]
    dataset = dataset_of(run.trainer)
    assert dataset.batches == 32
    assert dataset.limiter.samples_per_insert == 4.0
    assert dataset.replay.metrics()["replay/priority_max"] > 0
    rows = run.metrics()
    assert [int(row["step"]) for row in rows if "train/loss" in row] == [8, 16, 24, 32]
    assert [int(row["step"]) for row in rows if "eval/return_mean" in row] == [16, 32]
    saved = torch.load(run.checkpoint("last"), weights_only=True)
    assert saved["global_step"] == 32
    again = make_run(
        tmp_path,
        ActorLearnerCallback(8, 16, 16),
        module=small_agent(updates_per_step=4),
        data=small_data(replay=ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler)),
        max_steps=48,
        log_every_n_steps=8,
    ).fit(run.checkpoint("last"))
    assert [int(row["step"]) for row in again.metrics() if "train/loss" in row] == [40, 48]
    assert [int(row["step"]) for row in again.metrics() if "eval/return_mean" in row] == [48]
    other = make_run(tmp_path, ActorLearnerCallback(8, 16, 16), max_steps=48, log_every_n_steps=8)
    with pytest.raises(ConfigError, match=r"updates_per_step is 1, but .* run had 4"):
        other.fit(run.checkpoint("last"))


def test_a_run_goes_on_with_as_many_batches_for_each_learner_step(tmp_path):
    """Evaluations, and the saves that wait for them, are counted by batches."""
    first = make_run(tmp_path, ActorLearnerCallback(5, 4, 4), max_steps=8)
    first.trainer.accumulate_grad_batches = 2
    first.fit()
    other = make_run(tmp_path, ActorLearnerCallback(5, 4, 4), max_steps=16)
    with pytest.raises(ConfigError, match=r"accumulate_grad_batches is 1, but .* run had 2"):
        other.fit(first.checkpoint("last"))
    again = make_run(tmp_path, ActorLearnerCallback(5, 4, 4), max_steps=16)
    again.trainer.accumulate_grad_batches = 2
    again.fit(first.checkpoint("last"))
    assert [int(row["step"]) for row in again.metrics() if "eval/return_mean" in row] == [12, 16]
    content = torch.load(first.checkpoint("last"), weights_only=True)
    del content["loops"]  # as of another's making
    torch.save(content, tmp_path / "without.ckpt")
    without = make_run(tmp_path, ActorLearnerCallback(5, 4, 4), max_steps=9)
    without.fit(tmp_path / "without.ckpt")


def test_weights_alone_are_not_gone_on_with(tmp_path):
    first = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=2).fit()
    first.trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    again = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=4)
    with pytest.raises(ConfigError, match="holds weights without the state of their optimizer"):
        again.fit(tmp_path / "weights.ckpt")
    assert "no run can go on from it" in contents(tmp_path / "weights.ckpt")["going_on"]["why"]


def test_a_scheduler_that_waits_for_a_metric_is_refused(tmp_path):
    module = small_agent(lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ConfigError, match="is ReduceLROnPlateau, which waits for a metric"):
        make_run(tmp_path, module=module).fit()


def test_priorities_of_all_updates_reach_the_sampler(tmp_path, monkeypatch):
    updated: list[int] = []
    update = PrioritizedSampler.update_priorities

    def note(self: Any, keys: Any, priorities: Any) -> None:
        assert len(keys) == len(priorities)
        updated.append(len(keys))
        update(self, keys, priorities)

    monkeypatch.setattr(PrioritizedSampler, "update_priorities", note)
    make_run(
        tmp_path,
        ActorLearnerCallback(8, 0, 0),
        module=small_agent(updates_per_step=4),
        data=small_data(replay=ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler)),
        max_steps=8,
        log_every_n_steps=8,
    ).fit()
    assert updated == [32, 32]


class OwnStep(DQN):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("settings", "callback", "words"),
    [
        ({"max_steps": 30}, None, "trainer.max_steps is 30, but model.updates_per_step is 4"),
        ({"log_every_n_steps": 5}, None, "trainer.log_every_n_steps is 5"),
        ({}, ActorLearnerCallback(6, 0, 0), "actor_learner.sync_period_learner_steps is 6"),
        ({}, ActorLearnerCallback(8, 10, 0), "actor_learner.eval_period_learner_steps is 10"),
        ({}, ActorLearnerCallback(8, 0, 7), "actor_learner.save_period_learner_steps is 7"),
        ({}, WeightSync(6), "actor_learner.sync_period_learner_steps is 6"),
        ({}, ModelCheckpoint(every_n_train_steps=10), "ModelCheckpoint.every_n_train_steps is 10"),
    ],
)
def test_what_would_be_due_between_two_updates_is_refused(tmp_path, settings, callback, words):
    run = make_run(
        tmp_path,
        *([] if isinstance(callback, ActorLearnerCallback) else [ActorLearnerCallback(8, 0, 0)]),
        *([callback] if callback else []),
        module=small_agent(updates_per_step=4),
        data=small_data(actors=background(1)),
        **{"max_steps": 32, "log_every_n_steps": 8, **settings},
    )
    with pytest.raises(ConfigError, match=words):
        run.fit()


def test_scaled_losses_are_refused():
    """`16-mixed` needs a GPU, which is not there to test it with."""
    plugin = SimpleNamespace(scaler=object())
    trainer: Any = SimpleNamespace(max_steps=8, precision="16-mixed", precision_plugin=plugin)
    with pytest.raises(ConfigError, match=r"trainer\.precision is 16-mixed.*set precision to bf16"):
        check_updates_per_step(4, trainer)


def test_an_own_training_step_and_a_number_below_one_are_refused():
    with pytest.raises(ConfigError, match=r"model\.updates_per_step must be at least 1, got 0"):
        small_agent(updates_per_step=0)
    with pytest.raises(ConfigError, match="OwnStep has a training_step of its own"):
        OwnStep(updates_per_step=2)


def test_a_hook_that_would_not_be_called_is_refused(tmp_path):
    hook = LambdaCallback(on_before_zero_grad=lambda *_: None)
    run = make_run(tmp_path, hook, module=small_agent(updates_per_step=5))
    with pytest.raises(
        ConfigError, match=r"LambdaCallback has on_before_zero_grad, .* set that to"
    ):
        run.fit()


def test_lightning_refuses_to_clip(tmp_path):
    """Its sentence names the setting; lrl's own optimisation would leave it out otherwise."""
    run = make_run(tmp_path, module=small_agent(updates_per_step=2), gradient_clip_val=1.0)
    with pytest.raises(MisconfigurationException, match="clip"):
        run.fit()


@pytest.mark.parametrize("updates", [1, 4])
def test_gradients_are_clipped_to_the_agents_norm(tiny_spec: EnvSpec, updates: int):
    class Seen(DQN):
        norms: list[float]

        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            super().configure_gradient_clipping(*args, **kwargs)
            gradients = [p.grad for p in self.online.parameters() if p.grad is not None]
            self.norms.append(torch.nn.utils.get_total_norm(gradients).item())

    agent = Seen(FlatEncoder, env_spec=tiny_spec, updates_per_step=updates, gradient_clip_norm=1e-3)
    agent.norms = []
    loader = Groups(batches(4), 4) if updates > 1 else Loader(batches(4))
    quiet_trainer(len(loader), log_every_n_steps=4).fit(agent, train_dataloaders=loader)
    assert agent.norms == pytest.approx([1e-3] * 4, rel=1e-2)


def test_a_norm_is_set_once(tmp_path):
    wrong: Any
    for wrong in (0.0, -1.0, float("inf"), float("nan"), "1", True):
        with pytest.raises(ConfigError, match="gradient_clip_norm must be a finite number above 0"):
            DQN(gradient_clip_norm=wrong)
    run = make_run(tmp_path, module=DQN(gradient_clip_norm=1.0), gradient_clip_val=2.0)
    with pytest.raises(ConfigError, match=r"gradient_clip_norm is 1\.0 and .* 2\.0: leave one"):
        run.fit()
    run = make_run(tmp_path, module=DQN(gradient_clip_norm=1.0), gradient_clip_algorithm="value")
    with pytest.raises(ConfigError, match=r"gradient_clip_algorithm is value, but nothing is clip"):
        run.fit()
