"""`lrl bench`: its table, its file, and what it refuses."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch
from helpers.command_line import Project, quiet_commands

from lrl.bench import acting, learner, replay, training, transport
from lrl.bench.command import _GROWING
from lrl.bench.measure import Measurement

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(project, monkeypatch, capsys):
    threads = torch.get_num_threads()
    yield functools.partial(project.call, monkeypatch, capsys, "bench")
    torch.set_num_threads(threads)


@pytest.fixture
def instant(monkeypatch):
    """Stands for the measuring itself, which each part's own tests look at; notes what is asked."""
    asked: list[Any] = []

    def measure(name: str, sides: dict[str, Any], *numbers: Any) -> list[Measurement]:
        asked.append((name, *numbers))
        return [Measurement(name, side, "ms", (1.0, 2.0)) for side in sides]

    def fill(rows: int, calls: int, spec: Any = replay.ATARI) -> list[Measurement]:
        asked.append((rows, calls, spec.frame_shape))
        sections = (f"replay of {rows}: {what}" for what in ("append", "sample 32, 1-step"))
        return [Measurement(section, "uniform", "per second", (3.0,)) for section in sections]

    def grow(sizes: tuple[int, ...], calls: int, spec: Any) -> list[Measurement]:
        asked.append((sizes, calls, spec.frame_shape))
        return [Measurement("growth", f"{rows} rows", "batches/s", (3.0,)) for rows in sizes]

    def send(rows: int) -> list[transport.Result]:
        asked.append(rows)
        return [transport.Result("to array", "rows", 5.0, 7.0)]

    monkeypatch.setattr(learner, "measure", measure)
    monkeypatch.setattr(replay, "measure", fill)
    monkeypatch.setattr(replay, "measure_growth", grow)
    monkeypatch.setattr(transport, "run", send)

    def train(workload: str, actors: int, envs: int, seconds: float) -> training.Run:
        asked.append((f"train {workload}", actors, envs))
        return training.Run(dict.fromkeys(training.FIGURES, 1.0), "actor-bound: more of them")

    monkeypatch.setattr(training, "run", train)
    monkeypatch.setattr(acting, "measure_side", lambda *_: {"steps/s": 9.0})
    return asked


def test_all_parts_are_measured(command, project, instant):
    code, out, err = command("--rounds", "2", "--json", "bench.json")
    assert (code, err) == (0, "")
    written = json.loads((project.folder / "bench.json").read_text())
    found = written["measurements"]
    assert {one["section"] for one in found if one["unit"] == "ms"} == set(learner.WORKLOADS)
    assert sum(one["section"].startswith("acting, ") for one in found) == 5 * 2
    assert [one["values"] for one in found if one["section"] == "transport"] == [[5.0, 5.0]]
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 * 7 + len(found)  # a table for each section
    assert written["machine"]["processor"] in out
    assert (written["machine"]["torch_threads"], written["rounds"], written["seconds"]) == (1, 2, 1)
    assert "torch_threads 1, rounds 2, seconds 1" in out.splitlines()[0]
    assert written["remarks"][0] == "cartpole, synchronous 8: actor-bound: more of them"
    assert out.splitlines()[-6:] == written["remarks"]
    rows = [asked[0] for asked in instant if isinstance(asked, tuple)]
    assert [one for one in rows if not isinstance(one, str)] == [100_000, _GROWING]


def test_sections_can_be_chosen(command, instant):
    code, out, _ = command("--sections", '["transport", "growth"]', "--seconds", "0.5")
    assert code == 0
    assert instant[:5] == [50_000] * 5
    assert instant[5:] == [(_GROWING, 150, (42, 42))]
    assert out.count("| growth |") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds is 0: it must be above 0"),
        (["--seconds", "-1"], "--seconds is -1.0: it must be above 0"),
        (["--sections", '["everything"]'], "sections"),
        (["--threads", "100000"], "--threads is 100000: it must be at most 1024"),
        (["--sections", "[]"], "--sections is empty: name some of learner, trainer"),
        (["--json", ""], "is a folder: name a file in it"),
        (["--json", "nowhere/bench.json"], "--json nowhere/bench.json: there is no folder nowhere"),
        (["--ckpt_path", "last"], "ckpt_path"),
    ],
)
def test_a_mistake_measures_nothing(command, instant, arguments, words):
    code, _, err = command(*arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not instant
