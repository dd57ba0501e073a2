"""Settings of the Trainer that are refused, in scripts and on the command line."""

from __future__ import annotations

import lightning as L
import pytest
from helpers.training_runs import make_run, quiet, small_agent, small_data
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import DDPStrategy

from lrl import ActorConfig
from lrl.preflight.trainer import check_ranks, check_trainer, check_trainer_settings, refusals_named
from lrl.types import ConfigError

pytestmark = quiet

WRONG = [
    ({"gradient_clip_val": -0.5}, "gradient_clip_val is -0.5, but must be at least 0"),
    ({"gradient_clip_val": float("nan")}, "gradient_clip_val is nan, but must be at least 0"),
    ({"accumulate_grad_batches": 0}, "accumulate_grad_batches is 0, but must be at least 1"),
    ({"accumulate_grad_batches": -2}, "accumulate_grad_batches is -2, but must be at least 1"),
    ({"precision": "bf16-true"}, "precision is bf16-true, but weights .* set it to 32-true"),
    ({"precision": "64-true"}, "precision is 64-true, but weights .* set it to 32-true"),
    ({"log_every_n_steps": -1}, "log_every_n_steps is -1, but must be at least 0"),
    (
        {"accumulate_grad_batches": 3, "limit_train_batches": 10},
        "limit_train_batches is 10, but a learner step takes 3 batches .* set it to 12",
    ),
    (
        {"callbacks": [GradientAccumulationScheduler({0: 1, 4: 2})]},
        "callbacks holds a GradientAccumulationScheduler",
    ),
    ({"limit_train_batches": 0.5}, "limit_train_batches is 0.5, a share, but a replay has no end"),
    ({"limit_train_batches": 0.0}, "limit_train_batches is 0.0, a share, but a replay has no end"),
    ({"overfit_batches": 0.5}, "overfit_batches is 0.5, but batches of a replay never come again"),
    ({"overfit_batches": 1}, "overfit_batches is 1, but batches of a replay never come again"),
]
SETTINGS = {
    "accelerator": "auto",
    "strategy": "auto",
    "precision": None,
    "enable_checkpointing": None,
    "barebones": False,
    "gradient_clip_val": None,
    "accumulate_grad_batches": 1,
}


def trainer(**settings):
    return L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **settings)


@pytest.mark.filterwarnings("ignore:You are overfitting")
@pytest.mark.parametrize(("settings", "words"), WRONG)
def test_what_lightning_takes_and_a_learner_cannot_have_is_refused(settings, words):
    with pytest.raises(ConfigError, match=rf"trainer\.{words}"):
        check_trainer(trainer(**settings))


@pytest.mark.filterwarnings("ignore:You are overfitting")
def test_data_of_another_making_may_be_few():
    check_trainer(trainer(overfit_batches=1), has_experience=False)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_clip_val": 0},
        {"gradient_clip_val": 10.0, "accumulate_grad_batches": 2},
        {"accumulate_grad_batches": 3, "limit_train_batches": 12},
        {"accumulate_grad_batches": 3, "fast_dev_run": 10},
        {"precision": "bf16-mixed", "log_every_n_steps": 0},
    ],
)
def test_other_trainers_are_taken(settings):
    check_trainer(trainer(**settings))


def test_several_machines_have_to_know_each_other(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"num_nodes is 2, .*: start it with torchrun or srun"):
        check_ranks(trainer(strategy="ddp", num_nodes=2))
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    check_ranks(trainer(strategy="ddp", num_nodes=2))


@pytest.mark.parametrize(
    "strategy",
    ["ddp_spawn", "ddp_spawn_find_unused_parameters_false", DDPStrategy(start_method="spawn")],
)
def test_the_command_line_spawns_no_ranks(strategy):
    with pytest.raises(ConfigError, match=r"trainer\.strategy spawns ranks, .*set it to ddp"):
        check_ranks(trainer(strategy=strategy))


def test_a_script_is_refused_before_anything_starts(tmp_path):
    data = small_data(actors=ActorConfig(num_actors=0))
    run = make_run(tmp_path, module=small_agent(), data=data, gradient_clip_val=-1.0)
    with pytest.raises(ConfigError, match=r"trainer\.gradient_clip_val is -1\.0"):
        run.fit()
    assert data.dataset is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "transformer-engine"}, r"precision is transformer.*set it to 32-true"),
        ({"precision": 64}, r"precision is 64, .*set it to 32-true"),
        ({"precision": 16, "accelerator": "cpu"}, r"precision is 16-mixed, which needs a GPU"),
        ({"strategy": "fsdp"}, r"strategy is fsdp, .*set it to ddp"),
        ({"strategy": "deepspeed_stage_2"}, r"strategy is deepspeed_stage_2, .*set it to ddp"),
        ({"enable_checkpointing": False}, r"enable_checkpointing is False, .*: leave it out"),
        ({"barebones": True}, r"barebones is True, .*: leave it out"),
    ],
)
def test_what_the_command_line_is_told_is_refused_before_a_trainer_is_built(settings, words):
    with pytest.raises(ConfigError, match=rf"trainer\.{words}"):
        check_trainer_settings({**SETTINGS, **settings}, {}, is_fit=True)


def test_what_was_trained_on_a_gpu_can_be_tested_without_one():
    settings = {**SETTINGS, "precision": "16-mixed", "accelerator": "cpu"}
    check_trainer_settings(settings, {}, is_fit=False)


@pytest.mark.parametrize("precision", [None, 32, "32", "32-true", "bf16", "bf16-mixed"])
def test_precisions_by_all_their_names_are_taken(precision):
    check_trainer_settings({**SETTINGS, "precision": precision}, {}, is_fit=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient_clip_val": 10.0}, r"gradient_clip_val is 10.0, .*model\.updates_per_step is 4"),
        ({"accumulate_grad_batches": 2}, r"accumulate_grad_batches is 2, .*set that to 1"),
    ],
)
def test_several_updates_a_step_and_what_the_trainer_does_between_them(settings, words):
    check_trainer_settings({**SETTINGS, **settings}, {}, is_fit=True)
    with pytest.raises(ConfigError, match=rf"trainer\.{words}"):
        check_trainer_settings({**SETTINGS, **settings}, {"updates_per_step": 4}, is_fit=True)


def test_a_missing_gpu_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"accelerator is gpu, but torch .* or set it to auto"):
        check_trainer_settings({**SETTINGS, "accelerator": "gpu"}, {}, is_fit=True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TypeError("`devices` should be an int > 0."), r"^trainer\.devices is two: `devices`"),
        (MisconfigurationException("`Timer('foo')`"), r"^trainer\.max_time is foo: `Timer"),
        (RuntimeError("no such callbacks"), "^trainer: no such callbacks"),
    ],
)
def test_the_settings_that_lightnings_words_name_come_first(error, words):
    with (
        pytest.raises(ConfigError, match=words),
        refusals_named({"devices": "two", "max_time": "foo", "callbacks": [object()]}),
    ):
        raise error
