"""However a run ends, nothing stays behind: no process, no thread, no shared memory."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import (
    actor_processes,
    background,
    environment_for_subprocess,
    make_run,
    process_group,
    quiet,
    shared_blocks,
    small_data,
)
from helpers.waiting import wait_for

from benchmark.leftovers import named_segments, segments_since
from lrl import ActorLearnerCallback

pytestmark = quiet
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class At(L.Callback):
    """Does something in one hook, at the fifth learner step where there are steps."""

    def __init__(self, hook: str, action: Any) -> None:
        def act(trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
            if "batch" not in hook or trainer.global_step == 5:
                action()

        setattr(self, hook, act)


def fail() -> None:
    raise ZeroDivisionError


@pytest.fixture
def handlers():
    """Lightning ignores Ctrl-C for good once there was one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def end_by(tmp_path: Path, hook: str, action: Any, expected: type[BaseException]) -> bool:
    """Let a run end in a hook; return whether it saved `last`."""
    blocks, threads = shared_blocks(), torch.get_num_threads()
    run = make_run(
        tmp_path,
        At(hook, action),
        ActorLearnerCallback(5, 10, 0),
        data=small_data(actors=background(2)),
    )
    with pytest.raises(expected):
        run.fit()
    assert actor_processes() == []
    assert torch.get_num_threads() == threads
    exists = run.checkpoint("last").exists()
    del run
    gc.collect()
    assert shared_blocks() == blocks
    return exists


@pytest.mark.parametrize(
    "hook",
    [
        "setup",
        "on_fit_start",
        "on_train_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_validation_start",
        "on_validation_end",
        "on_train_end",
        "teardown",
    ],
)
@linux
def test_an_exception_in_any_hook_stops_the_actors(janitor, tmp_path, hook):
    end_by(tmp_path, hook, fail, ZeroDivisionError)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_start"])
@linux
def test_a_signal_saves_last_and_stops_the_actors(janitor, handlers, tmp_path, number, hook):
    assert end_by(tmp_path, hook, lambda: os.kill(os.getpid(), number), SystemExit)


@linux
def test_a_finished_run_leaves_nothing(janitor, tmp_path):
    blocks = shared_blocks()
    make_run(tmp_path, data=small_data(actors=background(2))).fit()
    assert actor_processes() == []
    gc.collect()
    assert shared_blocks() == blocks


def start_script(folder: Path) -> subprocess.Popen[str]:
    """Start an endless training run in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.endless_run", str(folder)],
        env=environment_for_subprocess(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def assert_gone(process: subprocess.Popen[str], segments: frozenset[str]) -> None:
    wait_for(lambda: not process_group(process.pid), "all processes gone", seconds=5.0)
    assert segments_since(segments) == []


@linux
def test_a_killed_learner_leaves_nothing(tmp_path):
    segments = named_segments()
    process = start_script(tmp_path)
    try:
        wait_for((tmp_path / "ready").exists, "the first steps")
        assert len(process_group(process.pid)) >= 3  # the learner and two actors
        process.kill()
        assert process.wait(5) == -signal.SIGKILL
        assert_gone(process, segments)
    finally:
        for pid in process_group(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@linux
def test_a_run_ended_at_a_random_moment_leaves_nothing(tmp_path, number):
    """Also while the actors are starting. Ctrl-C reaches the whole group, as in a terminal."""
    segments = named_segments()
    process = start_script(tmp_path)
    try:
        wait_for((tmp_path / "setup").exists, "the set-up")
        time.sleep(random.random() * 4.0)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        code = process.wait(100)
        assert_gone(process, segments)
    finally:
        for pid in process_group(process.pid):
            os.kill(pid, signal.SIGKILL)
        output = process.communicate()[0]
    expected = {signal.SIGINT: 1, signal.SIGTERM: 0, signal.SIGKILL: -9}[number]
    assert code == expected, output
    # Killed between connecting and asking, a run leaves Python's fork server an empty request;
    # between asking and telling, a child that is told nothing. Each ends, too, with a traceback
    # that is Python's own.
    cut = ("in main\n    fds = reduction.recvfds", "preparation_data = reduction.pickle.load")
    cuts = sum(map(output.count, cut)) if number == signal.SIGKILL else 0
    assert output.count("Traceback") == cuts, output
