"""The diagnosis beside a run: what it says, when, and what it leaves."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.training_runs import make_run, quiet, small_agent, small_data

from lrl import ActorLearnerCallback, ReplayConfig, ReplayDataModule
from lrl.actors.exploration import EpsilonGreedy
from lrl.diagnosis import diagnose, findings
from lrl.diagnosis import watch as watching
from lrl.diagnosis.history import METRICS, Settings
from lrl.diagnosis.watch import RunDiagnosis, settings_of
from lrl.loggers.records import log_metrics
from lrl.schedules import Constant, Linear

pytestmark = quiet


def settled() -> ReplayDataModule:
    """Experience of actors that are done with exploring from the start."""
    return small_data(exploration=EpsilonGreedy(Constant(0.1)))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(findings, "LEAST_LEARNER_STEPS", 10)


def test_a_finding_is_said_once_and_stays_with_the_run(tmp_path, caplog, short):
    agent = small_agent(target_update_period_learner_steps=1000)
    with caplog.at_level(logging.INFO):
        callback = ActorLearnerCallback(5, 20, 0)
        run = make_run(tmp_path, callback, module=agent, data=settled(), max_steps=60).fit()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (warning,) = [text for text in warned if "may not learn" in text]
    # A quarter of 60 learner steps, of which 10 lie between the first and the last logged row.
    assert "(learner step 15, target_still): the target network was not updated once" in warning
    summary = json.loads((run.folder / "summary.json").read_text())
    assert [each["name"] for each in summary["findings"]] == ["target_still"]
    assert summary["findings"][0]["setting"] == "model.target_update_period_learner_steps"
    sentence = summary["findings"][0]["sentence"]
    assert any(f"diagnosis, target_still: {sentence}" in r.getMessage() for r in caplog.records)
    # The file says the same as the run itself.
    config = {"trainer": {"max_steps": 60}}
    assert [f._asdict() for f in diagnose(run.metrics(), config)] == summary["findings"]


def test_a_diagnosis_that_fails_is_reported_once_and_ends_nothing(tmp_path, caplog, monkeypatch):
    def fails(history: Any) -> Any:
        raise ZeroDivisionError("no rows of this kind")

    monkeypatch.setattr(watching, "findings_of", fails)
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0)).fit()
    assert run.trainer.global_step == 20
    assert json.loads((run.folder / "summary.json").read_text())["findings"] == []
    assert caplog.text.count("ZeroDivisionError: no rows of this kind") == 1
    assert "this run is not diagnosed any more" in caplog.text


def test_a_run_that_learns_has_no_finding(tmp_path, caplog, short):
    run = make_run(tmp_path, ActorLearnerCallback(5, 20, 0), data=settled(), max_steps=60).fit()
    assert json.loads((run.folder / "summary.json").read_text())["findings"] == []
    assert "may not learn" not in caplog.text


def test_settings_of_a_run_are_those_of_its_configuration(tmp_path):
    seen = []

    class Looking(RunDiagnosis):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(settings_of(trainer))

    replay = ReplayConfig(capacity=2000, batch_size=8, n_step=3, gamma=0.9)
    callbacks = ActorLearnerCallback(5, 10, 0), Looking()
    make_run(tmp_path, *callbacks, data=small_data(replay=replay)).fit()
    text = """
        trainer: {max_steps: 20}
        model:
          head: {class_path: lrl.networks.ScalarHead}
          bootstrap: {class_path: lrl.learner.MaxBootstrap}
        data: {replay: {batch_size: 8, n_step: 3, gamma: 0.9}, actors: {num_actors: 0}}
    """
    assert seen == [Settings.of_config(yaml.safe_load(text))]


def test_all_rows_count_of_what_is_looked_at(tmp_path: Path):
    diagnosis = RunDiagnosis()
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 0), diagnosis, max_steps=5).fit()
    for step in range(10, 3000):
        log_metrics(run.trainer, {"count/learner_steps": float(step)}, step)
        log_metrics(run.trainer, {"parameter_mean/weight": 0.0}, step)
    history: Any = diagnosis._history
    assert history.series("count/learner_steps") == [5.0, *range(10, 3000)]
    assert set(history._series) == set(METRICS)


def test_of_schedules_what_lets_values_be_largest_counts(tmp_path):
    seen = []

    class Looking(RunDiagnosis):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(settings_of(trainer))

    replay = ReplayConfig(
        capacity=2000, batch_size=8, n_step=Linear(10, 3, 1000), gamma=Linear(0.97, 0.997, 1000)
    )
    make_run(
        tmp_path, ActorLearnerCallback(5, 10, 0), Looking(), data=small_data(replay=replay)
    ).fit()
    assert (seen[0].gamma, seen[0].n_step) == (0.997, 3)
