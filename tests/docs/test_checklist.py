"""Rows of docs/existing_systems.md that no other test proves."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from helpers.training_runs import (
    AfterEachStep,
    background,
    make_run,
    quiet,
    small_agent,
    small_data,
    spy_on_rows,
)

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    EvaluationConfig,
    InferenceConfig,
    RateLimiterConfig,
    ReplayConfig,
)
from lrl.cli.main import run as run_command
from lrl.envs import AtariConfig
from lrl.replay import PrioritizedSampler
from lrl.transport import Channel, ChunkLayout, ChunkQueue, ChunkWriter, WeightStore
from lrl.transport import chunks as chunks_module
from lrl.types import EnvSpec, RowKind, Rows

pytestmark = [
    *quiet,
    # How Lightning uses jsonargparse.
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs/metrics.md").read_text()


# --- Environment ----------------------------------------------------------------------------


@pytest.mark.atari
def test_red_is_as_grey_as_its_luminance():
    """Against the emulator's own colours: the red bricks of Breakout, (200, 72, 72), become 110."""
    import ale_py
    from ale_py import roms

    from lrl.envs import make_envs

    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(str(roms.get_rom_path("breakout")))
    native = AtariConfig(image_height=210, image_width=160, noop_max=0)
    envs = make_envs(EnvConfig("ALE/Breakout-v5", atari=native), 1, training=True)
    envs.reset([0])
    grey = envs.step([0]).observation[0, -1]
    envs.close()
    for _ in range(4):
        ale.act(0)
    colour = ale.getScreenRGB()
    red = (colour == [200, 72, 72]).all(axis=-1)
    assert red.sum() > 100
    assert set(grey[red].tolist()) == {110}  # 0.299 * 200 + 0.587 * 72 + 0.114 * 72; swapped: 87


@pytest.mark.parametrize("num_actors", [0, 1])
def test_the_reward_clip_of_the_configuration_reaches_the_replay(tmp_path, monkeypatch, num_actors):
    """Ledger pays whole numbers from -8 to 8."""
    received: list[np.ndarray] = []
    spy_on_rows(
        monkeypatch, lambda rows: received.append(rows.reward[rows.kind == RowKind.STEP].copy())
    )
    actors = background(num_actors, 2) if num_actors else ActorConfig(0, 2)
    data = small_data(env=EnvConfig("lrl/Ledger-v0", reward_clip=1.0), actors=actors)
    make_run(tmp_path, ActorLearnerCallback(5, 0, 0), data=data).fit()
    rewards = set(np.concatenate(received).tolist())
    assert {-1.0, 1.0} <= rewards <= {-1.0, 0.0, 1.0}


# --- Transport ------------------------------------------------------------------------------


def test_a_chunk_is_sent_when_it_is_a_quarter_of_a_second_old(monkeypatch):
    now = 100.0
    monkeypatch.setattr(chunks_module, "time", SimpleNamespace(monotonic=lambda: now))
    spec = EnvSpec.box(observation_shape=(1,), observation_dtype="float32", num_actions=2)
    channel = Channel(ChunkLayout(spec, chunk_rows=64, chunks=2), 0, 0)
    queue = ChunkQueue()
    queue.add(channel)
    writer = ChunkWriter(channel.actor_end)
    zeros = np.zeros(1)
    row = Rows(
        stream=zeros.astype(np.int32),
        kind=zeros.astype(np.uint8),
        frame=zeros.astype(np.float32)[:, None],
        action=zeros.astype(np.int32),
        reward=zeros.astype(np.float32),
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        policy_version=zeros.astype(np.int64),
    )
    sent = []
    for seconds in (0.0, 0.2, 0.24, 0.25):
        now = 100.0 + seconds
        writer.put(row)
        sent.append(queue.qsize())
    assert sent == [0, 0, 0, 1]
    with queue.get(0) as chunk:
        assert len(chunk) == 4
    queue.close()
    channel.close()


def test_what_is_published_is_the_online_network_and_no_more(tmp_path, monkeypatch):
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        module=small_agent(target_update_period_learner_steps=1000),
        data=small_data(actors=background(1)),
    )
    published: list[int] = []
    publish = WeightStore.publish

    def flat(network: torch.nn.Module) -> np.ndarray:
        return torch.cat([tensor.flatten() for tensor in network.state_dict().values()]).numpy()

    def spied(self: WeightStore, vector: np.ndarray, version: int) -> None:
        np.testing.assert_array_equal(vector, flat(run.module.online))
        assert version == 0 or (vector != flat(run.module.target)).any()
        published.append(version)
        publish(self, vector, version)

    monkeypatch.setattr(WeightStore, "publish", spied)
    run.fit()
    assert published == [0, 5, 10, 15, 20]


# --- Settings -------------------------------------------------------------------------------


def test_logging_can_be_turned_off(tmp_path):
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 0), log_every_n_steps=0).fit()
    assert run.trainer.global_step == 20
    assert [int(row["step"]) for row in run.metrics()] == [10, 20]  # evaluations
    assert not any("train/loss" in row for row in run.metrics())


def test_replay_settings_reach_the_buffer():
    data = small_data(
        replay=ReplayConfig(capacity=500, batch_size=7, n_step=3, gamma=0.5),
        rate=RateLimiterConfig(samples_per_insert=2.0, warm_up_env_steps=30),
    )
    data.trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    try:
        data.setup("fit")
        assert data.dataset is not None
        replay = data.dataset.replay
        assert (replay.capacity, replay.n_step, replay.gamma) == (500, 3, 0.5)
        assert str(replay.streams.device) == "cpu"
        assert data.dataset.experience.batch_size == 7
    finally:
        data.close()


@pytest.mark.filterwarnings("ignore:You called `self.log:UserWarning")
def test_the_cap_on_evaluation_frames_reaches_the_episodes(tmp_path):
    data = small_data(evaluation=EvaluationConfig(episodes=2, max_frames_per_episode=4))
    run = make_run(tmp_path, data=data, logger=False)
    (metrics,) = run.trainer.validate(run.module, datamodule=data, verbose=False)
    assert metrics["eval/length_mean"] == 4  # an episode has 10 steps


# --- Metrics --------------------------------------------------------------------------------

DOCUMENTED, _, RENAMED = METRICS.partition("## From the names of existing systems")
THEIR_NAMES = [
    "loss", "eval_reward", "samples_total", "samples_per_sec", "opt_steps_per_sec",
    "samples_per_opt_steps", "env_steps", "average_opt_time", "average_sample_time",
    "episode_return", "episode_length", "epsilon", "buffer_size", "queue_size", "weight_lag",
    "grad_norm", "q_mean", "target_mean",
]  # fmt: skip


def documented_metrics() -> set[str]:
    names: set[str] = set()
    for line in DOCUMENTED.splitlines():
        if line.startswith("| `"):
            first, *others = re.findall(r"`([^`]+)`", line.split("|")[1])
            stem = first.rpartition("_")[0]
            names |= {first, *(stem + other for other in others)}
    return names


def test_the_documented_metrics_are_those_that_are_logged(tmp_path):
    data = small_data(
        replay=ReplayConfig(capacity=2000, batch_size=8, sampler=PrioritizedSampler),
        actors=background(1),
        inference=InferenceConfig(num_servers=1),
    )
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 0), data=data).fit()
    logged = {name for row in run.metrics() for name in row} - {"step", "epoch"}
    elsewhere = {"eval/video", "distribution/q", "distribution/td_error"}  # TensorBoard's alone
    elsewhere |= {"count/rows_left_out", "count/calls_lost"}  # without a replay, on a cluster
    assert documented_metrics() == logged | elsewhere


@pytest.mark.parametrize("name", THEIR_NAMES)
def test_every_metric_of_the_existing_systems_has_a_name_here(name):
    rows = [line.split("|") for line in RENAMED.splitlines() if line.startswith("| `")]
    (here,) = (row[2] for row in rows if f"`{name}`" in row[1])
    here = re.findall(r"`([a-z_]+/[a-z_]+)`", here)
    assert here
    assert set(here) <= documented_metrics()


# --- Duration -------------------------------------------------------------------------------


def test_a_run_lasts_as_long_as_it_may(tmp_path):
    times: list[float] = []

    class Watch(AfterEachStep):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            times.append(time.monotonic())

    watch = Watch(lambda trainer, batch: times.append(time.monotonic()))
    run = make_run(
        tmp_path, watch, ActorLearnerCallback(5, 0, 0), max_steps=-1, max_time={"seconds": 2}
    )
    run.fit()
    assert times[-1] - times[0] >= 2.0
    assert times[-3] - times[0] <= 2.1  # the last steps may have been held up


# --- Command line ---------------------------------------------------------------------------

SMALL = """
trainer: {max_steps: 2, log_every_n_steps: 1, enable_progress_bar: false}
data:
  actors: {envs_per_actor: 2}
  replay: {capacity: 2000}
  rate: {samples_per_insert: 64, warm_up_env_steps: 40}
  evaluation: {episodes: 1, max_frames_per_episode: 40}
actor_learner: {eval_period_learner_steps: 2}
"""


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run a command in this process, in a folder."""
    monkeypatch.setattr(sys, "argv", ["lrl", *arguments])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restores it
    return run_command()


ATARI = [pytest.mark.atari, pytest.mark.slow]


@pytest.mark.parametrize(
    ("recipe", "system", "actors", "observation_shape", "num_actions"),
    [
        ("cartpole", "", 2, (4,), 2),
        ("cartpole_sync", "", 0, (4,), 2),
        ("cartpole", "central_inference", 2, (4,), 2),
        pytest.param("pong", "", 1, (4, 84, 84), 6, marks=ATARI),
        pytest.param("pong_sync", "", 0, (4, 84, 84), 6, marks=ATARI),
        pytest.param("pong_sync", "central_inference", 2, (4, 84, 84), 6, marks=ATARI),
        pytest.param("pong_laptop", "", 1, (4, 42, 42), 6, marks=ATARI),
    ],
)
def test_every_recipe_fits(
    tmp_path, monkeypatch, recipe, system, actors, observation_shape, num_actions
):
    (tmp_path / "small.yaml").write_text(SMALL)
    files = [f"{recipe}.yaml", *([f"system/{system}.yaml"] if system else [])]
    configs = [f"--config={ROOT / 'configs' / file}" for file in files]
    assert call(monkeypatch, tmp_path, "fit", *configs, "--config=small.yaml") == 0
    folder = tmp_path / "runs" / recipe / "version_0"
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert kept["data"]["actors"]["num_actors"] == actors
    assert (kept["data"]["inference"] is not None) == bool(system)
    assert kept["trainer"]["max_steps"] == 2
    # The sizes of the network are nowhere in the file.
    spec = DQN.load_from_checkpoint(folder / "checkpoints/best.ckpt").env_spec
    assert spec is not None
    assert (spec.observation_shape, spec.num_actions) == (observation_shape, num_actions)


def test_loggers_are_chosen_in_yaml(tmp_path, monkeypatch):
    loggers = [
        {"class_path": f"lightning.pytorch.loggers.{name}", "init_args": {"save_dir": name}}
        for name in ("TensorBoardLogger", "CSVLogger")
    ]
    settings = yaml.safe_load(SMALL)
    settings["trainer"]["logger"] = loggers
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    configs = (f"--config={ROOT / 'configs/cartpole_sync.yaml'}", "--config=small.yaml")
    assert call(monkeypatch, tmp_path, "fit", *configs) == 0
    assert len(list((tmp_path / "TensorBoardLogger").rglob("events.out.tfevents.*"))) == 1
    assert len(list((tmp_path / "CSVLogger").rglob("metrics.csv"))) == 1


def test_the_printed_configuration_has_every_field_with_its_default(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, tmp_path, "fit", "--print_config")
    assert not ended.value.code
    data = yaml.safe_load(capsys.readouterr().out)["data"]
    sections = {
        "env": EnvConfig,
        "actors": ActorConfig,
        "replay": ReplayConfig,
        "rate": RateLimiterConfig,
        "evaluation": EvaluationConfig,
    }
    for name, section in sections.items():
        assert set(data[name]) == {field.name for field in fields(section)}, name
        default: Any = section()
        for key, value in data[name].items():
            if key not in ("atari", "sampler"):  # the latter is a class, in YAML a class_path
                assert value == getattr(default, key), f"{name}.{key}"
    assert data["env"]["atari"] is None  # CartPole has none of its settings
    with pytest.raises(SystemExit):
        call(monkeypatch, tmp_path, "fit", "--config=recipe:atari", "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["env"]["atari"] == vars(AtariConfig())
