"""Checkpoints and replays of earlier releases: each is loaded and gone on from, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.golden import DATA, golden_agent, golden_replay
from helpers.saved_replays import contents, load, make_buffer
from helpers.training_runs import make_run, quiet, small_data

import lrl
from lrl import DQN, ActorLearnerCallback, EnvConfig
from lrl.learner.agent import load_agent

pytestmark = quiet

RELEASES = sorted(DATA.glob("lrl-*.ckpt"))


def test_this_release_has_one():
    assert DATA / f"lrl-{lrl.__version__}.ckpt" in RELEASES


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_its_agent_acts(path: Path):
    agent = load_agent(path)
    assert agent.env.id == "CartPole-v1"
    assert agent.stamp["training"]["learner_steps"] == 20
    assert agent.module.act(torch.zeros(3, 4)).shape == (3,)
    assert DQN.load_from_checkpoint(path, weights_only=True).hparams == agent.module.hparams


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_a_run_goes_on_from_it(path: Path, tmp_path: Path):
    data = small_data(env=EnvConfig("CartPole-v1"))
    callback = ActorLearnerCallback(5, 10, 10)
    run = make_run(tmp_path, callback, module=golden_agent(), data=data, max_steps=25).fit(path)
    assert run.trainer.global_step == 25
    assert run.trainer.optimizers[0].state_dict()["state"][0]["step"] == 25
    assert data.dataset is not None
    before = torch.load(path, weights_only=True)["lrl"]["training"]["env_steps"]
    assert data.stamp()["training"]["env_steps"] > before > 0


@pytest.mark.parametrize("release", [path.stem for path in RELEASES])
def test_its_replay_is_restored(release: str):
    saved, restored = golden_replay(), make_buffer("rank", masks=True)
    assert load(DATA / f"{release}-replay", restored, 20, ranks=1) == {"episodes": 3}
    assert contents(restored) == contents(saved)
    assert restored.sample(8).keys.tolist() == saved.sample(8).keys.tolist()
