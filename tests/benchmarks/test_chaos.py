"""The attacks of `make chaos`, small: what they count, and that what they count is right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmark.chaos import (
    actors,
    busy,
    figures,
    helpers,
    limits,
    outputs,
    scenarios,
    signals,
    soak,
    startup,
)
from benchmark.chaos.figures import Figure, block, keep, read, table
from benchmark.chaos.run import CHUNK_ROWS, train_under_attack
from benchmark.chaos.transport import kill_in_transport

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
quiet = pytest.mark.filterwarnings(
    "ignore:GPU available", "ignore:.*LeafSpec.*:FutureWarning", "ignore:The number of training"
)
ROOT = Path(__file__).parents[2]
SMALL = scenarios.Sizes(count=5, seconds=4.0, every=1.0, timeout=10.0, actors=2)
FIGURE = Figure("a", "b", "c", met=True)


# --- the attacks ----------------------------------------------------------------------------


@quiet
@linux
def test_every_row_of_a_run_whose_actors_are_killed_is_there_once(janitor, tmp_path):
    counts = train_under_attack(tmp_path, 1.0, every=0.3, attacks=2, actors=2)
    assert counts["attacks"] == counts["restarts"] == 2
    assert counts["produced"] == counts["received"] + counts["lost"]
    assert counts["rows"] == counts["stored"] == counts["received"] > 200
    assert counts["lost_at_most"] <= CHUNK_ROWS
    for fault in ("corrupt", "duplicated", "missing", "dropped_chunks"):
        assert counts[fault] == 0
    assert counts["overlooked"] == 0
    assert counts["transitions"] > 0
    assert 0 < counts["back_seconds_median"] <= counts["back_seconds_max"]


@linux
def test_kills_inside_the_transport_stall_nobody(janitor, tmp_path):
    counts = kill_in_transport(3, tmp_path)
    assert counts["kills"] == 3
    assert counts["rows"] == counts["received"] > 0
    assert counts["lost_chunks"] <= 1
    for fault in ("stalls", "corrupt", "duplicated", "missing", "dropped_chunks"):
        assert counts[fault] == 0


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", ["kills", "stops", "transport", "messages", "damages", "limits"]
)
def test_a_small_scenario_meets_what_is_demanded(monkeypatch, tmp_path, scenario):
    attacked = actors._attacked
    in_no_time = {"back_seconds_max": 0.0}  # how long it takes is for an idle machine to say
    monkeypatch.setattr(actors, "_attacked", lambda *args: {**attacked(*args), **in_no_time})
    if scenario == "limits" and not limits.can_mount():
        pytest.skip("no disk can be mounted here: `unshare -m` or `unshare -rm` is not permitted")
    run, _ = scenarios.SCENARIOS[scenario]
    figures = list(run(SMALL, tmp_path))
    assert figures
    assert [figure for figure in figures if not figure.met] == []


@linux
@pytest.mark.slow
def test_writers_that_are_killed_leave_a_whole_checkpoint():
    """In a process of its own: a fork server that runs already would import torch for each."""
    # Of a few writers none may be killed in the middle of a file.
    scenario = ("-m", "benchmark.chaos", "--scenario", "saves", "--count", "20")
    ended = subprocess.run([sys.executable, *scenario], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("| yes |") == 1


@linux
@pytest.mark.slow
def test_a_small_soak_is_measured(tmp_path):
    figures = list(scenarios.long_soak(replace(SMALL, seconds=18.0, every=2.0), tmp_path))
    assert len(figures) == 4
    assert figures[0].met  # memory and pace of so short a run say nothing


@linux
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "target"),
    [(signal.SIGTERM, "learner"), (signal.SIGKILL, "group")],
)
def test_runs_ended_in_every_phase_leave_nothing_but_a_checkpoint(number, target):
    ended = signals.end_runs(number, target, len(signals.PHASES))
    assert ended.runs == 5
    assert ended.left == []
    assert ended.wrong == []
    assert ended.checkpoints >= (2 if number == signal.SIGKILL else 3)
    gone_on = ended.resumed + ended.refilled
    assert gone_on == (ended.checkpoints if number == signal.SIGKILL else 0)
    assert ended.seconds < 30.0  # an idle machine takes 5


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "count", "replaced"),
    [
        (signal.SIGINT, 130, 4, 2),
        (signal.SIGKILL, -9, 2, 0),  # at their start only
    ],
)
def test_runs_whose_helpers_are_stopped_go_on_and_leave_nothing(
    tmp_path, number, code, count, replaced
):
    stopped = helpers.stop_helpers(count, tmp_path, number, code)
    assert stopped.wrong == []
    assert (stopped.runs, stopped.replaced) == (count, replaced)
    assert stopped.seconds < 30.0  # an idle machine takes 5


@linux
@pytest.mark.slow
def test_a_run_in_the_idle_class_is_judged_by_its_summary(monkeypatch, tmp_path):
    at_ease = (
        "import os, sys; os.setpgid(0, 0); os.execv(sys.executable, ['python', *sys.argv[1:]])"
    )
    monkeypatch.setattr(busy, "_IN_IDLE_CLASS", at_ease)  # else it may take all day
    run = busy.run_in_idle_class(tmp_path / "run", 60.0)
    assert run.good, run
    assert 0.0 < run.first_step_seconds < float("inf")
    assert busy.figure_of([run], 1.0, 60.0).met
    hung = replace(run, said="actor 0 (pid 7) made no progress for 5 s; restart 1 in 0.1 s")
    without_steps = replace(run, learner_steps=0, first_step_seconds=float("inf"))
    for bad in (hung, without_steps, replace(run, code=1)):
        figure = busy.figure_of([run, bad], 1.0, 60.0)
        assert not figure.met
        assert figure.measured.startswith("1 of 2, ")


@linux
@pytest.mark.slow
def test_a_ring_larger_than_the_memory_is_refused_with_its_bytes(tmp_path):
    result = limits.with_too_little_memory(tmp_path)
    assert result["code"] == 2, result
    assert len(result["names"]) == 2
    assert "chunk_rows" in result["said"]


@linux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_does_not_depend_on_its_output(tmp_path):
    names = ("a pipe that is closed, then Ctrl-C", "a terminal that is closed", "/dev/full")
    told = outputs.lose_outputs(tmp_path, names)
    assert told.runs == 3
    assert told.wrong == []


@linux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_that_are_ended_while_they_start_leave_nothing(tmp_path):
    startup.save_checkpoint(tmp_path)
    fit = ("fit", "--config", "config.yaml")
    evaluate = ("evaluate", "--ckpt_path", "last")
    for arguments, number in (
        (fit, signal.SIGINT), (fit, signal.SIGTERM), (evaluate, signal.SIGHUP),
    ):  # fmt: skip
        ended = startup.end_starts(tmp_path, arguments, number, 4)
        assert ended.runs == 4
        assert ended.wrong == []


# --- what is made of the counts -------------------------------------------------------------

COUNTS = {
    "attacks": 3, "restarts": 3, "received": 1000, "stored": 1000, "rows": 1000, "produced": 1010,
    "lost": 10, "lost_at_most": 6, "dropped_chunks": 0, "planned": 3, "corrupt": 0,
    "duplicated": 0, "missing": 0, "overlooked": 0, "back_seconds_median": 0.2,
    "back_seconds_max": 0.3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"corrupt": 1}, False),
        ({"duplicated": 1}, False),
        ({"missing": 1}, False),
        ({"dropped_chunks": 1}, False),
        ({"planned": 4}, False),
        ({"planned": 0, "attacks": 0}, False),
        ({"restarts": 2}, False),
        ({"overlooked": 1}, False),
        ({"stored": 999}, False),
        ({"lost": 11}, False),
        ({"lost_at_most": CHUNK_ROWS + 1}, False),
        ({"back_seconds_max": 0.6}, False),
    ],
)
def test_a_figure_is_met_only_if_all_of_it_holds(monkeypatch, tmp_path, change, met):
    monkeypatch.setattr(actors, "_attacked", lambda *arguments: {**COUNTS, **change})
    forkserver, spawn = scenarios.kills(scenarios.Sizes(), tmp_path)
    assert forkserver.met == met
    assert spawn.met == (met or "back_seconds_max" in change)
    assert "10 lost, at most 6 by one attack" in forkserver.measured or "lost" in str(change)


def samples_of(learner: list[float], **more: float) -> list[soak.Sample]:
    first = soak.Sample(0.0, 0, 0, 4, 30, 5, 1.0)
    return [
        replace(first, time=10.0 * i, learner_bytes=int(size * 2**20), **more)
        for i, size in enumerate(learner)
    ]


def test_a_slope_is_that_of_memory_after_the_warm_up():
    samples = samples_of([*np.linspace(0, 300, 30), *np.linspace(300, 310, 91)])
    steps = np.stack([np.arange(0, 1201, 10), np.arange(0, 1201, 10) * 7], axis=1)
    result = soak.evaluate_samples(samples, steps)
    assert result["learner_slope"] == pytest.approx(10 / 15, rel=0.01)
    assert result["throughput"] == result["calibrated"] == 1.0


def test_throughput_is_divided_by_what_the_machine_could_do_meanwhile():
    samples = samples_of([1.0] * 121)
    samples = [replace(s, calibration=2.0 if s.time < 600 else 1.0) for s in samples]
    times = np.arange(0.0, 1201.0, 10.0)
    steps = np.stack([times, np.minimum(times, 600) * 10 + np.maximum(times - 600, 0) * 5], axis=1)
    result = soak.evaluate_samples(samples, steps)
    assert result["throughput"] == pytest.approx(0.5)
    assert result["calibrated"] == pytest.approx(1.0)


def test_what_stays_open_is_seen():
    samples = [replace(s, descriptors=30 + i // 5) for i, s in enumerate(samples_of([1.0] * 100))]
    steps = np.stack([np.arange(0, 1000, 10), np.arange(0, 1000, 10)], axis=1)
    first, last = soak.evaluate_samples(samples, steps)["descriptors"]
    assert last > first + 5


# --- where figures go -----------------------------------------------------------------------


def test_a_table_says_what_is_met():
    lines = table([FIGURE, replace(FIGURE, attack="d", met=False)]).splitlines()
    assert lines[2:] == ["| a | b | c | yes |", "| d | b | c | **no** |"]


def test_new_figures_replace_those_of_their_scenario_in_file_and_page(tmp_path):
    path, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("before\n<!-- figures: make chaos -->\nold\n<!-- end of figures -->\nafter\n")
    order = ["kills", "soak", "stops"]
    keep("stops", [replace(FIGURE, attack="longest")], order, path, page)
    keep("soak", [replace(FIGURE, attack="long")], order, path, page)
    keep("kills", [FIGURE, replace(FIGURE, attack="second")], order, path, page)
    keep("kills", [replace(FIGURE, attack="new")], order, path, page)
    assert [line["attack"] for line in read(path)["figures"]] == ["new", "long", "longest"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert block(read(path)) in text
    assert "old" not in text
    assert "second" not in text


def test_a_scenario_that_fails_is_a_figure_and_the_next_one_runs(monkeypatch, tmp_path):
    def broken(sizes: scenarios.Sizes, folder: Path):
        yield FIGURE
        raise RuntimeError("no such thing\nand more")

    def whole(sizes: scenarios.Sizes, folder: Path):
        yield FIGURE

    both = {"kills": (broken, scenarios.Sizes()), "soak": (whole, scenarios.Sizes())}
    monkeypatch.setattr(scenarios, "SCENARIOS", both)
    path = tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="1"):
        scenarios.main(["--json", str(path)])
    kept = [(line["scenario"], line["met"]) for line in read(path)["figures"]]
    assert kept == [("kills", True), ("kills", False), ("soak", True)]
    assert read(path)["figures"][1]["measured"] == "RuntimeError: no such thing"


def test_figures_of_two_machines_are_told_apart(monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    for scenario, machine in (("kills", "one"), ("soak", "two"), ("stops", "one")):
        monkeypatch.setattr(figures, "_machine", lambda machine=machine: machine)
        keep(scenario, [replace(FIGURE, attack=scenario)], ["kills", "soak", "stops"], path)
    one, two = block(read(path)).split("two.")
    assert one.startswith("one.")
    assert [name in one for name in ("kills", "soak", "stops")] == [True, False, True]
    assert "soak" in two


def test_the_command_runs_what_it_is_told_and_fails_if_a_figure_does(monkeypatch, tmp_path, capsys):
    seen = []

    def scenario(sizes: scenarios.Sizes, folder: Path):
        seen.append((sizes.count, sizes.seconds, folder.is_dir()))
        yield replace(FIGURE, met=sizes.count < 10)

    sizes = scenarios.Sizes(30, seconds=7.0)
    both = {"kills": (scenario, sizes), "soak": (scenario, sizes)}
    monkeypatch.setattr(scenarios, "SCENARIOS", both)
    path = tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="0"):
        scenarios.main(["--scenario", "kills", "--count", "3", "--json", str(path)])
    with pytest.raises(SystemExit, match="1"):
        scenarios.main([])
    assert seen == [(3, 7.0, True), (30, 7.0, True), (30, 7.0, True)]
    assert "| a | b | c | **no** |" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["figures"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--count", "0"], "0 is too few"),
        (["--seconds", "-1"], "-1 is no length of time"),
        (["--json", "nowhere/x.json"], "there is no folder nowhere"),
        (["--page", "x.md"], "--page shows what --json keeps"),
    ],
)
def test_sizes_that_measure_nothing_and_lost_figures_are_refused(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        scenarios.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_defaults_are_what_the_page_speaks_of():
    sizes = {name: sizes for name, (_, sizes) in scenarios.SCENARIOS.items()}
    counts = ("transport", "messages", "saves", "damages", "signals", "configs", "helpers", "busy")
    assert [sizes[name].count for name in counts] == [200, 100_000, 100, 500, 20, 200, 8, 20]
    assert [sizes[name].count for name in ("hangups", "starts", "outputs")] == [20, 50, 3]
    assert [sizes[name].seconds for name in ("kills", "stops", "soak")] == [60.0, 60.0, 3600.0]
