"""With `checkpoint_replay` a run goes on with its replay: no filling again, and no burst."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    once_all_act,
    quiet,
    small_data,
)

from lrl import ActorConfig, ActorLearnerCallback, EnvConfig, RateLimiterConfig, ReplayConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.checkpoints.saved_replay import HashedFile, read_manifest
from lrl.learner.datamodule import dataset_of
from lrl.replay import PrioritizedSampler
from lrl.replay.streams import GAP_FLAGS
from lrl.schedules import Linear

pytestmark = quiet

RATIO, BATCH, MIN_SIZE = 4.0, 8, 400


def fit(
    folder: Path,
    steps: int,
    ckpt_path: Path | None = None,
    *callbacks: L.Callback,
    num_actors: int = 2,
    saves: bool = True,
    **settings: Any,
) -> Run:
    data = {
        "env": EnvConfig(id="CartPole-v1"),
        "actors": background(num_actors, 2) if num_actors else ActorConfig(0, 4),
        "replay": ReplayConfig(2000, BATCH, n_step=3, sampler=PrioritizedSampler),
        "rate": RateLimiterConfig(samples_per_insert=RATIO, warm_up_env_steps=MIN_SIZE),
        "exploration": EpsilonGreedy(Linear(1.0, 0.1, 2000)),
        **settings,
    }
    return make_run(
        folder,
        *callbacks,
        ActorLearnerCallback(5, 0, 40, checkpoint_replay=saves),
        data=small_data(**data),
        max_steps=steps,
        log_every_n_steps=20,
    ).fit(ckpt_path)


def dataset(run: Run) -> Any:
    assert run.data.dataset is not None
    return run.data.dataset


class Watch(AfterEachStep):
    """Notes how far acting and learning were after each step."""

    def __init__(self) -> None:
        super().__init__(self.look)
        self.seen: list[SimpleNamespace] = []

    def look(self, trainer: L.Trainer, batch: Any) -> None:
        data = dataset_of(trainer)
        self.seen.append(SimpleNamespace(env_steps=data.env_steps, **data.limiter.state_dict()))


def without_replay(folder: Path) -> Path:
    """Copy the last checkpoint elsewhere, alone; return it."""
    return Path(shutil.copy(folder / "last.ckpt", folder.parent / "alone.ckpt"))


@pytest.fixture(scope="module", params=[0, 2], ids=["synchronous", "asynchronous"])
def num_actors(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def first(tmp_path_factory, num_actors) -> Run:
    return fit(tmp_path_factory.mktemp("first"), 100, num_actors=num_actors)


def replay_folder(run: Run) -> Path:
    return run.checkpoint("last").parent / "replay" / "rank-0"


def saved_env_steps(checkpoint: Path) -> int:
    loops = torch.load(checkpoint, weights_only=True)["loops"]["fit_loop"]
    return loops["state_dict"]["combined_loader"][0]["replay"]["env_steps_inserted"]


def test_the_last_two_saves_are_complete(first):
    for step in (80, 100):
        manifest = read_manifest(replay_folder(first) / f"manifest-{step}.json")
        assert manifest.learner_step == step
    assert len(list(replay_folder(first).glob("manifest-*"))) == 2
    assert not list(replay_folder(first).glob("*.tmp"))


def test_a_resumed_run_learns_at_once_and_never_above_the_ratio(
    tmp_path, first, num_actors, caplog
):
    caplog.set_level(logging.INFO, "lrl")
    watch = Watch()
    run = fit(tmp_path, 160, first.checkpoint("last"), watch, num_actors=num_actors)
    assert "is restored" in caplog.text
    saved = saved_env_steps(first.checkpoint("last"))
    max_samples_ahead = float(dataset(run).limiter._max_samples_ahead)
    assert len(watch.seen) == 60
    for index, seen in enumerate(watch.seen):
        assert seen.sampled == (101 + index) * BATCH  # counted over both sessions
        assert seen.inserted == seen.env_steps - MIN_SIZE
        assert seen.sampled <= RATIO * seen.inserted  # no burst
        assert seen.sampled >= RATIO * seen.inserted - 2 * max_samples_ahead  # nothing filled again
    assert watch.seen[0].env_steps - saved < MIN_SIZE
    assert dataset(run).env_steps_offset == saved
    rows = run.metrics()
    epsilon, env_steps = (float(rows[0][name]) for name in ("train/epsilon", "count/env_steps"))
    assert epsilon == pytest.approx(1 - 0.9 * env_steps / 2000, abs=1e-3)
    assert epsilon < 0.75
    if num_actors:
        assert dataset(run).pool.manager.env_steps_offset == saved
    assert float(rows[0]["rollout/return_mean"]) > 0


def test_nothing_is_joined_across_the_restart(tmp_path, first, num_actors):
    """New actors begin with gaps; the synchronous mode goes on within its episodes."""
    manifest = read_manifest(replay_folder(first) / "manifest-100.json")
    counts = np.array(manifest.segments[-1].stop)
    last, waits = first.checkpoint("last"), AfterEachStep(once_all_act)
    run = fit(tmp_path, 160, last, waits, num_actors=num_actors)
    streams = dataset(run).replay.streams
    assert (streams.counts > counts).all()
    slots = streams.slots(np.arange(streams.num_streams), counts[:, None]).reshape(-1)
    gaps = (streams.flags(slots) == GAP_FLAGS).tolist()
    assert gaps == [num_actors > 0] * 4


def test_the_checkpoint_before_the_last_has_its_replay_too(tmp_path, first, num_actors):
    previous = first.checkpoint("previous")
    watch = Watch()
    fit(tmp_path, 90, previous, watch, num_actors=num_actors)
    assert watch.seen[0].sampled == 81 * BATCH
    assert watch.seen[0].env_steps - saved_env_steps(previous) < MIN_SIZE


def refilled(watch: Watch, checkpoint: Path) -> bool:
    return watch.seen[0].env_steps - saved_env_steps(checkpoint) >= MIN_SIZE


def test_a_damaged_replay_is_named_and_filled_again(tmp_path, first, num_actors, caplog):
    folder = tmp_path / "copy"
    shutil.copytree(first.checkpoint("last").parent, folder)
    segment = max((folder / "replay" / "rank-0").glob("rows-*"))
    segment.write_bytes(segment.read_bytes()[:-9])
    watch = Watch()
    run = fit(tmp_path, 110, folder / "last.ckpt", watch, num_actors=num_actors)
    assert "is left out, and filled to its minimum again" in caplog.text
    assert f"{segment.name} is damaged: it has" in caplog.text
    assert refilled(watch, folder / "last.ckpt")
    assert run.trainer.global_step == 110
    assert all(seen.sampled <= RATIO * seen.inserted for seen in watch.seen)


def test_a_checkpoint_without_its_replay_says_so(tmp_path, first, num_actors, caplog):
    alone = without_replay(first.checkpoint("last").parent)
    watch = Watch()
    fit(tmp_path, 105, alone, watch, num_actors=num_actors)
    assert "manifest-100.json is missing" in caplog.text
    assert refilled(watch, alone)


def test_a_replay_of_other_settings_is_left_out(tmp_path, first, num_actors, caplog):
    watch = Watch()
    replay = ReplayConfig(1000, BATCH, n_step=3, sampler=PrioritizedSampler)
    fit(tmp_path, 105, first.checkpoint("last"), watch, num_actors=num_actors, replay=replay)
    assert "replay.capacity was 2000 and is 1000" in caplog.text
    assert refilled(watch, first.checkpoint("last"))


def test_without_the_setting_nothing_is_saved_and_resuming_with_it_says_so(tmp_path, caplog):
    run = fit(tmp_path, 20, saves=False, num_actors=0)
    assert not (run.checkpoint("last").parent / "replay").exists()
    assert "replay was saved" not in caplog.text
    fit(tmp_path, 25, run.checkpoint("last"), num_actors=0, saves=False)
    assert "replay was saved" not in caplog.text
    fit(tmp_path, 25, run.checkpoint("last"), num_actors=0)
    assert "no replay was saved with" in caplog.text


@pytest.mark.usefixtures("janitor")
def test_a_full_disk_stops_nothing(tmp_path, monkeypatch, caplog):
    def write(file: HashedFile, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(HashedFile, "write", write)
    run = fit(tmp_path, 90, num_actors=0)
    assert run.trainer.global_step == 90
    assert caplog.text.count("the replay could not be saved in") == 3
    monkeypatch.undo()
    fit(tmp_path, 95, run.checkpoint("last"), num_actors=0)
    assert "manifest-90.json is missing" in caplog.text


@pytest.mark.usefixtures("janitor")
def test_an_interrupted_run_saves_its_replay(tmp_path):
    def interrupt(trainer: L.Trainer, batch: Any) -> None:
        if trainer.global_step == 55:
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        fit(tmp_path, 90, None, AfterEachStep(interrupt), num_actors=0)
    folder = tmp_path / "run" / "version_0" / "checkpoints"
    assert read_manifest(folder / "replay" / "rank-0" / "manifest-55.json").learner_step == 55
    watch = Watch()
    fit(tmp_path, 60, folder / "last.ckpt", watch, num_actors=0)
    assert watch.seen[0].sampled == 56 * BATCH


def test_a_resumed_run_that_ends_before_its_first_batch_keeps_the_replay(tmp_path):
    class Interrupted(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            raise KeyboardInterrupt

    last = fit(tmp_path, 100, num_actors=0).checkpoint("last")
    with pytest.raises(SystemExit):
        fit(tmp_path, 160, last, Interrupted(), num_actors=0)
    watch = Watch()
    last = tmp_path / "run" / "version_1" / "checkpoints" / "last.ckpt"
    fit(tmp_path, 102, last, watch, num_actors=0)
    assert watch.seen[0].sampled == 101 * BATCH


def test_a_checkpoint_that_cannot_be_written_has_no_replay(tmp_path, monkeypatch):
    save = L.Trainer.save_checkpoint

    def no_space(self: L.Trainer, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if self.global_step == 80:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, filepath, *args, **kwargs)

    monkeypatch.setattr(L.Trainer, "save_checkpoint", no_space)
    run = fit(tmp_path, 100, num_actors=0)
    names = {path.name for path in replay_folder(run).glob("manifest-*")}
    assert names == {"manifest-40.json", "manifest-100.json"}
