"""The examples that search for settings: trials that are ended early leave nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers.training_runs import environment_for_subprocess, processes_of, quiet
from helpers.waiting import wait_for

pytestmark = [pytest.mark.slow, *quiet]
EXAMPLES = Path(__file__).parents[2] / "examples"

RAY = """
import json, sys
import ray
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
import tune_ray

class SecondEnds(FIFOScheduler):
    trials = []

    def on_trial_result(self, controller, trial, result):
        if trial not in self.trials:
            self.trials.append(trial)
        is_second = self.trials.index(trial) == 1
        return TrialScheduler.STOP if is_second else TrialScheduler.CONTINUE

if __name__ == "__main__":
    ray.init(include_dashboard=False, num_cpus=2)
    results = tune_ray.search(2, 12, SecondEnds())
    ray.shutdown()
    reported = sorted(result.metrics["training_iteration"] for result in results)
    print("seen", json.dumps([len(results.errors), *reported]))
"""


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trial_of_optuna_that_is_pruned_stops_its_actors(tmp_path, monkeypatch, janitor):
    import optuna

    class SecondEnds(optuna.pruners.BasePruner):
        def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
            return trial.number == 1

    monkeypatch.chdir(tmp_path)
    study = example("tune_optuna").search(2, 12, SecondEnds())
    first, second = study.trials
    assert (first.state.name, second.state.name) == ("COMPLETE", "PRUNED")
    assert first.params == {"lr": 1e-3, "n_step": 5}  # lrl's defaults
    assert len(first.intermediate_values) == 6
    assert len(second.intermediate_values) == 1
    summaries = sorted(Path("runs/tune_optuna").glob("version_*/summary.json"))
    outcomes = [json.loads(path.read_text())["outcome"] for path in summaries]
    assert outcomes == ["finished", "ended by TrialPruned"]


def test_a_trial_of_ray_that_is_stopped_leaves_no_process(tmp_path):
    (tmp_path / "script.py").write_text(RAY)
    environment = environment_for_subprocess() | {"TUNED_IN": str(tmp_path)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment["PYTHONPATH"] += f":{EXAMPLES}"
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        assert json.loads(out.rpartition("seen ")[2]) == [0, 1, 6]
        mark = f"TUNED_IN={tmp_path}"
        wait_for(lambda: processes_of(mark) == [], "the end of all processes", 30.0)
    finally:
        process.kill()
        for left in processes_of(f"TUNED_IN={tmp_path}"):
            os.kill(left, signal.SIGKILL)
