"""Campaigns as files: order, locks, interruptions, rows, and what is gathered from them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.command_line import quiet_commands

from benchmark.scores import campaign as command
from benchmark.scores import pages, pictures, plan, records, runs
from benchmark.scores.tasks import Task
from lrl.cli.main import run as run_command
from lrl.envs.atari import RANDOM_AND_HUMAN
from lrl.preflight.cores import available_cores
from lrl.report.results import read_results

pytestmark = quiet_commands

ROOT = Path(__file__).parents[2]
USED = {*range(10), *range(100, 200)}
"""Training seeds of docs/scores.csv and of development."""
TWO = """
budget: Some.
checkpoint: last
seeds: [10, 11]
settings: {trainer.max_steps: 20}
tasks:
  one: {configs: [cartpole_sync], settings: {data.env.id: CartPole-v1}, bar: 475}
  two: {configs: [cartpole_sync], algorithms: [b]}
algorithms:
  a: {configs: [system/ddp]}
  b: {settings: {model.head: {class_path: x}}, machines: {gpu: {data.replay.device: cuda}}}
"""


@pytest.fixture
def two(tmp_path, monkeypatch) -> plan.Campaign:
    monkeypatch.chdir(ROOT)
    (tmp_path / "two.yaml").write_text(TWO)
    return plan.load("two", tmp_path)


def test_runs_are_in_order_seed_by_seed(two):
    order = [(task.name, task.algorithm, seed) for task, seed in two.runs()]
    assert order == [
        ("one", "a", 10), ("one", "b", 10), ("two", "b", 10),
        ("one", "a", 11), ("one", "b", 11), ("two", "b", 11),
    ]  # fmt: skip


def test_settings_of_all_then_of_the_task_then_of_the_algorithm(two):
    first, second, _ = two.tasks
    assert (first.recipe, first.checkpoint, first.bar) == ("cartpole_sync", "last", 475)
    overlay = ("--config", "configs/system/ddp.yaml")
    assert first.settings == (*overlay, "--trainer.max_steps=20", "--data.env.id=CartPole-v1")
    assert second.settings[-1] == '--model.head={"class_path": "x"}'
    assert len({first.digest, second.digest}) == 2


@pytest.mark.parametrize(
    ("text", "instead", "said"),
    [
        ("budget", "bugdet", "odd.yaml: unknown keys bugdet: choose from budget, checkpoint, "),
        ("bar:", "baar:", "odd.yaml, tasks.one: unknown keys baar: choose from configs, settings"),
        ("machines", "machine", "odd.yaml, algorithms.b: unknown keys machine: choose from "),
        ("last", "lst", "odd.yaml: checkpoint is 'lst', but must be best or last"),
        ("[10, 11]", "[10, 10]", r"odd.yaml: seeds \[10, 10\] repeat"),
        ("[b]", "[c]", r"odd.yaml, tasks.two: no algorithms \['c'\]: choose from \['a', 'b'\]"),
        ("configs: [cartpole_sync], a", "a", r"tasks.two: no recipe: .* its algorithms \['b'\]"),
    ],
)
def test_a_file_that_cannot_mean_what_it_says_is_refused(text, instead, said, tmp_path):
    (tmp_path / "odd.yaml").write_text(TWO.replace(text, instead))
    with pytest.raises(ValueError, match=said):
        plan.load("odd", tmp_path)


@pytest.mark.parametrize("name", plan.names())
def test_every_campaign_has_its_recipes_and_fresh_seeds(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    campaign = plan.load(name)
    assert not USED & set(campaign.seeds)
    folders = {records.folder_of(Path(), campaign, *run) for run in campaign.runs()}
    assert len(folders) == len(campaign.tasks) * len(campaign.seeds)


def test_published_scores_are_of_the_campaigns_tasks_and_say_where_they_were_read():
    for name in ("atari100k", "minatar"):
        tasks = plan.load(name).tasks
        rows = records.read_rows(ROOT / f"docs/published/{name}.csv")
        environments = {
            task.name: option.removeprefix("--data.env.id=")
            for task in tasks
            for option in task.settings
            if option.startswith("--data.env.id=")
        }
        assert all(environments[row["task"]] == row["environment"] for row in rows)
        assert all(row["read_in"] for row in rows)
        read, _ = read_results(ROOT / f"docs/published/{name}.csv", of_others=True)
        assert len({(score.group, score.task) for score in read}) == len(rows)
    games = records.read_rows(ROOT / "docs/published/atari100k.csv")
    assert sum(row["algorithm"] == "der_van_hasselt_2019" for row in games) == 26
    for row in games:
        random, human = RANDOM_AND_HUMAN[re.sub("(?<!^)([A-Z])", r"_\1", row["task"]).lower()]
        if row["algorithm"] in ("random", "human"):
            assert float(row["score"]) == (random if row["algorithm"] == "random" else human)


def finished(kept: Path, campaign: plan.Campaign, task: Task, seed: int, **values: object) -> Path:
    folder = records.folder_of(kept, campaign, task, seed)
    folder.mkdir(parents=True)
    row = {
        "task": task.name, "algorithm": task.algorithm, "seed": seed, "digest": task.digest,
        "outcome": "done", "score": "480.5", "env_steps": 1000, "frames": 4000,
        "cpu_seconds": 120, **task.tested, **values,
    }  # fmt: skip
    if row["outcome"] != "done":
        del row["score"]
    (folder / "row.json").write_text(json.dumps(row))
    return folder


def test_the_next_run_is_the_first_that_has_no_row(two, tmp_path, monkeypatch, capsys):
    taken = []
    finished(tmp_path, two, two.tasks[0], 10)

    def advance(task: Task, seed: int, *_: object) -> dict[str, object]:
        taken.append((task.name, task.algorithm, seed))
        if len(taken) == 1:
            raise runs.Stopped("another process works on it")
        if len(taken) == 3:
            (tmp_path / "stop").touch()
        finished(tmp_path, two, task, seed)
        return {"outcome": "done", "score": 1.0}

    monkeypatch.setattr(command, "advance", advance)
    command.next_runs([two], tmp_path, None)
    # What another process has, or was stopped, is left; the file `stop` ends it after a run.
    assert taken == [("one", "b", 10), ("two", "b", 10), ("one", "a", 11)]
    assert "two one b seed 10: open: another process works on it" in capsys.readouterr().out
    (tmp_path / "stop").unlink()
    command.next_runs([two], tmp_path, time.time() - 1)
    assert len(taken) == 3
    command.next_runs([two], tmp_path, None)
    assert taken[3:] == [("one", "b", 10), ("one", "b", 11), ("two", "b", 11)]


def test_a_machine_takes_what_has_settings_for_it_and_leaves_the_test(two, tmp_path, monkeypatch):
    taken = []

    def advance(task: Task, seed: int, folder: Path, until: float | None, *more: object) -> None:
        taken.append((task.name, task.algorithm, seed, *more))
        raise runs.Stopped("trained")

    monkeypatch.setattr(command, "advance", advance)
    command.next_runs([two], tmp_path, None, "gpu", is_tested=False)
    assert taken == [
        (task, "b", seed, ("--data.replay.device=cuda",), False)
        for seed in (10, 11)
        for task in ("one", "two")
    ]


def test_settings_of_a_machine_leave_the_recipe_what_it_is(monkeypatch):
    monkeypatch.chdir(ROOT)
    task = plan.load("atari100k").tasks[0]
    assert "--model.updater=captured" in task.machines["gpu"]
    assert Task(**{**vars(task), "machines": {}}).digest == task.digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--next --machine tpu",
            "--machine tpu: none of them has settings for it; choose from gpu",
        ),
        ("--machine gpu", "--machine would do nothing without --next: add it"),
        ("--gather --train --hours 0", "--train, --hours would do nothing without --next: add it"),
        ("atari", "argument NAME: invalid choice: 'atari'"),
        ("--next --until 25:00", "argument --until: invalid time_of_day value: '25:00'"),
        ("--next --until 9:00 --hours 1", "not allowed with argument --until"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options, said, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["campaign", "minatar", *options.split()])
    with pytest.raises(SystemExit):
        command.main()
    assert said in capsys.readouterr().err


def test_a_run_that_is_only_trained_is_tested_by_the_next_command(fake):
    task, folder = fake("print(sys.argv[-3:])")
    with pytest.raises(runs.Stopped):
        runs.advance(task, 10, folder, None, ("--model.x=1",), is_tested=False)
    assert "--model.x=1" in (folder / "fit.log").read_text()
    assert not (folder / "row.json").exists()
    row = runs.advance(task, 10, folder, None)
    assert str(row["reason"]).endswith("lrl: error: no test")
    assert row["cores"] == available_cores()
    assert (folder / "fit.log").read_text().count("--model.x=1") == 1
    assert (row["sittings"], row["commit"]) == (1, "c0ffee")


def test_a_run_that_another_process_has_ended_is_left(fake):
    task, folder = fake("sys.exit('nothing is run')")
    folder.mkdir(parents=True, exist_ok=True)
    row = {"digest": task.digest, "outcome": "done", "score": "1.0", **task.tested}
    (folder / "row.json").write_text(json.dumps(row))
    assert runs.advance(task, 10, folder, None) == row
    assert not (folder / "sittings.json").exists()


def test_a_recipe_that_changed_while_it_trained_has_no_score(fake):
    task, folder = fake("")
    with pytest.raises(runs.Failed, match="the recipe changed during training: --next trains"):
        runs._scored(task, 10, folder, "of before")


def test_rows_and_curves_are_gathered_and_stay_without_their_folders(two, tmp_path):
    kept, home = tmp_path / "kept", tmp_path / "home"
    finished(kept, two, two.tasks[2], 11, score="470.5")
    finished(kept, two, two.tasks[2], 10, cpu_seconds="")
    finished(kept, two, two.tasks[0], 10, outcome="failed", reason="no memory")
    records.gather(two, kept, home)
    rows = records.read_rows(home / "two.csv")
    assert [(row["task"], row["seed"], row["outcome"]) for row in rows] == [
        ("one", "10", "failed"), ("two", "10", "done"), ("two", "11", "done"),
    ]  # fmt: skip
    assert [row["cpu_seconds"] for row in rows] == ["120", "", "120"]
    text = records.table(two, records.rows_of(two, tmp_path / "gone", home))
    assert "| `one` | a | 0 of 2, 1 failed |  |  |  |" in text
    assert "| `two` | b | 2 of 2 | 475.5 (470.5 to 480.5) | 1,000 | 2.0 |" in text
    before = (home / "two.csv").read_text()
    records.gather(two, tmp_path / "gone", home)
    assert (home / "two.csv").read_text() == before


def test_rows_that_would_be_lost_are_not_gathered_over(two, tmp_path):
    home = tmp_path / "home"
    finished(tmp_path, two, two.tasks[0], 10)
    records.gather(two, tmp_path, home)
    before = (home / "two.csv").read_bytes()
    changed = Task(**{**vars(two.tasks[0]), "settings": (*two.tasks[0].settings, "--x=1")})
    other = plan.Campaign(two.name, two.budget, two.seeds, (changed,))
    for look in (
        lambda: records.gather(other, tmp_path, home),
        lambda: records.recorded_rows(other, home),
    ):
        with pytest.raises(ValueError, match=r"two\.csv has rows of other recipes .* of 1 runs"):
            look()
    assert (home / "two.csv").read_bytes() == before
    (home / "two.csv").write_bytes(before + before.splitlines(keepends=True)[1])
    with pytest.raises(ValueError, match=r"two\.csv has two rows of \('one', 'a', '10'"):
        records.rows_of(two, tmp_path, home)


def test_what_is_recorded_as_done_stays(two, tmp_path):
    """A run elsewhere may have failed, or is not at its end, or was tested otherwise."""
    home, task = tmp_path / "home", two.tasks[0]
    finished(tmp_path / "first", two, task, 10)
    records.gather(two, tmp_path / "first", home)
    finished(tmp_path / "failed", two, task, 10, outcome="failed", reason="no memory")
    finished(tmp_path / "tested", two, task, 10, score="1.0", checkpoint="best")
    for kept in ("failed", "tested"):
        (row,) = records.rows_of(two, tmp_path / kept, home)
        assert (row["outcome"], row["score"]) == ("done", "480.5")


def test_the_curve_of_a_failed_run_takes_no_recorded_ones_place(two, tmp_path, monkeypatch):
    home, task = tmp_path / "home", two.tasks[0]
    for kept, outcome in (("first", "done"), ("failed", "failed")):
        folder = finished(tmp_path / kept, two, task, 10, outcome=outcome)
        (folder / "runs/cartpole/version_0").mkdir(parents=True)
    points = [{"learner_steps": 1, "env_steps": 1, "return_mean": 1.0, "return_std": 0.0}]
    monkeypatch.setattr(records, "read_curve", lambda version, seed: points)
    records.gather(two, tmp_path / "failed", home)
    assert records.read_rows(home / "two_curves.csv") == []
    records.gather(two, tmp_path / "first", home)
    points[0]["return_mean"] = -500.0
    records.gather(two, tmp_path / "failed", home)
    (point,) = records.read_rows(home / "two_curves.csv")
    assert point["return_mean"] == "1.0"


def test_a_changed_recipe_leaves_its_rows_out(two, tmp_path):
    first = two.tasks[0]
    finished(tmp_path, two, first, 10)
    assert len(records.rows_of(two, tmp_path, tmp_path)) == 1
    changed = Task(**{**vars(first), "settings": (*first.settings, "--x=1")})
    other = plan.Campaign(two.name, two.budget, two.seeds, (changed,))
    assert records.rows_of(other, tmp_path, tmp_path) == []


def test_rows_of_another_test_are_left_out(two, tmp_path):
    task = two.tasks[0]
    finished(tmp_path, two, task, 10)
    records.gather(two, tmp_path, tmp_path)
    for name, value in (("checkpoint", "best"), ("test_settings", ("--x=1",))):
        changed = Task(**{**vars(task), name: value})
        other = plan.Campaign(two.name, two.budget, two.seeds, (changed,))
        assert records.rows_of(other, tmp_path / "gone", tmp_path) == []
    finished(tmp_path, two, task, 11, checkpoint="best")
    finished(tmp_path, two, two.tasks[1], 10, test_settings="--x=1")
    (row,) = records.rows_of(two, tmp_path, tmp_path)
    assert (row["seed"], row["test_settings"]) == (10, "")


def test_evaluations_of_all_sittings_make_one_curve(two, tmp_path, monkeypatch):
    task = two.tasks[0]
    folder = finished(tmp_path, two, task, 10)
    for number in (0, 1):
        (folder / f"runs/cartpole/version_{number}").mkdir(parents=True)

    def read_curve(version: Path, seed: int) -> list[dict[str, object]]:
        steps = (5, 10) if version.name == "version_0" else (10, 15)
        of = {"seed": seed, "seconds": 1, "return_std": 0.0, "return_mean": float(version.name[-1])}
        return [{**of, "learner_steps": step, "env_steps": 10 * step} for step in steps]

    monkeypatch.setattr(records, "read_curve", read_curve)
    records.gather(two, tmp_path, tmp_path / "home")
    with (tmp_path / "home/two_curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["learner_steps"], r["env_steps"], r["frames"], r["return_mean"]) for r in rows] == [
        ("5", "50", "200", "0.0"), ("10", "100", "400", "1.0"), ("15", "150", "600", "1.0"),
    ]  # fmt: skip


FAKE = """
import pathlib, sys, time
runs = pathlib.Path(sys.argv[sys.argv.index("--runs") + 1]) / "name/version_0/checkpoints"
if "test" in sys.argv[1]:
    {test}
runs.mkdir(parents=True, exist_ok=True)
(runs / "last.ckpt").touch()
print("--ckpt_path" in sys.argv, flush=True)
{end}
"""


@pytest.fixture
def fake(two, tmp_path, monkeypatch):
    """A command in place of `lrl`, which leaves a checkpoint and then does what it is told."""

    def told(end: str, test: str = "sys.exit('lrl: error: no test')") -> tuple[Task, Path]:
        script = tmp_path / "fake.py"
        script.write_text(FAKE.format(end=end, test=test))

        def command_of(task: Task, seed: int, runs_folder: Path):
            return lambda name, *more: [
                sys.executable, str(script), name, "--runs", str(runs_folder), *more
            ]  # fmt: skip

        monkeypatch.setattr(runs, "_command", command_of)
        monkeypatch.setattr(runs, "_commit", lambda: "c0ffee")  # no other process to wait for
        return two.tasks[0], tmp_path / "run"

    return told


def test_a_run_whose_time_is_up_is_stopped_and_goes_on_from_its_checkpoint(fake, monkeypatch):
    task, folder = fake("time.sleep(60)")

    def timed_out(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        assert 0.0 < timeout <= 60.0
        while not (folder / "fit.log").read_text():
            time.sleep(0.02)
        raise subprocess.TimeoutExpired("", timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", timed_out)
    with pytest.raises(runs.Stopped):
        runs.advance(task, 10, folder, time.time() + 60)
    task, folder = fake("sys.exit(143)")
    with pytest.raises(runs.Stopped):
        runs.advance(task, 10, folder, None)
    assert (folder / "fit.log").read_text().split() == ["False", "True"]
    assert [s["ended"] for s in json.loads((folder / "sittings.json").read_text())] == [
        "stopped"
    ] * 2
    assert not (folder / "row.json").exists()


BEFORE = {"ended": "stopped", "scheduling": "normal", "from_checkpoint": False, "commit": "c0ffee"}
TIMED = {**BEFORE, "seconds": 5.0, "cpu_seconds": 4.0}


@pytest.mark.parametrize(
    ("before", "scheduling", "seconds", "cpu_seconds"),
    [
        (TIMED, "normal", True, True),
        ({**TIMED, "scheduling": "idle"}, "idle", False, True),
        ({**BEFORE, "ended": "killed"}, "normal", False, False),
    ],
)
def test_a_row_has_the_seconds_of_all_sittings_or_none(
    fake, before, scheduling, seconds, cpu_seconds, monkeypatch
):
    monkeypatch.setattr(runs, "scheduling", lambda: "normal")
    task, folder = fake("time.sleep(0.2)")
    folder.mkdir()
    (folder / "sittings.json").write_text(json.dumps([before]))
    row = runs.advance(task, 10, folder, None)
    assert (row["scheduling"], row["sittings"]) == (scheduling, 2)
    assert [row["seconds"] != "", row["cpu_seconds"] != ""] == [seconds, cpu_seconds]
    assert not seconds or float(str(row["seconds"])) > 5.0
    assert not cpu_seconds or float(str(row["cpu_seconds"])) >= 4.0


@pytest.mark.parametrize("kept", ["", "last", "previous"])
def test_a_run_that_saved_nothing_begins_anew_and_leaves_nothing_of_before(fake, kept):
    task, folder = fake("sys.exit(143)")
    checkpoints = folder / "runs/before/version_0/checkpoints"
    checkpoints.mkdir(parents=True)
    if kept:
        (checkpoints / f"{kept}.ckpt").touch()
    with pytest.raises(runs.Stopped):
        runs.advance(task, 10, folder, None)
    assert (folder / "fit.log").read_text().split() == [str(bool(kept))]
    (sitting,) = json.loads((folder / "sittings.json").read_text())
    assert sitting["from_checkpoint"] is bool(kept)
    assert checkpoints.exists() is bool(kept)


@pytest.mark.parametrize(
    ("from_checkpoint", "log", "label"),
    [
        ([False, False], "no replay was saved with x: it is filled again", ""),
        ([False, True], "", "exactly"),
        ([False, True], "no replay was saved with x: it is filled again", "refilled"),
        ([False, True], "x is left out, and filled to its minimum again: damaged", "refilled"),
        # A save that failed, after which another went well.
        ([False, True], "not saved in x, and is filled again by a run that goes on", "exactly"),
    ],
)
def test_how_a_run_went_on(tmp_path, from_checkpoint, log, label):
    for number in range(len(from_checkpoint)):
        version = tmp_path / f"runs/name/version_{number}"
        version.mkdir(parents=True)
        (version / "config.yaml").write_text(
            "actor_learner: {checkpoint_replay: true}\n"
            "data: {actors: {num_actors: 0}}\ntrainer: {devices: 1}\n"
        )
    (tmp_path / "fit.log").write_text(log)
    sittings = [{"from_checkpoint": one} for one in from_checkpoint]
    assert runs._how_it_went_on(tmp_path, sittings) == label


def test_a_command_that_is_stopped_stops_its_run_and_notes_it(fake, monkeypatch):
    task, folder = fake("time.sleep(60)")

    def terminated(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if process.poll() is None and not (folder / "runs/name").exists():
            while not (folder / "runs/name/version_0/checkpoints/last.ckpt").exists():
                time.sleep(0.02)
            sys.exit(143)  # as the handler of SIGTERM does
        return wait(process, timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", terminated)
    with pytest.raises(SystemExit, match="143"):
        runs.advance(task, 10, folder, None)
    (sitting,) = json.loads((folder / "sittings.json").read_text())
    assert sitting["ended"] == "stopped"
    assert sitting["cpu_seconds"] > 0.0


def test_a_run_that_fails_has_a_row_with_its_reason(fake):
    task, folder = fake('sys.exit("lrl: error: data.env.id is odd")')
    row = runs.advance(task, 10, folder, None)
    assert (row["outcome"], row["seed"], row["sittings"]) == ("failed", 10, 1)
    assert row["reason"] == "lrl fit ended with 1: lrl: error: data.env.id is odd"
    assert json.loads((folder / "row.json").read_text()) == row


KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(("behaviour", "sittings"), [((KILLED,), 3), (("", KILLED), 1)])
def test_what_was_killed_is_open_twice_and_then_has_failed(fake, behaviour, sittings):
    task, folder = fake(*behaviour)  # while it trained, or while it was tested
    for _ in range(2):
        with pytest.raises(runs.Stopped, match="killed by signal 9, goes on the next time"):
            runs.advance(task, 10, folder, None)
    row = runs.advance(task, 10, folder, None)
    assert (row["outcome"], row["sittings"]) == ("failed", sittings)
    assert "ended with -9" in str(row["reason"])


def test_the_reason_of_a_failed_run_is_of_its_last_sitting(fake):
    task, folder = fake("print('an error of before'); sys.exit(143)")
    with pytest.raises(runs.Stopped, match="stopped, goes on the next time"):
        runs.advance(task, 10, folder, None)
    fake("print('no space'); sys.exit(3)")
    assert runs.advance(task, 10, folder, None)["reason"] == "lrl fit ended with 3: no space"


def test_a_run_on_its_own_that_was_killed_has_failed(fake):
    task, _ = fake(KILLED)
    with pytest.raises(runs.Failed, match="ended with -9"):
        runs.run(task, 10)


def test_a_test_that_fails_has_a_row(fake):
    task, folder = fake("")
    row = runs.advance(task, 10, folder, None)
    assert row["outcome"] == "failed"
    assert str(row["reason"]).endswith("lrl: error: no test")


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    input()
"""


def test_no_two_processes_take_the_same_run(fake):
    task, folder = fake("sys.exit(143)")
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(runs.Stopped):
            runs.advance(task, 10, folder, None)
        assert not (folder / "fit.log").exists()
        process.communicate("\n")
    with pytest.raises(runs.Stopped):
        runs.advance(task, 10, folder, None)
    assert (folder / "fit.log").exists()


def test_a_page_has_scores_published_ones_and_bars(two):
    rows = [
        {"task": "one", "algorithm": "a", "outcome": "done", "score": "470.0"},
        {"task": "one", "algorithm": "a", "outcome": "done", "score": "481.0", "gpu": "H100"},
        {
            "task": "two", "algorithm": "b", "outcome": "done", "score": "3.0",
            "learner_steps": "90", "cpu_seconds": "4.5",
        },
        {
            "task": "one", "algorithm": "b", "outcome": "failed", "score": "", "gpu": "",
            "seed": 11, "reason": "no memory", "learner_steps": "", "cpu_seconds": "12.5",
        },
    ]  # fmt: skip
    published = [
        {"task": "one", "algorithm": "dqn_5m_frames", "score": "17"},
    ]
    assert pages.section(two, rows, published) == (
        "3 of 6 runs are done, 1 failed. Training seeds 10, 11. 1 trained on H100. "
        "The CPU time of 1 other is known: 20 learner steps in a second of it (`learner_steps` by "
        "`cpu_seconds`).\n"
        "\n- `one b` seed 11 failed, and is in no figure: no memory\n\n"
        "| task | a | b | dqn 5m frames, published | bar | reached |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| `one` | 475.5 (470.0 to 481.0; 2) |  | 17 | 475 | 1 of 3 |\n"
        "| `two` |  | 3.0 (1) |  |  |  |\n"
    )


GAMES = {"Pong": (-20.7, 14.6), "Breakout": (1.7, 30.5)}
"""Random and human scores, which are 0 and 1 when normalised."""


@pytest.fixture
def games(tmp_path, monkeypatch) -> plan.Campaign:
    """A campaign of two games whose two seeds have normalised scores of 0, 1 and 1, 2."""
    monkeypatch.setattr(pages, "PUBLISHED", tmp_path / "published")
    tasks = "".join(f"  {game}: {{configs: [pong], bar: 0}}\n" for game in GAMES)
    head = "budget: None.\ncheckpoint: last\nseeds: [10, 11]\nalgorithms: {a: {}}\ntasks:\n"
    (tmp_path / "games.yaml").write_text(head + tasks)
    rows, curves, others = [], [], []
    for number, (game, (low, high)) in enumerate(GAMES.items()):
        named = {"task": game, "environment": f"ALE/{game}-v5"}
        for seed in (0, 1):
            score = low + (number + seed) * (high - low)
            run = {**named, "algorithm": "a", "seed": 10 + seed}
            rows.append({**run, "score": score})
            curves += [{**run, "frames": at, "return_mean": score} for at in (0, 400_000)]
        others += [
            {**named, "algorithm": name, "score": score}
            for name, score in (
                ("random", low),
                ("human", high),
                ("their_dqn", (high, low)[number]),
            )
        ]
    for name, lines in (("games", rows), ("games_curves", curves), ("published/games", others)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return plan.load("games", tmp_path)


def curves_of(home: Path) -> list[dict[str, str]]:
    return records.read_rows(home / "games_curves.csv")


def test_a_page_has_human_normalised_statistics_and_pictures(games, tmp_path):
    text, images = pages.evidence(games, curves_of(tmp_path), tmp_path)
    head, _, ours, theirs, means, *shown = text.strip().split("\n")
    assert head == "| human-normalised score | runs | IQM | median | mean | optimality gap |"
    # Runs 0, 1, 1, 2, of which the middle half counts; means of the games 0.5 and 1.5.
    assert re.sub(r" \[[^]]+\]", "", ours) == "| a | 4 | 1.000 | 1.000 | 1.000 | 0.250 |"
    assert ours.count("[") == 4
    assert theirs == "| their dqn | 2 means | 0.500 | 0.500 | 0.500 | 0.500 |"
    assert means == "| a, means of tasks | 2 means | 1.000 | 1.000 | 1.000 | 0.250 |"
    assert list(images) == [
        f"campaign_games_{what}.png" for what in ("scores", "profile", "curves")
    ]
    said, bands, *shown = [line for line in shown if line]
    assert said.startswith("With 2 runs a task these intervals are too narrow for 95 %")
    assert bands.startswith("With 2 seeds, bands hardly reach beyond the seeds' own curves")
    assert shown == [
        f"![{pages._CAPTIONS[what]}](images/campaign_games_{what}.png)"
        for what in ("scores", "profile", "curves")
    ]
    assert all(data.startswith(b"\x89PNG") for data in images.values())


def test_statistics_are_of_the_tasks_that_have_runs(games, tmp_path):
    lines = (tmp_path / "games.csv").read_text().splitlines()
    (tmp_path / "games.csv").write_text("\n".join(line for line in lines if "Pong" not in line))
    text, _ = pages.evidence(games, curves_of(tmp_path), tmp_path)
    said, _, _, _, *rows = text.strip().split("\n")
    assert said == "Over the 1 of 2 tasks that have runs:"
    assert [re.sub(r" \[[^]]+\]", "", row) for row in rows[:2]] == [
        "| a | 2 | 1.500 | 1.500 | 1.500 | 0.000 |",
        "| their dqn | 1 means | 0.000 | 0.000 | 0.000 | 1.000 |",
    ]


def test_dqn_stands_beside_what_its_authors_published():
    def rows(*cells: str) -> list[records.Row]:
        names = ("task", "algorithm", "score", "outcome")
        return [dict(zip(names, cell.split(), strict=False)) for cell in cells]

    published = rows(
        "Breakout dqn_1m_frames 9", "Breakout dqn_5m_frames 10", "Asterix dqn_1m_frames 12"
    )
    ours = rows(
        "Breakout dqn 14 done",
        "Breakout dqn 8 done",
        "Breakout dqn x failed",
        "Breakout iqn 24 done",
    )
    assert ": Breakout 11.0 (2 runs; published 9) ([all" in pages.beside_authors(ours, published)
    ours += rows("Asterix dqn 12.3 done", "Seaquest dqn 5 done")
    assert "9), Asterix 12.3 (1 run; published 12) ([" in pages.beside_authors(ours, published)


def test_a_page_has_no_statistics_if_every_run_failed(games, tmp_path):
    head, *rows = csv.reader((tmp_path / "games.csv").read_text().splitlines())
    place = head.index("score")
    failed = [[*row[:place], "", *row[place + 1 :]] for row in rows]
    with (tmp_path / "games.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *failed])
    assert list(pages.evidence(games, curves_of(tmp_path), tmp_path)[1]) == [
        "campaign_games_curves.png"
    ]


def test_runs_with_more_frames_have_a_picture_of_learning_curves_of_their_own():
    def curves(algorithm: str, frames: int) -> list[records.Row]:
        named = {"task": "Pong", "algorithm": algorithm, "seed": "10", "return_mean": "1"}
        return [{**named, "frames": str(at)} for at in (0, frames)]

    near = [*curves("a", 1_000_000), *curves("b", 2_000_000)]
    assert list(pictures.curves_pictures(near)) == ["curves"]
    found = pictures.curves_pictures([*near, *curves("c", 5_000_000)])
    assert found == {
        "curves": pictures.curves_pictures(near)["curves"],
        "long_curves": pictures.curves_pictures(curves("c", 5_000_000))["curves"],
    }


@pytest.mark.slow
def test_a_campaign_is_interrupted_and_goes_on_to_its_score(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "short.yaml").write_text("""
budget: A minute.
checkpoint: last
seeds: [10]
settings:
  trainer.max_steps: 60
  trainer.log_every_n_steps: 10
  data.evaluation.test_episodes: 3
  data.evaluation.episodes: 2
  actor_learner.eval_period_learner_steps: 20
  actor_learner.save_period_learner_steps: 20
  actor_learner.checkpoint_replay: true
tasks:
  cartpole: {configs: [cartpole_sync]}
""")
    campaign = plan.load("short", tmp_path)
    ((task, seed),) = campaign.runs()
    folder = records.folder_of(tmp_path, campaign, task, seed)
    half = Task(**{**vars(task), "settings": (*task.settings, "--trainer.max_steps=20")})
    with runs._locked(_made(folder) / "lock") as lock:  # as if it had been stopped after 20 steps
        runs._sit(half, seed, folder, None, lock, ())
    sittings = folder / "sittings.json"
    sittings.write_text(sittings.read_text().replace("done", "stopped"))
    command.next_runs([campaign], tmp_path, None)
    records.gather(campaign, tmp_path, tmp_path / "home")
    (row,) = records.read_rows(tmp_path / "home/short.csv")
    assert (row["outcome"], row["resumed"], row["sittings"]) == ("done", "exactly", "2")
    assert (row["learner_steps"], row["episodes"], row["checkpoint"]) == ("60", "3", "last")
    assert float(row["cpu_seconds"]) > 1.0
    curve = records.read_rows(tmp_path / "home/short_curves.csv")
    assert [point["learner_steps"] for point in curve] == ["20", "40", "60"]
    assert curve[-1]["env_steps"] == row["env_steps"]
    assert not list(folder.glob("runs/*/*/checkpoints/replay"))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _of_each_algorithm() -> list:
    first = {
        (name, task.algorithm): task
        for name in ("minatar", "atari100k", "pong")
        for task in reversed(plan.load(name).tasks)
    }
    return [pytest.param(task, id="-".join(key)) for key, task in first.items()]


@pytest.mark.slow
@pytest.mark.parametrize("task", _of_each_algorithm())
def test_the_settings_of_a_campaign_train(task: Task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    small = {
        "trainer.max_steps": 16, "trainer.log_every_n_steps": 8, "trainer.limit_train_batches": 2,
        "actor_learner.eval_period_learner_steps": 16, "data.evaluation.episodes": 1,
        "data.evaluation.max_frames_per_episode": 80, "model.updater": "eager",
    }  # fmt: skip
    if not task.algorithm.startswith("pqn"):
        small |= {"data.rate.warm_up_env_steps": 200, "data.replay.capacity": 2000}
    settings = ["--config", f"configs/{task.recipe}.yaml", *task.settings, *plan.options(small)]
    line = ["lrl", "fit", *settings, "--runs", str(tmp_path), "--trainer.enable_progress_bar=false"]
    monkeypatch.setattr(sys, "argv", line)
    assert not run_command(), capsys.readouterr().err
    summary = json.loads(next(tmp_path.glob("*/version_0/summary.json")).read_text())
    assert summary["learner_steps"] == 16
