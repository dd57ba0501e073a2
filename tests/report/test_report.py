"""`lrl report`: the numbers of its page beside others' computations, and what it refuses."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import yaml
from PIL import Image

from lrl.checkpoints.stamp import STAMP_KEY
from lrl.envs import EnvConfig
from lrl.envs.config import without_unused
from lrl.report.curves import Curve, curves
from lrl.report.figures import draw_curves, styles
from lrl.report.groups import group_runs
from lrl.report.page import report
from lrl.report.results import check_protocols, read_results
from lrl.report.runs import EVALUATION, read_runs
from lrl.types import ConfigError

STAMP = {
    "format": 1,
    "protocol": "gymnasium",
    "environment": without_unused(asdict(EnvConfig("CartPole-v1"))),
    "gaps": [],
    "evaluation": {"epsilon": 0.0, "max_frames_per_episode": 500, "episodes": 10},
    "versions": {"lrl": "0.1.0", "torch": "2.13.0"},
    "hardware": {"processor": "a processor", "cores": 2, "gpus": []},
}
SHARES = {"wait": 0.1, "sample": 0.2, "optimise": 0.4, "evaluate": 0.2, "other": 0.1}


def event(seconds: float, step: int) -> bytes:
    """Return an event as TensorBoard writes it, for steps below 128."""
    data = b"\x09" + struct.pack("<d", seconds) + (bytes([0x10, step]) if step else b"") + b"\x2a\0"
    return struct.pack("<QI", len(data), 0) + data + b"\0\0\0\0"


def make_run(
    folder: Path,
    seed: int,
    returns: list[float],
    lr: float = 0.1,
    first_step: int = 10,
    ended: bool = True,
    **stamp,
) -> Path:
    """Write what a run leaves, with an evaluation every ten learner steps."""
    folder.mkdir(parents=True)
    settings = {
        "seed_everything": seed,
        "name": folder.parent.name,
        "trainer": {"log_every_n_steps": 10},
        "model": {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": lr}}},
        "data": {"seed": seed, "env": {"id": "CartPole-v1"}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    steps = [first_step + 10 * index for index in range(len(returns))]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["count/env_steps", "count/frames", EVALUATION, "rollout/return_mean", "step"]
        )
        for step, value in zip(steps, returns, strict=True):
            writer.writerow([4.0 * step, 16.0 * step, "", value / 2, step])
            writer.writerow(["", "", value, "", step])
    stamp = {**STAMP, "training": {"seed": seed}, **stamp}
    summary = {
        "outcome": "finished",
        "seconds": 10.0 * (seed + 1),
        "env_steps": 4 * steps[-1] if steps else 0,
        "env_steps_per_second": 100.0 * (seed + 1),
        "learner_steps_per_second": 10.0 + seed,
        "time_shares": SHARES,
        "actors": [{"seconds": 8.0, "wait_seconds": 2.0, "restarts": 0}],
        "stamp": stamp,
    }
    if ended:
        (folder / "summary.json").write_text(json.dumps(summary))
    events = event(100.0, 0) + b"".join(event(100.0 + 0.5 * step, step) for step in steps)
    (folder / "events.out.tfevents.1.host").write_bytes(events)
    return folder


class Tables(HTMLParser):
    """Collects the cells of each table as text, and the ids of the sections."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.sections: list[str] = []
        self.links: list[str] = []
        self._cell: list[str] | None = None
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        if tag == "table":
            self._rows = self.tables.setdefault(given["class"], [])
        elif tag == "section":
            self.sections.append(given["id"])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
        self.links += [given[name] for name in ("src", "href") if given.get(name)]

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            self._rows[-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(f"{data} ")


def parsed(page: Path) -> Tables:
    tables = Tables()
    tables.feed(page.read_text())
    return tables


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


A, B = [3.0, 1.0, 2.0, 9.0], [2.0, 0.5, 8.0]
"""Last evaluations of two groups, by seed."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "runs"
    for seed, value in enumerate(A):
        make_run(folder / f"a/version_{seed}", seed, [0.0, 12.0, value])
    for seed, value in enumerate(B):
        make_run(folder / f"b/version_{seed}", seed, [0.0, 5.0, value], lr=0.2)
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    output = str(runs.parent / "page")
    return report([str(runs / "a"), str(runs / "b")], output=output, bounds={"CartPole-v1": (0, 4)})


def every_resample(values: list[float], statistic) -> tuple[float, float]:
    """Return the 95 % interval over all resamples that there are, as ends that must be hit."""
    found = [statistic(list(drawn)) for drawn in itertools.product(values, repeat=len(values))]
    return tuple(np.quantile(found, [0.025, 0.975], method="inverted_cdf"))


def test_the_numbers_of_the_page_are_those_of_another_computation(page: Path):
    tables = parsed(page).tables
    header, *rows = tables["aggregates"]
    assert header == ["group", "runs", "IQM", "median", "mean", "optimality gap"]
    assert [row[0] for row in rows] == ["lr 0.2", "lr 0.1"]  # B's IQM is 10.5 / 3, A's 5 / 2
    statistics = [
        lambda v: scipy.stats.trim_mean(v, 0.25),
        np.median,
        np.mean,
        lambda v: np.mean([1 - x if x < 1 else 0 for x in v]),
    ]
    for row, scores in zip(rows, (B, A), strict=True):
        assert int(row[1]) == len(scores)
        normalised = [score / 4.0 for score in scores]
        for cell, statistic in zip(row[2:], statistics, strict=True):
            value, low, high = numbers(cell)
            assert value == pytest.approx(float(statistic(normalised)), abs=6e-4)
            expected = every_resample(normalised, statistic)
            # Ends are among few values: 2,000 resamples find the same, or nearly.
            assert (low, high) == pytest.approx(expected, abs=0.26)
            assert low <= value <= high
    chance = scipy.stats.mannwhitneyu(B, A).statistic / (len(A) * len(B))
    _, (first, own, against), (_, back, _) = tables["matrix"]
    assert (first, own) == ("1 lr 0.2", "-")
    value, low, high = numbers(against)
    assert value == pytest.approx(chance, abs=6e-3)
    assert numbers(back) == pytest.approx([1 - value, 1 - high, 1 - low], abs=1.1e-2)


def test_the_tables_hold_what_the_runs_left(page: Path):
    found = parsed(page)
    assert found.sections == [
        "unsupported", "aggregates", "scores", "curves", "speed", "settings", "protocols",
        "statistics",
    ]  # fmt: skip
    _, b, a = found.tables["scores"]
    assert b[:2] == ["lr 0.2", "3"]
    assert numbers(a[2])[0] == 2.5
    assert numbers(a[3].replace("±", "")) == pytest.approx(
        [np.mean(A), np.sqrt(np.mean(np.square(A)) - np.mean(A) ** 2)], abs=6e-3
    )
    assert a[4:6] == ["2.500", "120"]
    assert a[6] == "25"  # median of 10, 20, 30, 40 seconds
    assert numbers(a[7]) == A
    assert found.tables["speed"][1] == [
        "lr 0.1", "4", "250", "11.5", "25", "10%", "20%", "40%", "20%", "10%", "25%",
    ]  # fmt: skip
    assert found.tables["settings"] == [
        ["setting", "lr 0.1", "lr 0.2"], ["model.optimizer.init_args.lr", "0.1", "0.2"],
    ]  # fmt: skip
    assert found.tables["protocols"][1][:5] == ["CartPole-v1", "gymnasium", "0", "500", "10"]
    for link in found.links:
        assert link.startswith(("data:", "#"))
    names = {"scores", "profile", "evaluation", "training", "time"}
    assert {path.name for path in page.parent.iterdir()} == {
        "index.html", *(f"{name}.png" for name in names),
    }  # fmt: skip


def test_the_best_evaluation_counts_if_asked(runs: Path, tmp_path: Path):
    page = report([str(runs / "a/version_1")], output=str(tmp_path / "page"), score="best")
    found = parsed(page)
    assert found.tables["scores"][1] == ["a", "1", "12.00", "12.00", "12.00", "120", "20", "12.00"]
    assert "aggregates" not in found.sections
    assert "One run says nothing of what another seed would give" in page.read_text()


def test_bounds_count_for_a_single_group_too(runs: Path, tmp_path: Path):
    folders, bounds = [str(runs / "a")], {"CartPole-v1": (0.0, 4.0)}
    _, (group, _, *cells) = parsed(report(folders, output=str(tmp_path), bounds=bounds)).tables[
        "aggregates"
    ]
    assert group == "a"
    assert [numbers(cell)[0] for cell in cells] == [0.625, 0.625, 0.938, 0.375]
    assert "aggregates" not in parsed(report(folders, output=str(tmp_path))).tables


def test_scores_of_others_are_put_beside(tmp_path: Path):
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text(
        "algorithm,task,seed,score\n"
        "x,ALE/Pong-v5,0,14.6\nx,ALE/Pong-v5,1,-20.7\nx,ALE/Boxing-v5,0,12.1\nx,ALE/Boxing-v5,1,0.1\n"
    )
    theirs.write_text("algorithm,task,score\nx,ALE/Pong-v5,14.6\nx,ALE/Boxing-v5,0.1\n")
    page = report([str(ours)], [str(theirs)], str(tmp_path / "page"))
    _, first, second = parsed(page).tables["aggregates"]
    # Each game's human scores 1 and random play 0, so that means are 1 / 2.
    for row, name in ((first, "x"), (second, "x (theirs)")):
        assert row[0] == name
        assert numbers(row[2])[0] == numbers(row[4])[0] == numbers(row[5])[0] == 0.5
    assert numbers(first[2])[1:] == [0.0, 1.0]
    assert second[2] == "0.500"
    text = page.read_text()
    assert "2 groups, 4 runs" in text  # theirs are means, perhaps
    assert "One score without a seed is of one run, or the mean of several: no interval f" in text
    assert "One run says nothing" not in text
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/theirs.csv"
    other.write_text(theirs.read_text())
    page = report([str(ours)], [str(theirs), str(other)], str(tmp_path / "page"))
    groups = {row[0] for row in parsed(page).tables["aggregates"][1:]}
    assert groups == {"x", "x (theirs)", f"x ({other})"}


def test_scores_of_a_file_are_not_added_to_those_of_runs(runs: Path, tmp_path: Path):
    """They may be others of the same runs, each of which would count twice."""
    (tmp_path / "tested.csv").write_text("algorithm,task,score\na,CartPole-v1,400\n")
    page = report([str(runs / "a"), str(tmp_path / "tested.csv")], output=str(tmp_path / "page"))
    groups = {group: count for group, count, *_ in parsed(page).tables["scores"][1:]}
    assert groups == {"a": "4", "a (tested)": "1"}


def test_raw_returns_of_several_environments_are_not_added_up(tmp_path: Path):
    scores = tmp_path / "scores.csv"
    scores.write_text("algorithm,task,score\n<b>,Acrobot-v1,-80\n<b>,CartPole-v1,500\n")
    page = report([str(scores)], output=str(tmp_path / "page"))
    assert "aggregates" not in parsed(page).sections
    assert "Raw returns of Acrobot-v1, CartPole-v1 do not add up" in page.read_text()
    assert "<b>," not in page.read_text()  # a label is text


def test_a_run_that_was_gone_on_with_is_one_run(tmp_path: Path):
    folder = tmp_path / "runs/a"
    make_run(folder / "version_0", 3, [1.0, 2.0, 3.0], ended=True)
    make_run(folder / "version_1", 3, [7.0, 8.0], first_step=30)
    (run,), _ = read_runs([folder])
    steps, returns = run.curve(EVALUATION, "learner_steps") or ((), ())
    assert [*steps] == [10, 20, 30, 40]
    assert [*returns] == [1, 2, 7, 8]
    assert "gone on from a/version_0, with which it is one run" in run.remarks()[0]
    seconds, _ = run.curve(EVALUATION, "seconds") or ((), ())
    assert [*seconds] == [5.0, 10.0, 25.0, 30.0]  # 10 seconds before, and 15 and 20 after
    path = folder / "version_1/summary.json"
    changed = {"seconds": 10.0, "env_steps_per_second": 100.0, "learner_steps_per_second": 3.0,
               "time_shares": {**SHARES, "wait": 0.5, "optimise": 0.0}}  # fmt: skip
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    (run,), _ = read_runs([folder])
    assert run.summary["seconds"] == 50.0  # 40 and 10
    assert run.summary["env_steps_per_second"] == pytest.approx((40 * 400 + 10 * 100) / 50)
    assert run.summary["learner_steps_per_second"] == pytest.approx((40 * 13 + 10 * 3) / 50)
    assert run.summary["time_shares"]["wait"] == pytest.approx((40 * 0.1 + 10 * 0.5) / 50)
    assert sum(run.summary["time_shares"].values()) == pytest.approx(1.0)
    assert len(run.summary["actors"]) == 2
    (late,), _ = read_runs([folder / "version_1"])
    assert late.starts_late
    assert "begins at learner step 30" in late.remarks()[0]


@pytest.mark.parametrize(("period", "starts_late"), [(40, True), (100, False), (0, False)])
def test_a_run_that_logs_evaluations_only_may_begin_with_its_first(
    tmp_path: Path, period: int, starts_late: bool
):
    folder = make_run(tmp_path / "runs/a/version_0", 3, [1.0, 2.0], first_step=100)
    path = folder / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["trainer"] = {"log_every_n_steps": 0}
    settings["actor_learner"] = {"eval_period_learner_steps": period}
    path.write_text(yaml.safe_dump(settings))
    (run,), _ = read_runs([folder])
    assert run.starts_late == starts_late


@pytest.mark.parametrize("names", [("version_9", "version_10"), ("version_10", "version_9")])
def test_parts_of_a_run_may_come_in_any_order(tmp_path: Path, names: tuple[str, str]):
    """A shell gives version_10 before version_9."""
    folder = tmp_path / "runs/a"
    make_run(folder / "version_9", 3, [1.0, 2.0, 3.0], ended=True)
    make_run(folder / "version_10", 3, [7.0, 8.0], first_step=30)
    make_run(tmp_path / "runs/b/version_0", 3, [5.0])
    runs, _ = read_runs([folder / names[0], tmp_path / "runs/b/version_0", folder / names[1]])
    assert {run.name for run in runs} == {"a/version_10", "b/version_0"}
    assert (runs[0].name == "b/version_0") is (names[1] == "version_10")  # as they were given


def test_a_run_of_which_a_part_was_killed_has_no_speed(tmp_path: Path):
    folder = tmp_path / "runs/a"
    killed = make_run(folder / "version_0", 3, [1.0, 2.0, 3.0], ended=False)
    (killed / "checkpoints").mkdir()
    torch.save({STAMP_KEY: {**STAMP, "training": {"seed": 3}}}, killed / "checkpoints/last.ckpt")
    (killed / "checkpoints/best.ckpt").write_bytes(b"older, and damaged")
    make_run(folder / "version_1", 3, [7.0, 8.0], first_step=30)
    (run,), _ = read_runs([folder])
    assert run.summary == {}
    assert "or a part of it, has not ended, or was killed" in run.remarks()[0]


def test_a_run_that_does_not_learn_is_diagnosed(tmp_path: Path):
    run = make_run(tmp_path / "runs/a/version_0", 3, [1.0])
    header = f"{EVALUATION},count/learner_steps,train/target_updates,step\n"
    rows = [f"1.0,{step},0,{step}\n" for step in (500, 1000, 1500, 2000)]
    (run / "metrics.csv").write_text(header + "".join(rows))
    page = report([str(run)], output=str(tmp_path / "page")).read_text()
    assert "target network" in page
    assert "model.target_update_period_learner_steps" in page


def test_axes_are_what_was_counted(runs: Path):
    (run,), _ = read_runs([runs / "a/version_0"])
    for axis, factor in (("env_steps", 4), ("frames", 16), ("learner_steps", 1), ("seconds", 0.5)):
        at, returns = run.curve(EVALUATION, axis) or ((), ())
        assert [*at] == [10 * factor, 20 * factor, 30 * factor]
        assert [*returns] == [0.0, 12.0, 3.0]


def test_a_seed_that_repeats_leaves_curves_without_an_interval(tmp_path: Path):
    for number, seed in enumerate([0, 0, 1]):
        make_run(tmp_path / f"a/version_{number}", seed, [1.0, number])
    folders = [tmp_path / f"a/version_{number}" for number in range(3)]
    for chosen, has_interval in ((folders[1:], True), (folders, False)):
        groups = group_runs(read_runs(chosen)[0])
        curve = curves(groups, "CartPole-v1", EVALUATION, "learner_steps", "mean")["a"]
        assert (curve.low is not None) is has_interval


def test_a_run_without_which_its_group_has_no_curve_is_named(tmp_path: Path):
    for seed in (0, 1):
        make_run(tmp_path / f"runs/a/version_{seed}", seed, [1.0, 2.0])
    (tmp_path / "runs/a/version_1/events.out.tfevents.1.host").unlink()
    page = report([str(tmp_path / "runs/a")], output=str(tmp_path / "page")).read_text()
    for said in ("evaluation", "training"):
        text = f"It has no returns in {said} against wall time, so that its group has no such"
        assert page.count(text) == 1


@pytest.mark.parametrize("one_task", [True, False])
def test_environments_have_their_own_scales(one_task: bool):
    at = np.array([1.0, 2.0])
    panels = {
        str(top): {"a": Curve((), at, np.array([0.0, top]), None, None)}
        for top in (1.0, 20.0, 300.0, 4000.0)
    }
    axes = draw_curves(panels, "return", styles(["a"]), one_task).axes
    shown = [place.get_ylim()[1] for place in axes]
    assert shown == pytest.approx([4200.0] * 4 if one_task else [1.05, 21.0, 315.0, 4200.0])


def test_protocols_that_differ_are_refused(runs: Path, tmp_path: Path):
    evaluation = {**STAMP["evaluation"], "epsilon": 0.05}
    other = make_run(tmp_path / "other/version_0", 0, [1.0], evaluation=evaluation)
    with pytest.raises(ConfigError, match=r"evaluation\.epsilon 0\.05 instead of 0\.0"):
        report([str(runs / "a"), str(other)], output=str(tmp_path / "page"))
    scores = tmp_path / "scores.csv"
    scores.write_text("algorithm,task,score,max_frames\nx,CartPole-v1,3,200\n")
    with pytest.raises(ConfigError, match="max_frames 200 instead of 500"):
        report([str(runs / "a")], [str(scores)], str(tmp_path / "page"))
    games = tmp_path / "games.csv"
    lines = ["x,ALE/Pong-v5,3,0", "x,ALE/Breakout-v5,3,0.05"]
    games.write_text("\n".join(["algorithm,task,score,epsilon", *lines, ""]))
    with pytest.raises(ConfigError, match=r"epsilon 0\.05 instead of 0,"):
        report([str(games)], output=str(tmp_path / "page"))
    assert not (tmp_path / "page").exists()


def test_versions_without_a_score_are_left_out_of_their_name_and_named(tmp_path: Path):
    """Stopped before the first evaluation, before the first save, and at once."""
    make_run(tmp_path / "a/version_0", 0, [1.0])
    make_run(tmp_path / "a/version_1", 1, [])
    make_run(tmp_path / "a/version_2", 2, [], ended=False)
    (tmp_path / "a/version_3").mkdir()
    page = report([str(tmp_path / "a")], output=str(tmp_path / "page")).read_text()
    assert "Left out, since never evaluated: a/version_2, a/version_3, a/version_1." in page
    with pytest.raises(ConfigError, match=r"never evaluated: \S+/a/version_1: "):
        report([str(tmp_path / "a"), str(tmp_path / "a/version_1")], output=str(tmp_path / "page"))
    (tmp_path / "a").rename(tmp_path / "b")
    shutil.rmtree(tmp_path / "b/version_0")
    with pytest.raises(ConfigError, match=r"never evaluated: .*_2, .*_3, .*_1: "):
        report([str(tmp_path / "b")], output=str(tmp_path / "page"))


def test_what_is_no_whole_run_is_told_in_a_sentence(tmp_path: Path):
    def refuse(path: Path, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            report([str(path)], output=str(tmp_path / "page"))
        assert "\n" not in str(caught.value)

    with pytest.raises(ConfigError, match="nothing to compare"):
        report([], output=str(tmp_path / "page"))
    refuse(tmp_path, "is no run of lrl fit: it has no config.yaml and no metrics.csv")
    refuse(make_run(tmp_path / "a/version_0", 0, []), "never evaluated: .*version_0: a run without")
    run = make_run(tmp_path / "b/version_0", 0, [1.0], ended=False)
    refuse(run, "has no protocol stamp: neither summary.json")
    for number, (name, text) in enumerate(
        [("summary.json", "{"), ("metrics.csv", "step,x\n1\n"), ("metrics.csv", "step,x\n1,y\n"),
         ("metrics.csv", 'step,"x\n' + 200_000 * "1\n"), ("config.yaml", "a: ["),
         ("config.yaml", ""), ("config.yaml", "trainer: 5"), ("config.yaml", "model: null")]
    ):  # fmt: skip
        damaged = make_run(tmp_path / f"c{number}/version_0", 0, [1.0])
        (damaged / name).write_text(text)
        refuse(damaged, f"{name} is damaged")
    for number, (key, message) in enumerate(
        [("seconds", "summary.json is damaged: it has no seconds"), ("actors", "it has no actors"),
         ("stamp", "it has no stamp")]
    ):  # fmt: skip
        path = make_run(tmp_path / f"d{number}/version_0", 0, [1.0]) / "summary.json"
        summary = json.loads(path.read_text())
        del summary[key]
        path.write_text(json.dumps(summary))
        refuse(path.parent, message)
    part = make_run(tmp_path / "e/version_0", 0, [1.0], versions={"lrl": "0.1.0"})
    refuse(part, r"its protocol stamp has no versions\.torch")


def test_files_of_scores_that_are_wrong_are_refused_in_a_sentence(tmp_path: Path):
    def refuse(path: Path, message: str, of_others: bool = False) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            read_results(path, of_others)
        assert "\n" not in str(caught.value)

    (tmp_path / "x.csv").write_text("algorithm,game,score\nx,Pong,1\n")
    refuse(tmp_path / "x.csv", "has no column task:")
    (tmp_path / "x.csv").write_text("task,score,seed\nPong,1,0\n")
    refuse(tmp_path / "x.csv", "has no column algorithm:", of_others=True)
    (tmp_path / "x.csv").write_text("task,mean\nPong,1\n")
    refuse(tmp_path / "x.csv", "has no column score:")
    (tmp_path / "x.csv").write_text("task,score,outcome\nPong,,failed\n")
    refuse(tmp_path / "x.csv", "has no scores: all of its runs failed")
    (tmp_path / "x.csv").write_text("task,score\nPong,\n")
    refuse(tmp_path / "x.csv", "line 2: a task and its score are needed")
    (tmp_path / "x.csv").write_text("task,score\nPong,nan\n")
    refuse(tmp_path / "x.csv", "line 2: score 'nan' is no number")
    (tmp_path / "x.csv").write_text("task,seed,score\nPong,1,2\nPong,1,3\n")
    refuse(tmp_path / "x.csv", "has two scores of Pong on Pong with seed 1")
    (tmp_path / "x.csv").write_text("task,score\nPong,20,5\n")
    refuse(tmp_path / "x.csv", "line 2: there are more values than columns")
    (tmp_path / "x.csv").write_text("task,score,max_frames\nPong,1,-5\n")
    refuse(tmp_path / "x.csv", "line 2: max_frames -5 must be at least 1")


def test_files_of_scores_of_other_programs_are_read(tmp_path: Path):
    path = tmp_path / "x.csv"
    text = "task,score,max_frames\nCartPole-v1,3,500.0\nCartPole-v1,4,500\n"
    path.write_text(text, encoding="utf-8-sig")  # as spreadsheets do; pandas writes 500.0
    found, _ = read_results(path, of_others=False)
    assert [result.value for result in found] == [3, 4]
    check_protocols([], found)


def test_a_line_that_is_still_written_is_left_out(tmp_path: Path):
    run = make_run(tmp_path / "a/version_0", 0, [1.0, 2.0])
    with (run / "metrics.csv").open("a") as file:
        file.write("4.0,")
    (read,), _ = read_runs([run])
    _, returns = read.curve(EVALUATION, "env_steps") or ((), ())
    assert [*returns] == [1.0, 2.0]


def test_without_the_extra_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[report\]': matplotlib is not"):
        report([str(tmp_path)])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium here")
def test_a_browser_shows_the_page_whole(page: Path, tmp_path: Path):
    picture = tmp_path / "page.png"
    chromium = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'chromium'}", "--window-size=1100,3000",
    ]  # fmt: skip
    said = [
        subprocess.run(
            [*chromium, what, page.as_uri()], capture_output=True, text=True, timeout=80, check=True
        )
        for what in ("--dump-dom", f"--screenshot={picture}")
    ]
    assert said[0].stdout.count("<table") == 6
    assert said[0].stdout.rstrip().endswith("</html>")
    assert not [line for each in said for line in each.stderr.splitlines() if "CONSOLE" in line]
    pixels = np.asarray(Image.open(picture).convert("L"))
    for part in np.array_split(pixels, 8):  # no part of the page is blank, nor wholly dark
        assert 0.002 < (part < 200).mean() < 0.5
