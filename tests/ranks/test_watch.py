"""A rank looks whether those live that it started, or the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.training_runs import environment_for_subprocess
from helpers.waiting import wait_for

from lrl.ranks.meeting import is_lost_connection
from lrl.ranks.watch import LostRankError, RankWatch, _how


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def trainer(*children: object) -> Any:
    return SimpleNamespace(strategy=SimpleNamespace(launcher=SimpleNamespace(procs=[*children])))


def test_a_killed_rank_is_named_to_a_run_that_asks(child):
    watch, run = RankWatch(), trainer(child)
    of_lightning = run.strategy.launcher.procs
    watch.watch_started(run)
    assert of_lightning == []  # whose watch would kill this process, too
    assert run.strategy.launcher.procs == [child]  # which it can still end
    watch.check()
    child.kill()
    wait_for(lambda: watch.lost, "what is known of it", seconds=10.0)
    with pytest.raises(LostRankError, match="rank 1 was killed by SIGKILL") as caught:
        watch.check()
    assert is_lost_connection(caught.value)
    assert watch.name() == "rank 1 was killed by SIGKILL"
    watch.stop()


def test_ranks_are_seen_off_and_one_that_does_not_end_is_ended(child, monkeypatch):
    monkeypatch.setattr("lrl.ranks.watch._END_SECONDS", 0.1)
    watch = RankWatch()
    watch.watch_started(trainer(child))
    watch.see_off()
    assert child.wait(10.0) == -signal.SIGKILL
    assert watch.lost == ""


def test_spawned_ranks_are_left_to_lightning():
    watch = RankWatch()
    watch.watch_started(trainer(SimpleNamespace()))
    assert watch._thread is None


FIRST = """
import os, subprocess, sys, time
from lrl.ranks.watch import rank_watch
rank_watch.watch_first()
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "LOCAL_RANK": "1"})
time.sleep(60)
"""
SECOND = """
import os, time
from lrl.ranks import watch
watch._GRACE_SECONDS = 0.1
watch.rank_watch.watch_first()
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_hangs_ends_with_the_one_that_started_it():
    environment = {k: v for k, v in environment_for_subprocess().items() if k != "LOCAL_RANK"}
    with subprocess.Popen(
        [sys.executable, "-c", FIRST, SECOND],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout is not None
        assert first.stderr is not None
        second = Path("/proc", first.stdout.readline().strip())
        first.kill()
        wait_for(lambda: not second.exists(), "the second's end", seconds=10.0)
        assert "lrl: error: rank 0 is gone, so that all ranks end" in first.stderr.read()


def test_an_ancestor_that_trained_is_not_the_first_rank(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")  # of torchrun, say
    monkeypatch.setenv("LRL_FIRST_RANK", str(os.getpid()))
    watch = RankWatch()
    watch.watch_first()
    assert watch._thread is None


@pytest.mark.parametrize("launcher", ["torchrun", "Lightning"])
def test_an_ancestor_that_has_ended_is_the_first_rank_but_under_torchrun(
    child, monkeypatch, launcher: str
):
    child.kill()
    child.wait()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LRL_FIRST_RANK", str(child.pid))
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "17")
    watch = RankWatch()
    try:
        watch.watch_first()
        assert (watch._thread is None) == (launcher == "torchrun")
        wait_for(lambda: watch.lost or launcher == "torchrun", "the end of the first one")
    finally:
        watch.stop()  # else it would end this process


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by SIGKILL"),
        (-35, "was killed by signal 35"),
        (3, "ended with exit code 3"),
    ],
)
def test_how_a_rank_ended(code: int, words: str):
    assert _how(code) == words
