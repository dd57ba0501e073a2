"""docs/diagnosis.md has what was found on the runs that were made, and a script that works."""

from __future__ import annotations

import csv
import json
import re

import yaml
from helpers.named_tests import ROOT

from benchmark.diagnosis import FAILING, GOOD, is_as_it_should, written
from lrl.diagnosis.signs import SIGNS

TEXT = (ROOT / "docs/diagnosis.md").read_text()
RESULTS = json.loads((ROOT / "docs/diagnosis.json").read_text())


def test_the_tables_are_those_of_the_runs():
    assert written(TEXT, RESULTS) == TEXT


def test_failing_runs_were_named_and_good_ones_were_not():
    names = [result["run"] for result in RESULTS]
    assert names[: len(FAILING)] == [trial.name for trial in FAILING]
    good = [trial.name for trial in GOOD]
    assert names[len(FAILING) :] == [name for name in good if name in names] != []
    assert [result["run"] for result in RESULTS if not is_as_it_should(result)] == []


def test_a_run_counts_as_it_should():
    good = {"named_by": [], "bar": -8.16, "best_return_mean": -8.0, "findings": []}
    assert is_as_it_should(good)
    assert not is_as_it_should(good | {"best_return_mean": -9.0})
    assert not is_as_it_should(good | {"findings": [{"name": "dead_units"}]})
    named = good | {"named_by": ["dead_units"]}
    assert not is_as_it_should(named)
    assert is_as_it_should(named | {"findings": [{"name": "dead_units"}]})


def test_every_finding_that_a_failing_run_waits_for_exists():
    names = {sign.find.__name__ for sign in SIGNS}
    assert {name for trial in FAILING for name in trial.named} <= names


def test_the_script_says_what_is_found(tmp_path, monkeypatch, capsys):
    (script,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    run = tmp_path / "runs/cartpole/version_0"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({"trainer": {"max_steps": 2000}}))
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "count/learner_steps", "train/target_updates"])
        writer.writerows([[step, step, 0] for step in range(100, 2001, 100)])
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    assert capsys.readouterr().out.startswith("target_still the target network was not updated")
