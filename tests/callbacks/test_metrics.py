"""What a run writes of itself: metrics at their steps, the configuration, the summary."""

from __future__ import annotations

import errno
import functools
import json
import logging
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import (
    background,
    environment_for_subprocess,
    make_run,
    quiet,
    small_data,
)
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from lrl import DQN, ActorLearnerCallback, EnvConfig, ReplayConfig
from lrl.actors.handle import ActorStatistics
from lrl.callbacks.metrics import of_all_ranks
from lrl.callbacks.summary import actor_table, totals
from lrl.replay import PrioritizedSampler
from lrl.schedules import Linear
from lrl.video.tensorboard import EpisodeVideo

pytestmark = quiet

TRAINING = {
    "train/loss", "train/td_error_mean", "train/q_mean", "train/target_mean", "train/grad_norm",
    "train/epsilon", "train/lr",
    "train/target_minus_q_mean", "train/reward_mean", "train/greedy_fraction",
    "train/reward_abs_max", "train/distinct_rows", "train/dead_units", "train/target_updates",
    "rollout/return_mean", "rollout/length_mean", "rollout/start_value_mean", "rollout/episodes",
    "count/env_steps", "count/frames", "count/learner_steps", "count/rows_received",
    "count/rows_dropped", "count/actor_restarts",
    "speed/env_steps_per_second", "speed/learner_steps_per_second", "speed/samples_per_insert",
    "speed/learner_wait_fraction", "speed/actor_wait_fraction", "speed/optimise_ms",
    "speed/sample_ms",
    "replay/size", "sync/policy_version", "sync/policy_lag_mean", "transport/queue_fill",
}  # fmt: skip
EVALUATION = {
    f"eval/{name}"
    for name in (
        "return_mean", "return_std", "return_min", "return_max", "length_mean", "episodes",
        "timeouts",
    )
}  # fmt: skip


class Deaf(Logger):
    """A logger that takes nothing."""

    asked = 0

    @property
    def name(self) -> str:
        return "deaf"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        Deaf.asked += 1
        raise ConnectionError("the server does not answer")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the server does not answer")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(
        tmp_path_factory.mktemp("metrics"),
        ActorLearnerCallback(4, 10, 0),
        data=small_data(
            replay=ReplayConfig(capacity=40, batch_size=8, n_step=1),
            env=EnvConfig(id="lrl/Identity-v0", kwargs={"length": 5}),
        ),
        max_steps=30,
        log_every_n_steps=6,
    ).fit()


@pytest.fixture(scope="module")
def rows(run):
    return run.metrics()


def test_every_documented_metric_is_there_at_its_learner_step(rows):
    training = [row for row in rows if "train/loss" in row]
    assert [int(row["step"]) for row in training] == [6, 12, 18, 24, 30]
    for row in training:
        assert set(row) - {"step", "epoch"} == TRAINING
        assert row["step"] == str(int(float(row["count/learner_steps"])))
        assert all(math.isfinite(float(value)) for value in row.values())


def test_evaluations_are_logged_at_the_step_they_belong_to(rows):
    evaluations = [row for row in rows if "eval/return_mean" in row]
    assert [int(row["step"]) for row in evaluations] == [10, 20, 30]
    for row in evaluations:
        assert set(row) - {"step", "epoch"} == EVALUATION
        assert float(row["eval/episodes"]) == 2
        assert float(row["eval/length_mean"]) == 5
        low, high = float(row["eval/return_min"]), float(row["eval/return_max"])
        assert 0 <= low <= float(row["eval/return_mean"]) == (low + high) / 2
        assert float(row["eval/return_std"]) == pytest.approx((high - low) / 2)


def test_no_row_is_lost_where_two_fall_on_one_step(rows):
    assert [int(row["step"]) for row in rows] == [6, 10, 12, 18, 20, 24, 30, 30]


def test_tensorboard_holds_the_same(run, rows):
    events = EventAccumulator(str(run.folder), size_guidance={"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) == TRAINING | EVALUATION
    for name in ("train/loss", "eval/return_mean", "count/env_steps"):
        logged = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(int(row["step"]), float(row[name])) for row in rows if name in row]
        assert logged == [(step, pytest.approx(value)) for step, value in expected]


def test_counts_and_averages_are_consistent(run, rows):
    """8 samples a batch at 4 samples per environment step: 2 steps a batch, after 20 to warm up."""
    for row in rows:
        if "train/loss" in row:
            value = {name: float(text) for name, text in row.items()}
            step = int(row["step"])
            assert value["count/env_steps"] == value["count/frames"] == 20 + 2 * step
            assert value["speed/samples_per_insert"] == 4.0
            boundaries = value["count/rows_received"] - value["count/env_steps"]
            assert value["rollout/episodes"] - 2 <= boundaries <= value["rollout/episodes"]
            assert value["rollout/episodes"] == 2 * (int(value["count/env_steps"] / 2) // 5)
            assert value["rollout/length_mean"] == 5
            assert value["train/target_minus_q_mean"] == pytest.approx(
                value["train/target_mean"] - value["train/q_mean"], abs=1e-5
            )
            assert 0 <= value["train/reward_mean"] <= 1
            assert (8 * value["train/greedy_fraction"]).is_integer()
            assert value["replay/size"] <= 40
            assert value["sync/policy_version"] == step  # acting takes the network itself
            assert value["train/lr"] == 1e-3
            assert value["train/epsilon"] == pytest.approx(
                1 - 0.98 * value["count/env_steps"] / 50_000
            )
            assert 0 <= value["speed/learner_wait_fraction"] < 1
            assert value["count/rows_dropped"] == value["count/actor_restarts"] == 0


def test_prioritised_sampling_logs_beta_and_the_highest_priority(tmp_path):
    sampler = functools.partial(PrioritizedSampler, beta=Linear(0.5, 1.0, 20))
    run = make_run(
        tmp_path,
        ActorLearnerCallback(4, 0, 0),
        data=small_data(replay=ReplayConfig(capacity=100, batch_size=8, sampler=sampler)),
        max_steps=30,
        log_every_n_steps=10,
    ).fit()
    rows = run.metrics()
    assert all(
        set(row) - {"step", "epoch"} == TRAINING | {"replay/priority_max", "replay/beta"}
        for row in rows
    )
    assert [float(row["replay/beta"]) for row in rows] == [0.75, 1.0, 1.0]
    assert run.data.dataset is not None
    drawn: Any = run.data.dataset.replay._sampler
    weights = drawn._tree.get(drawn._tree.positive()).tolist()
    assert float(rows[-1]["replay/priority_max"]) >= max(weights) ** 2 - 1e-5
    assert len(set(weights)) > 20  # what the learner sent arrived


def test_summary_of_a_finished_run(run):
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["outcome"] == "finished"
    assert summary["learner_steps"] == 30
    assert summary["env_steps"] == summary["frames"] == 80
    assert summary["samples_per_insert"] == 4.0
    assert summary["learner_steps_per_second"] == pytest.approx(30 / summary["seconds"])
    assert summary["env_steps_per_second"] == pytest.approx(80 / summary["seconds"])
    assert summary["best_return_mean"] == run.callback.best_model_score
    assert summary["best_model_path"] == str(run.checkpoint("best"))
    (actor,) = summary["actors"]
    assert (actor["actor"], actor["env_steps"], actor["episodes"]) == (0, 80, 16)
    assert actor["episodes"] == summary["episodes"]
    stamp = summary["stamp"]
    assert stamp["environment"]["id"] == "lrl/Identity-v0"
    assert stamp["training"] == {
        "seed": 0, **{name: summary[name] for name in ("learner_steps", "env_steps", "frames")}
    }  # fmt: skip
    assert stamp["versions"]["torch"] == torch.__version__
    assert stamp["hardware"]["torch_threads"] >= 1
    assert stamp["hardware"]["torch_threads"] == run.data.learner_threads


def test_the_rates_of_a_resumed_run_are_those_of_its_session(tmp_path):
    first = make_run(tmp_path, ActorLearnerCallback(4, 0, 0), max_steps=10).fit()
    second = make_run(tmp_path, ActorLearnerCallback(4, 0, 0), max_steps=25)
    second.fit(first.checkpoint("last"))
    summary = json.loads((second.folder / "summary.json").read_text())
    assert (summary["learner_steps"], summary["env_steps"]) == (25, 40 + 20 + 30)
    assert summary["learner_steps_per_second"] == pytest.approx(15 / summary["seconds"])
    assert summary["env_steps_per_second"] == pytest.approx(50 / summary["seconds"])


def test_the_end_of_a_run_says_what_each_actor_did_and_the_totals(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run = make_run(
            tmp_path, ActorLearnerCallback(5, 0, 0), data=small_data(actors=background(2))
        ).fit()
    summary = json.loads((run.folder / "summary.json").read_text())
    (message,) = (text for text in caplog.messages if text.startswith("actor "))
    header, first, second, total, verdict = message.splitlines()
    assert header.split()[:3] == ["actor", "env_steps", "env_steps/s"]
    assert [line.split()[0] for line in (first, second)] == ["0", "1"]
    made = [int(line.split()[1]) for line in (first, second)]
    assert sum(made) == summary["env_steps"] > 0
    assert total == (
        f"total: {summary['env_steps']} env steps ({summary['env_steps_per_second']:,.0f}/s), "
        f"20 learner steps ({summary['learner_steps_per_second']:,.1f}/s), "
        f"{summary['episodes']} episodes, {summary['seconds']:.1f} s"
    )
    assert verdict == summary["verdict"]


SCRIPT = """
import lightning as L
from lrl import DQN, ActorConfig, ActorLearnerCallback, RateLimiterConfig, ReplayDataModule

data = ReplayDataModule(actors=ActorConfig(0), rate=RateLimiterConfig(warm_up_env_steps=50))
callback = ActorLearnerCallback(eval_period_learner_steps=0)
trainer = L.Trainer(max_steps=5, accelerator="cpu", callbacks=[callback], logger=False)
trainer.fit(DQN(), datamodule=data)
"""


@pytest.mark.slow
def test_a_script_that_configures_no_logging_shows_them_too(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path, env=environment_for_subprocess(), capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout + ended.stderr
    assert said.count("actor   env_steps  env_steps/s   seconds  waiting  restarts") == 1
    assert re.search(r"^total: [\d,]+ env steps .* 5 learner steps ", said, flags=re.MULTILINE)


def test_the_table_of_actors_shows_every_actor():
    table = actor_table(
        [[ActorStatistics(0, 500, 2000, 7, 10.0, 2.5, 0), ActorStatistics(1, 0, 0, 0, 0.0, 0.0, 3)]]
    )
    header, first, second = (line.split() for line in table.splitlines())
    assert header == ["actor", "env_steps", "env_steps/s", "seconds", "waiting", "restarts"]
    assert first == ["0", "500", "50", "10.0", "25%", "0"]
    assert second == ["1", "0", "0", "0.0", "0%", "3"]


def test_the_table_of_actors_names_nodes_where_there_are_any():
    here = ActorStatistics(0, 500, 2000, 7, 10.0, 2.5, 0)
    there = replace(here, actor=1, node="host 5f1e")
    lines = actor_table([[here, there]]).splitlines()
    assert lines[0].endswith("restarts  node")
    assert lines[1].endswith("0")
    assert lines[2].endswith("0  host 5f1e")


def test_the_table_of_actors_says_of_which_of_several_ranks_they_are():
    actor = ActorStatistics(0, 500, 2000, 7, 10.0, 2.5, 0)
    header, *lines = actor_table([[actor], [actor]]).splitlines()
    assert header.split()[:2] == ["rank", "actor"]
    assert [line.split()[:3] for line in lines] == [["0", "0", "500"], ["1", "0", "500"]]
    assert actor_table([[], []]) == ""


def test_totals_say_of_how_many_ranks_they_are():
    figures = {"env_steps": 80_000, "learner_steps": 3500, "episodes": 400, "seconds": 20.0}
    figures |= {"env_steps_per_second": 4000.0, "learner_steps_per_second": 175.0, "ranks": 2}
    assert totals(figures | {"ranks_counted": 2}).startswith("total of 2 ranks: 80,000 env steps")
    said = totals(figures | {"ranks_counted": 1})
    assert "2 times that of rank 0, since the others could not be asked" in said


def test_a_row_of_several_ranks_has_sums_of_counts_and_means_of_all_else():
    first = {
        "count/env_steps": 100.0, "count/frames": 400.0, "count/learner_steps": 7.0,
        "rollout/episodes": 3.0, "speed/env_steps_per_second": 50.0, "train/loss": 1.0,
        "replay/priority_max": 2.0, "rollout/return_mean": 9.0,
    }  # fmt: skip
    second = {**first, "count/env_steps": 60.0, "train/loss": 2.0, "replay/priority_max": 5.0}
    del second["rollout/return_mean"]  # no episode has ended there
    assert of_all_ranks([first, second]) == {
        "count/env_steps": 160.0, "count/frames": 800.0, "count/learner_steps": 7.0,
        "rollout/episodes": 6.0, "speed/env_steps_per_second": 100.0, "train/loss": 1.5,
        "replay/priority_max": 5.0, "rollout/return_mean": 9.0,
    }  # fmt: skip


@pytest.mark.parametrize(("pause", "asked"), [(0.0, 6), (60.0, 1)])
def test_a_logger_that_fails_does_not_end_training(tmp_path, caplog, monkeypatch, pause, asked):
    monkeypatch.setattr("lrl.loggers.records._PAUSE_SECONDS", pause)
    Deaf.asked = 0
    loggers = [Deaf(), CSVLogger(tmp_path, "run", "version_0")]
    run = make_run(
        tmp_path, ActorLearnerCallback(4, 10, 0), logger=loggers, default_root_dir=tmp_path
    ).fit()
    assert run.trainer.global_step == 20
    assert Deaf.asked == asked  # at 5, 10, 15, 20 and for two evaluations
    assert "Deaf could not log" in caplog.text
    assert "the server does not answer" in caplog.text
    with (tmp_path / "run/version_0/metrics.csv").open() as file:
        assert len(file.readlines()) == 1 + 6


class Ending(TensorBoardLogger):
    def finalize(self, status: str) -> None:
        super().finalize(status)
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_disk_that_was_full_for_a_moment_ends_neither_a_run_nor_its_curves(
    tmp_path, caplog, monkeypatch
):
    """TensorBoard's writer would raise its first error for ever, and at the end of the run too."""
    monkeypatch.setattr("lrl.loggers.records._PAUSE_SECONDS", 0.0)
    logger = Ending(tmp_path, "run", "version_0")
    writers = []
    write = SummaryWriter.add_scalar

    def add_scalar(self: SummaryWriter, *arguments: Any, **more: Any) -> None:
        if self not in writers:
            writers.append(self)
        if self is writers[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, *arguments, **more)

    monkeypatch.setattr(SummaryWriter, "add_scalar", add_scalar)
    run = make_run(
        tmp_path, ActorLearnerCallback(4, 0, 0), logger=logger, default_root_dir=tmp_path
    ).fit()
    assert run.trainer.global_step == 20
    assert len(writers) > 1
    assert "Ending could not log: OSError: [Errno 28] No space left on device" in caplog.text
    assert "Ending could not log: OSError: [Errno 30] Read-only file system" in caplog.text
    assert "Traceback" not in caplog.text


class Reading(DQN):
    """Reads what a killed run would leave behind at this step."""

    seen: tuple[str, ...] = ()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 12:
            file = Path(self.trainer.log_dir or "") / "metrics.csv"
            self.seen = tuple(file.read_text().splitlines())
        return super().training_step(batch, batch_idx)


def test_metrics_are_on_disk_as_soon_as_they_are_logged(tmp_path):
    module = Reading()
    make_run(tmp_path, module=module, max_steps=13).fit()
    header, *rows = (line.split(",") for line in module.seen)
    assert [row[header.index("step")] for row in rows] == ["5", "10", "10"]


def test_without_a_logger_nothing_is_written_but_checkpoints_and_the_summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, logger=False).fit()
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    checkpoints = {f"checkpoints/{name}.ckpt" for name in ("best", "last", "previous")}
    assert files == checkpoints | {"summary.json"}


def test_accumulated_counts_are_exact_above_float32(tmp_path):
    """16 777 217 environment steps are not 16 777 216."""
    run = make_run(tmp_path, ActorLearnerCallback(4, 0, 0), max_steps=5)
    offset = 2**24

    class Offset(L.Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
            assert run.data.dataset is not None
            run.data.dataset.replay.env_steps = offset

    run.trainer.callbacks.insert(0, Offset())  # pyright: ignore[reportAttributeAccessIssue]
    run.fit()
    (row,) = run.metrics()
    assert float(row["count/env_steps"]) == offset + 30


class Clock:
    """Stands in for the module `time`: a millisecond passes between two looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowEvaluation(L.Callback):
    """Every evaluation takes so much longer."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.clock.now += self.seconds


@pytest.mark.parametrize("what", ["evaluation", "film"])
def test_what_stops_training_is_in_no_speed(tmp_path, monkeypatch, what):
    def speeds(seconds: float) -> list[dict[str, float]]:
        clock = Clock()
        for module in ("callbacks.metrics", "video.tensorboard", "learner.dataset"):
            monkeypatch.setattr(f"lrl.{module}.time", clock)

        def film(self: EpisodeVideo, *_: Any) -> None:
            clock.now += seconds

        monkeypatch.setattr(EpisodeVideo, "_film", film)
        run = make_run(
            tmp_path,
            SlowEvaluation(clock, seconds if what == "evaluation" else 0.0),
            ActorLearnerCallback(5, 10, 0, video_period_learner_steps=10 if what == "film" else 0),
            data=small_data("CartPole-v1"),
        ).fit()
        throughput = run.callback.throughput
        paused = {"evaluation": throughput.evaluate_seconds, "film": run.callback.video.seconds}
        assert paused[what] == pytest.approx(2 * seconds, abs=0.1)
        return [
            {name: float(value) for name, value in row.items() if name.startswith("speed/")}
            for row in run.metrics()
            if "train/loss" in row
        ]

    quick, slow = speeds(0.0), speeds(2.0)
    assert len(quick) == 4
    assert all(row["speed/learner_wait_fraction"] > 0.1 for row in quick)
    assert slow == [pytest.approx(row, rel=1e-6) for row in quick]
