"""The actor manager with real processes that die, hang, or cannot start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.managed_actors import faulty
from helpers.training_runs import environment_for_subprocess
from helpers.waiting import wait_for

from lrl.actors.manager import ActorError
from lrl.testing import LedgerEnv
from lrl.types import RowKind


def test_killed_actor_comes_back_with_a_gap_and_others_go_on(learner, caplog):
    made = learner(num_actors=3)
    made.take_until(made.all_acted, "first steps")
    first = [process.pid for process in made.manager.processes]
    os.kill(first[1], signal.SIGKILL)
    before = [made.steps(actor) for actor in range(3)]
    made.take_until(lambda: made.steps(0) > before[0] + 100, "steps of a survivor")
    made.take_until(lambda: RowKind.GAP in made.column(1, "kind"), "rows of the restarted actor")
    assert made.manager.restarts == 1
    assert [s.restarts for s in made.manager.statistics()] == [0, 1, 0]
    assert [process.pid for process in made.manager.processes][::2] == first[::2]
    assert "actor 1 (pid" in caplog.text
    assert "killed by signal 9 (often the out-of-memory killer)" in caplog.text


def test_a_replaced_actor_is_told_how_far_the_run_is(learner, monkeypatch):
    """Actors of a cluster beside it, and those of other ranks, are taken to be as fast."""
    made = learner(num_actors=1)
    made.take_until(lambda: made.all_acted(20), "some steps")
    made.stop()
    (handle,) = made.manager._handles
    handle.slot = replace(handle.slot, num_actors=3, world_size=2)
    plans = []

    def start(*args: Any) -> None:
        plans.extend(args[-1])
        raise RuntimeError("no process")

    monkeypatch.setattr(made.manager, "_start_process", start)
    with pytest.raises(RuntimeError, match="no process"):
        made.manager._launch(0, handle)
    assert plans[0].env_steps_offset == made.steps(0) * 6 > 0


def test_rows_of_a_restarted_actor_never_mix_with_those_before(learner):
    """The old process leaves a full ring behind, which the learner has not looked at yet."""
    made = learner(num_actors=1, envs_per_actor=2)
    channel = made.manager._handles[0].channel
    wait_for(lambda: channel.counters["wait_seconds"] > 0, "a full ring")
    made.manager.processes[0].kill()
    wait_for(lambda: made.manager._handles[0].lives.deaths, "the death being seen")
    time.sleep(0.5)
    made.take_until(lambda: RowKind.GAP in made.column(0, "kind"), "a gap")
    made.take_until(lambda: made.steps(0) > 500, "more rows")
    instance = LedgerEnv.decode(made.column(0, "frame"))[:, 0]
    kind, stream = made.column(0, "kind"), made.column(0, "stream")
    for number in (0, 1):
        gaps = np.flatnonzero(kind[stream == number] == RowKind.GAP)
        assert len(gaps) == 1
        rows = instance[stream == number]
        assert len(set(rows[: gaps[0]])) == 1
        assert len(set(rows[gaps[0] + 1 :])) == 1
        assert rows[0] != rows[-1]  # a new seed
    assert len(instance) > 4 * 8 + 2


def test_statistics_sum_over_the_lives_of_an_actor(learner):
    began = time.monotonic()
    made = learner(num_actors=1)
    lives = []
    for restarts in (0, 1):
        started, before = time.monotonic(), (made.steps(0), made.episodes)
        enough = lambda b=before: made.steps(0) > b[0] + 200 and made.episodes > b[1] + 5  # noqa: E731
        made.take_until(enough, "steps and episodes")
        assert made.manager.restarts == restarts
        lives.append(time.monotonic() - started)
        if restarts == 0:
            os.kill(made.manager.processes[0].pid, signal.SIGKILL)
            made.take_until(lambda: made.manager.restarts == 1, "the replacement")
    made.stop()
    (statistics,) = made.manager.statistics()
    lost = 8 + 1  # a chunk that was never sent, and the step that was being counted
    assert made.steps(0) <= statistics.env_steps + 1 <= made.steps(0) + lost
    assert statistics.frames == statistics.env_steps
    assert made.episodes <= statistics.episodes + 1 <= made.episodes + lost
    assert sum(lives) <= statistics.seconds <= time.monotonic() - began
    assert statistics.restarts == 1


FAULTS = {
    "error": "RuntimeError: the ball is lost",
    "bad end": "RuntimeError: the ball is lost, and the court too",
    "exit": "SystemExit: the game gives up",
    "odd": "OddError: odd error with code 7",
    "silent": "SilentError: <exception str() failed>",
    "undecodable": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff",
    "unpicklable": "RuntimeError: ('this lock', <unlocked _thread.lock object",
    "giant": "and that was all",
    "interrupt": "KeyboardInterrupt",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_exception_ends_the_run_with_its_traceback(learner, fault):
    made = learner(faulty(fault=fault, actor=1), on_failure="fail")
    with pytest.raises(ActorError, match=r"actors\.on_failure is 'fail'") as caught:
        made.take_until(lambda: False, "the actor's exception")
    text = str(caught.value)
    assert "actor 1 (pid" in text
    assert FAULTS[fault] in text
    if fault != "giant":
        assert "in step" in text
        assert "Traceback (most recent call last)" in text
    made.drain()
    assert made.steps(1) > 50 - 8  # all but the chunk at hand were sent


def test_an_exception_is_logged_and_the_actor_restarted(learner, tmp_path, caplog):
    made = learner(faulty(once=str(tmp_path / "failed"), actor=0))
    made.take_until(lambda: made.steps(0) > 200, "steps after the restart")
    assert made.manager.restarts == 1
    assert "the ball is lost" in caplog.text
    assert re.search(r"restart 1 in 0\.[01] s", caplog.text)  # 0.0 after a second's life


def test_an_actor_that_vanishes_is_reported_by_its_exit_code(learner):
    made = learner(faulty(fault="vanish"), on_failure="fail")
    with pytest.raises(ActorError, match="exited with code 3"):
        made.take_until(lambda: False, "the actor's end")


def test_a_crash_loop_ends(learner):
    made = learner(faulty(after=5), max_restarts=2, num_actors=1)
    with pytest.raises(ActorError, match=r"failed 3 times in 60 s; actors.max_restarts is 2"):
        made.take_until(lambda: False, "the end of the crash loop")
    assert made.manager.restarts == 2


@pytest.mark.parametrize("where", ["init", "reset"])
def test_an_environment_that_never_works_is_not_tried_again(learner, where):
    made = learner(faulty(where=where))
    with pytest.raises(ActorError, match="failed before its first step: not restarted") as caught:
        made.take_until(lambda: False, "the actor's exception")
    assert "the ball is lost" in str(caught.value)
    assert made.manager.restarts == 0


@pytest.mark.parametrize(
    ("fault", "where"), [("hung close", "step"), ("thread that goes on", "reset")]
)
def test_the_error_of_an_actor_that_does_not_end_by_it_is_told(learner, monkeypatch, fault, where):
    monkeypatch.setattr("lrl.processes.supervised_process._END_SECONDS", 3.0)
    settings = {"timeout_seconds": 1.0, "max_restarts": 0, "num_actors": 1}  # no progress after 1 s
    made = learner(faulty(where=where, fault=fault), **settings)
    with pytest.raises(ActorError, match="the ball is lost for ever") as caught:
        made.take_until(lambda: False, "the actor's exception")
    assert ("failed before its first step: not restarted" in str(caught.value)) == (
        where == "reset"
    )


def test_a_hung_actor_is_replaced(learner, caplog):
    made = learner(timeout_seconds=2.0)
    made.take_until(made.all_acted, "first steps")
    stopped = made.manager.processes[0]
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    made.take_until(lambda: made.manager.restarts == 1, "the replacement")
    made.take_until(lambda: RowKind.GAP in made.column(0, "kind"), "its rows")
    assert not stopped.is_alive()
    assert "made no progress for 2 s" in caplog.text


def test_a_blocked_actor_is_not_taken_for_a_hung_one(learner):
    made = learner(timeout_seconds=1.0, num_actors=1)
    channel = made.manager._handles[0].channel
    wait_for(lambda: channel.counters["wait_seconds"] > 2.0, "the timeout passing twice")
    assert made.manager.restarts == 0
    made.take_until(lambda: made.steps(0) > 100, "more rows")


SCRIPT = """
    import contextlib
    import queue
    import sys
    from pathlib import Path

    import numpy as np

    from lrl.actors.actor import BehaviourPolicy, Decision
    from lrl.actors.config import ActorConfig
    from lrl.actors.exploration import EpsilonGreedy
    from lrl.actors.manager import ActorManager
    from lrl.actors.slot import ActorSlot
    from lrl.envs import EnvConfig, make_spec
    from lrl.transport import ChunkQueue

    class Zeros(BehaviourPolicy):
        def __call__(self, observation, memory=None):
            return Decision(np.zeros((len(observation), 4), np.float32), 0)

        @staticmethod
        def of(actor):
            return Zeros()

        def build(self, slots, pulse):
            return [Zeros()]

    def main():
        env = EnvConfig(id="lrl/Identity-v0")
        chunks = ChunkQueue()
        config = ActorConfig(num_actors=1, timeout_seconds=2.0, start_method=sys.argv[1])
        manager = ActorManager(
            config, env, make_spec(env), EpsilonGreedy(), Zeros.of, chunks, ActorSlot(0)
        )
        manager.start()
        ready, enough = Path("ready"), Path("enough")
        while not enough.exists():
            manager.check()
            with contextlib.suppress(queue.Empty):
                chunks.get(0.1).release()
                ready.touch()
        manager.stop()
        print("restarts:", manager.restarts)

"""


def start_script(folder: Path, ending: str, start_method: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT) + ending)
    return subprocess.Popen(
        [sys.executable, script, start_method],
        cwd=folder,
        env=environment_for_subprocess(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_script_without_a_main_guard_is_told_so(tmp_path, start_method):
    process = start_script(tmp_path, "main()\n", start_method)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    (line,) = output.splitlines()
    assert line.startswith("lrl: error: line ")
    assert "put the script's work under `if __name__ == '__main__':`" in line


def test_a_condition_that_is_no_guard_is_found_by_the_first_actor(tmp_path):
    process = start_script(tmp_path, "if sys.argv:\n    main()\n", "forkserver")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    message = next(line for line in output.splitlines() if "ActorError: actor 0" in line)
    assert "put the script's work under `if __name__ == '__main__':`" in message
    assert output.count("Traceback") == 1


@pytest.mark.slow
def test_a_suspended_run_goes_on_with_the_same_actors(tmp_path):
    """Ctrl-Z stops the whole group for longer than an actor may make no progress."""
    process = start_script(tmp_path, 'if __name__ == "__main__":\n    main()\n', "forkserver")
    wait_for((tmp_path / "ready").exists, "the first rows")
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(4.0)
    (tmp_path / "ready").unlink()
    os.killpg(process.pid, signal.SIGCONT)
    wait_for((tmp_path / "ready").exists, "more rows")
    time.sleep(1.0)
    (tmp_path / "enough").touch()
    output, _ = process.communicate(timeout=200)
    assert output.splitlines()[-1] == "restarts: 0", output
