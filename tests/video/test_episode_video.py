"""Films of a run in TensorBoard."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.filmed_envs import DIARY
from helpers.training_runs import (
    Run,
    environment_for_subprocess,
    make_run,
    quiet,
    small_agent,
    small_data,
)
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lrl import ActorLearnerCallback, ConfigError, EnvConfig, EvaluationConfig
from lrl.callbacks import EpisodeVideo
from lrl.evaluation.episodes import VALIDATION_SEED
from lrl.networks import ImplicitQuantileHead
from lrl.video import film, writers
from lrl.video import tensorboard as video

pytestmark = quiet


def films(folder: Path) -> dict[int, Image.Image]:
    """Films of a run by learner step."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    if "eval/video" not in events.Tags()["images"]:
        return {}
    found = {}
    for image in events.Images("eval/video"):
        found[image.step] = Image.open(io.BytesIO(image.encoded_image_string))
        assert found[image.step].size == (image.width, image.height)
        assert found[image.step].format == "GIF"
    return found


def diary_run(folder: Path, period: int, length: int = 12, **settings: Any) -> Run:
    callback = ActorLearnerCallback(5, 10, 0, video_period_learner_steps=period)
    data = small_data(env=EnvConfig(DIARY, {"length": length}), **settings)
    return make_run(folder, callback, module=small_agent(head=ImplicitQuantileHead), data=data)


def test_a_film_every_so_many_learner_steps(tmp_path):
    run = diary_run(tmp_path, 8).fit()
    found = films(run.folder)
    assert sorted(found) == [8, 16]
    # 25 steps a second are more than a GIF's 20: every second of 12 moments, and the end.
    assert [getattr(image, "n_frames", 1) for image in found.values()] == [7, 7]


def test_the_film_is_of_the_first_evaluation_episode(tmp_path, monkeypatch):
    seeds, cut = [], []

    def film_episode(rendered: Any, policy: Any, seed: int, **settings: Any) -> Any:
        seeds.append((seed, settings["epsilon"]))
        for frame in original(rendered, policy, seed, **settings):
            if frame.ending:
                cut.append((frame.step, frame.ending))
            yield frame

    original = film.film_episode
    monkeypatch.setattr(film, "film_episode", film_episode)
    diary_run(tmp_path / "1", 20, evaluation=EvaluationConfig(2, 4, 0.25)).fit()
    diary_run(tmp_path / "2", 20, evaluation=EvaluationConfig(2, 4, None, 7)).fit()
    monkeypatch.setattr(video, "_SECONDS", 0.2)  # at 25 steps a second
    diary_run(tmp_path / "3", 20).fit()
    assert seeds == [(VALIDATION_SEED, 0.25), (VALIDATION_SEED, 0.0), (VALIDATION_SEED, 0.0)]
    assert cut == [(12, "terminated"), (7, "cut off"), (5, "cut off")]


def test_training_does_not_depend_on_it(tmp_path):
    weights = []
    for period in (0, 3):
        run = diary_run(tmp_path, period).fit()
        weights.append(torch.cat([p.flatten() for p in run.module.online.parameters()]))
        assert (films(run.folder) != {}) == (period > 0)
    assert torch.equal(*weights)


def test_a_run_that_goes_on_does_not_film_the_same_step_again(tmp_path):
    first = diary_run(tmp_path, 10)
    first.trainer.fit_loop.epoch_loop.max_steps = 10
    first.fit()
    second = diary_run(tmp_path, 10)
    second.fit(first.checkpoint("last"))
    assert [sorted(films(run.folder)) for run in (first, second)] == [[10], [20]]


def test_it_works_alone(tmp_path):
    run = make_run(
        tmp_path, EpisodeVideo(10), ActorLearnerCallback(5, 0, 0), data=small_data(DIARY)
    ).fit()
    assert sorted(films(run.folder)) == [10, 20]


def test_a_film_that_fails_is_reported_and_training_goes_on(tmp_path, monkeypatch, caplog):
    def fail(*args: Any) -> None:
        raise OSError("the camera fell down")

    monkeypatch.setattr(writers, "shoot", fail)
    with caplog.at_level(logging.ERROR):
        run = diary_run(tmp_path, 20).fit()
    assert run.trainer.global_step == 20
    assert "no film of step 20; training goes on" in caplog.text
    assert "the camera fell down" in caplog.text
    assert films(run.folder) == {}


def test_films_that_nobody_could_see_are_refused(tmp_path):
    run = diary_run(tmp_path, 5)
    run.trainer.loggers = [CSVLogger(tmp_path)]
    with pytest.raises(
        ConfigError,
        match="video_period_learner_steps is 5, but films go to TensorBoard and the Trainer has "
        "no TensorBoardLogger",
    ):
        run.fit()


def test_an_environment_that_cannot_be_filmed_is_refused(tmp_path):
    callback = ActorLearnerCallback(5, 0, 0, video_period_learner_steps=5)
    run = make_run(tmp_path, callback)
    with pytest.raises(
        ConfigError, match=r"video_period_learner_steps is 5, but env\.id 'lrl/Identity-v0' can"
    ):
        run.fit()


def test_a_negative_period_is_refused():
    with pytest.raises(ConfigError, match=r"video_period_learner_steps must be .*, got -1"):
        EpisodeVideo(-1)


@pytest.mark.slow
def test_runs_without_films_import_none_of_what_films_need():
    # Lightning itself, through torchmetrics and torchvision, may bring a part of PIL.
    code = (
        "import sys, lightning.pytorch.loggers\n"
        "before = set(sys.modules)\n"
        "import lrl.callbacks\n"
        "films = ('PIL', 'tensorboard', *(f'lrl.video.{n}' for n in "
        "('film', 'painter', 'play', 'stage', 'writers')))\n"
        "print(*(name for name in set(sys.modules) - before if name.startswith(films)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=290, env=environment_for_subprocess(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
