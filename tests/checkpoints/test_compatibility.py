"""Checkpoints of other agents: refused in words, whichever way they are loaded."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import edited, with_nan
from helpers.training_runs import make_run, quiet, small_agent, small_data

from lrl import DQN, ActorLearnerCallback, ConfigError, EnvConfig
from lrl.checkpoints.compatibility import check_finite
from lrl.checkpoints.stamp import STAMP_KEY
from lrl.networks import CategoricalHead, MLPEncoder, NatureEncoder, ScalarHead
from lrl.types import EnvSpec

pytestmark = quiet


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("first"), ActorLearnerCallback(5, 0, 0), max_steps=2)
    return run.fit().checkpoint("last")


def test_buffers_may_be_infinite_and_weights_may_not():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    check_finite(module, module.state_dict())
    with torch.no_grad():
        module.bias[1] = torch.inf
    with pytest.raises(ConfigError, match="the weights bias of the checkpoint are NaN or infinite"):
        check_finite(module, module.state_dict())


def agent(**settings: Any) -> DQN:
    defaults = {"encoder": functools.partial(MLPEncoder, hidden_sizes=(16,))}
    return DQN(**{**defaults, **settings})


SGD = functools.partial(torch.optim.SGD, lr=0.1)
OTHERS = {
    "sizes": (
        {"encoder": functools.partial(MLPEncoder, hidden_sizes=(8, 8))},
        {},
        r"another network: model\.encoder\.init_args\.hidden_sizes is [\[(]16.* there and .*8, 8",
    ),
    "head": (
        {"head": functools.partial(CategoricalHead, num_atoms=5)},
        {},
        r"model\.head\.class_path is 'lrl\.networks\.heads\.ScalarHead' there and .*Categorical",
    ),
    "head's settings": (
        {"head": functools.partial(ScalarHead, dueling=True)},
        {},
        r"model\.head\.init_args\.dueling is False there and True here",
    ),
    "environment": (
        {},
        {"env": EnvConfig("CartPole-v1")},
        r"environment lrl/Identity-v0, but env\.id is CartPole-v1: set it to lrl/Identity-v0",
    ),
    "size of the environment": (
        {},
        {"env": EnvConfig("lrl/Identity-v0", {"num_contexts": 6})},
        r"model\.env_spec\.observation_shape is \(4,\) there and \(6,\) here",
    ),
    "optimizer": (
        {"optimizer": SGD},
        {},
        r"state of optimizer torch\.optim\.adam\.Adam, which torch\.optim\.sgd\.SGD cannot go on",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_does_not_go_on_from_another_agent(tmp_path: Path, checkpoint: Path, name: str):
    model, data, message = OTHERS[name]
    callback = ActorLearnerCallback(5, 0, 0)
    run = make_run(tmp_path, callback, module=agent(**model), data=small_data(**data), max_steps=4)
    with pytest.raises(ConfigError, match=message):
        run.fit(checkpoint)
    assert run.trainer.global_step == 0


def test_another_optimizer_does_not_matter_where_nothing_is_learned(
    tmp_path: Path, checkpoint: Path
):
    run = make_run(tmp_path, module=agent(optimizer=SGD))
    (metrics,) = run.trainer.validate(
        run.module, datamodule=run.data, ckpt_path=checkpoint, verbose=False
    )
    assert metrics["eval/episodes"] == 2


@pytest.mark.parametrize("verb", ["validate", "test", "fit"])
def test_weights_that_are_not_finite_are_not_taken(tmp_path: Path, checkpoint: Path, verb: str):
    run = make_run(tmp_path, module=agent(), max_steps=4)
    broken = edited(checkpoint, "broken", with_nan)
    with pytest.raises(ConfigError, match=r"the weights online\S+ of the checkpoint are NaN"):
        getattr(run.trainer, verb)(run.module, datamodule=run.data, ckpt_path=broken)


def test_what_changes_no_tensor_may_differ(tmp_path: Path, checkpoint: Path):
    module = agent(target_update_tau=0.5, target_update_period_learner_steps=3)
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), module=module, max_steps=4)
    run.fit(checkpoint)
    assert run.trainer.global_step == 4


@pytest.mark.parametrize("format_number", [0, 2])
def test_another_format_is_refused(tmp_path: Path, checkpoint: Path, format_number: int):
    other = edited(
        checkpoint, "other", lambda content: content[STAMP_KEY].update(format=format_number)
    )
    message = rf"written by lrl .*: use that version; its format is {format_number}, and this"
    with pytest.raises(ConfigError, match=message):
        make_run(tmp_path, ActorLearnerCallback(5, 0, 0), max_steps=4).fit(other)
    with pytest.raises(ConfigError, match=message):
        DQN.load_from_checkpoint(other, weights_only=True)


def test_tensors_that_no_setting_explains_are_named(tmp_path: Path, checkpoint: Path):
    def shorten(content: dict[str, Any]) -> None:
        tensors = content["state_dict"]
        name = next(name for name in tensors if name.endswith("bias"))
        tensors[name] = tensors[name][:1]

    with pytest.raises(ConfigError, match=r"the shape of online.*bias is \[1\] there and \[\d+\]"):
        DQN.load_from_checkpoint(edited(checkpoint, "short", shorten), weights_only=True)


def test_parts_may_be_missing_where_loading_is_not_strict(checkpoint: Path):
    module = small_agent(env_spec=DQN.load_from_checkpoint(checkpoint).env_spec)
    content = torch.load(checkpoint, weights_only=True)
    name = next(iter(content["state_dict"]))
    del content["state_dict"][name]
    with pytest.raises(ConfigError, match=rf"the shape of {name} is None there"):
        module.on_load_checkpoint(content)
    module.strict_loading = False
    module.on_load_checkpoint(content)


def test_a_network_of_frames_is_told_from_one_of_numbers(checkpoint: Path):
    content = torch.load(checkpoint, weights_only=True)
    spec = DQN.load_from_checkpoint(checkpoint).env_spec
    assert spec is not None
    frames = EnvSpec.box((4, 84, 84), "uint8", spec.num_actions)
    module = DQN(encoder=NatureEncoder, env_spec=frames)
    with pytest.raises(ConfigError, match=r"model\.encoder\.class_path is .*MLPEncoder' there"):
        module.on_load_checkpoint(content)


STEP = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5)
EXPONENTIAL = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.999)


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (STEP, EXPONENTIAL, r"StepLR, which \S+ExponentialLR cannot .* to \S+StepLR"),
        (STEP, None, "StepLR, which null cannot"),
        (None, STEP, "lr_scheduler null, which .* to null"),
    ],
)
def test_another_kind_of_scheduler_is_refused(tmp_path: Path, there: Any, here: Any, words: str):
    """Lightning would put the state of one into the other, whose rate is then neither's."""
    callback = ActorLearnerCallback(5, 0, 0)
    first = make_run(tmp_path, callback, module=agent(lr_scheduler=there), max_steps=2).fit()
    second = make_run(tmp_path, module=agent(lr_scheduler=here), max_steps=4)
    with pytest.raises(ConfigError, match=words):
        second.fit(first.checkpoint("last"))


@pytest.mark.parametrize("bound", [None, 100.0])
def test_settings_that_change_what_weights_mean_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bound: float | None
):
    def categorical(**settings: Any) -> DQN:
        return agent(head=functools.partial(CategoricalHead, num_atoms=5, **settings))

    callback = ActorLearnerCallback(5, 0, 0)
    first = make_run(tmp_path, callback, module=categorical(), max_steps=2).fit()
    default = inspect.signature(CategoricalHead).parameters["v_max"].default
    module = categorical(v_max=default if bound is None else bound)
    make_run(tmp_path, module=module).trainer.validate(
        module, datamodule=small_data(), ckpt_path=first.checkpoint("last"), verbose=False
    )
    told = [message for message in caplog.messages if "other settings" in message]
    assert len(told) == (bound is not None)
    assert all("v_max is 10.0 there and 100.0 here" in message for message in told)
