"""What a run shows: its first lines, and which of Lightning's bar and table give way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import background, make_run, quiet, small_agent, small_data
from lightning.pytorch.callbacks import ModelSummary, RichProgressBar, TQDMProgressBar

from lrl import (
    ActorLearnerCallback,
    EnvConfig,
    InferenceConfig,
    ReplayConfig,
    RLProgressBar,
    SequenceConfig,
)
from lrl.callbacks import progress as module
from lrl.callbacks.progress import introduction, replace_defaults
from lrl.networks import GRUCore
from lrl.replay import PrioritizedSampler

pytestmark = quiet


class MyBar(TQDMProgressBar):
    """Chosen by a user."""


class MySummary(ModelSummary):
    """Chosen by a user."""


def test_a_run_begins_with_what_it_trains_and_how_and_where(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "available_cores", lambda: 4)
    data = small_data(replay=ReplayConfig(2000, 8, sampler=PrioritizedSampler))
    with caplog.at_level("INFO"):
        run = make_run(tmp_path, data=data, max_steps=2).fit()
    first = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("DQN on"))
    parameters = sum(p.numel() for p in run.module.online.parameters())
    parts = "MLPEncoder, ScalarHead, MaxBootstrap, prioritised replay"
    assert first.splitlines() == [
        f"DQN on lrl/Identity-v0: {parts}; {parameters} parameters",
        "2 environments in this process; the learner on cpu with 1 thread (4 cores)",
        f"files in {run.folder}",
    ]


def test_a_memory_and_sequences_are_named(tmp_path):
    replay = ReplayConfig(2000, 8, sequences=SequenceConfig(4, 2, 3))
    run = make_run(
        tmp_path, module=small_agent(core=GRUCore), data=small_data(replay=replay), max_steps=2
    )
    parts = "MLPEncoder, GRUCore, ScalarHead, MaxBootstrap, uniform replay of sequences; "
    assert parts in introduction(run.fit().trainer, run.module)


def test_a_run_that_keeps_nothing_names_no_folder(tmp_path):
    run = make_run(tmp_path, fast_dev_run=True, default_root_dir=tmp_path).fit()
    assert "files in" not in introduction(run.trainer, run.module)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"actors": background(1, 4)}, "1 actor with 4 environments each; the learner"),
        ({"actors": background(2, 1)}, "2 actors with 1 environment each; the learner"),
        (
            {"actors": background(2, 4), "inference": InferenceConfig(num_servers=1)},
            "2 actors with 4 environments each that ask 1 inference server; the learner",
        ),
        ({"env": EnvConfig("ALE/Pong-v5")}, "DQN on ALE/Pong-v5 (protocol custom): "),
    ],
    ids=["one", "two", "servers", "atari"],
)
def test_every_mode_is_named(tmp_path, settings, expected, monkeypatch):
    monkeypatch.setattr(module, "_parts", lambda trainer, pl_module: "")
    run = make_run(tmp_path, data=small_data(**settings))
    run.trainer.datamodule = run.data  # pyright: ignore[reportAttributeAccessIssue]
    assert expected in introduction(run.trainer, run.module)


@pytest.mark.parametrize("default", [TQDMProgressBar, RichProgressBar])
def test_lightnings_own_bar_and_table_give_way(tmp_path, default):
    after = L.Callback()
    run = make_run(
        tmp_path, ActorLearnerCallback(), default(), after,
        enable_progress_bar=True, enable_model_summary=True,
    )  # fmt: skip
    trainer: Any = run.trainer
    replace_defaults(trainer, run.module, "fit")
    assert type(trainer.progress_bar_callback) is RLProgressBar
    assert not any(isinstance(c, ModelSummary) for c in trainer.callbacks)
    assert after in trainer.callbacks


@pytest.mark.parametrize("table", [MySummary(), ModelSummary(max_depth=3)])
def test_what_a_user_chose_stays(tmp_path, table):
    bar = MyBar()
    run = make_run(tmp_path, ActorLearnerCallback(), bar, table, enable_progress_bar=True)
    trainer: Any = run.trainer
    replace_defaults(trainer, run.module, "fit")
    assert trainer.progress_bar_callback is bar
    assert table in trainer.callbacks


def test_no_bar_is_added_where_there_is_none(tmp_path):
    trainer: Any = make_run(tmp_path).trainer
    replace_defaults(trainer, make_run(tmp_path).module, "fit")
    assert trainer.progress_bar_callback is None


@pytest.mark.parametrize(
    ("ranks", "latest", "said"),
    [
        (1, {}, "1,200 env steps"),
        (2, {}, "rank 0 of 2: 1,200 env steps"),  # the warm-up, before they told each other
        (2, {"count/env_steps": 2100.0}, "2 ranks: 2,100 env steps"),
    ],
)
def test_the_bar_says_whose_steps_it_counts(monkeypatch, ranks, latest, said):
    monkeypatch.setattr(module, "dataset_of", lambda trainer: SimpleNamespace(env_steps=1200))
    trainer: Any = SimpleNamespace(world_size=ranks)
    assert RLProgressBar._env_steps(trainer, latest) == said
