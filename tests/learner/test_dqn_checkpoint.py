"""What a checkpoint of the agent holds, and what it takes to use one."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_networks import FlatEncoder
from helpers.trainers import SGD, Loader, Recorder, batches, equal, quiet_trainer, train, weights_of

from lrl.learner import DoubleBootstrap
from lrl.learner.dqn import DQN
from lrl.types import ConfigError, EnvSpec


@pytest.fixture
def checkpoint(tiny_spec: EnvSpec, tmp_path: Path) -> tuple[DQN, Path]:
    """A trained agent with parts of every kind, and its checkpoint from a script."""
    agent = DQN(
        encoder=functools.partial(FlatEncoder, factor=np.float64(0.5)),
        bootstrap=DoubleBootstrap,
        optimizer=SGD,
        lr_scheduler=functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2),
        target_update_period_learner_steps=3,
        target_update_tau=np.float64(0.5),
        env_spec=tiny_spec,
    )
    trainer = train(agent, batches(4))
    path = tmp_path / "agent.ckpt"
    trainer.save_checkpoint(path)
    return agent, path


def test_it_holds_tensors_and_plain_types(checkpoint: tuple[DQN, Path]):
    content = torch.load(checkpoint[1], weights_only=True)
    assert content["global_step"] == 4
    assert content["hyper_parameters"] == {
        "encoder": {
            "class_path": "helpers.tiny_networks.FlatEncoder", "init_args": {"factor": 0.5},
        },
        "head": {"class_path": "lrl.networks.heads.ScalarHead", "init_args": {}},
        "bootstrap": {"class_path": "lrl.learner.bootstrap.DoubleBootstrap", "init_args": {}},
        "optimizer": {"class_path": "torch.optim.sgd.SGD", "init_args": {"lr": 0.1}},
        "lr_scheduler": {
            "class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 2},
        },
        "target_update_period_learner_steps": 3,
        "target_update_tau": 0.5,
        "gradient_clip_norm": None,
        "updates_per_step": 1,
        "updater": "eager",
        "env_spec": {
            "observation_shape": (2,), "observation_dtype": "float32", "num_actions": 2,
            "frame_stack": 1, "frame_skip": 1, "action_masks": False,
        },
        "core": None,
    }  # fmt: skip


def test_it_acts_without_environment_and_datamodule(checkpoint: tuple[DQN, Path]):
    agent, path = checkpoint
    loaded = DQN.load_from_checkpoint(path, weights_only=True)
    observation = torch.randn(5, 2)
    assert torch.equal(loaded(observation), agent(observation))
    assert torch.equal(loaded.act(observation), agent.act(observation))
    assert not equal(weights_of(agent.online), weights_of(agent.target))
    assert equal(weights_of(loaded.target), weights_of(agent.target))
    assert isinstance(loaded.bootstrap, DoubleBootstrap)
    assert loaded.env_spec == agent.env_spec
    assert dict(loaded.hparams) == dict(agent.hparams)


def test_settings_can_be_replaced_while_loading(checkpoint: tuple[DQN, Path]):
    loaded = DQN.load_from_checkpoint(checkpoint[1], target_update_tau=0.125, weights_only=True)
    assert loaded.target_update_tau == 0.125


def test_a_run_continues_from_it(checkpoint: tuple[DQN, Path]):
    path = checkpoint[1]
    agent, recorder = DQN.load_from_checkpoint(path, weights_only=True), Recorder()
    trainer = quiet_trainer(4, recorder, max_epochs=2)
    trainer.fit(agent, train_dataloaders=Loader(batches(4)), ckpt_path=path, weights_only=True)
    assert recorder.global_steps == [4, 5, 6, 7, 8]
    assert recorder.learning_rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5])
    # The period counts learner steps of the whole run: the target moves at 6, not at 4 + 3.
    target = recorder.target
    moved = [not equal(target[index], target[index - 1]) for index in range(1, 5)]
    assert moved == [False, True, False, False]


def edited(path: Path, part: str, recipe: dict[str, Any]) -> Path:
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"][part] = recipe
    torch.save(content, path)
    return path


def test_a_class_from_elsewhere_must_be_imported_first(checkpoint: tuple[DQN, Path]):
    path = edited(checkpoint[1], "encoder", {"class_path": "nowhere.Encoder", "init_args": {}})
    with pytest.raises(ConfigError, match="import nowhere before loading the checkpoint"):
        DQN.load_from_checkpoint(path, weights_only=True)


def test_it_runs_no_code_of_its_own(checkpoint: tuple[DQN, Path]):
    victim = checkpoint[1].with_name("written")
    recipe = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(victim)]}}
    with pytest.raises(ConfigError, match=r"model\.bootstrap must be a subclass"):
        DQN.load_from_checkpoint(edited(checkpoint[1], "bootstrap", recipe), weights_only=True)
    assert not victim.exists()
