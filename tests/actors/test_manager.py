"""The actor manager with real processes: start, watch, restart, stop."""

from __future__ import annotations

import functools
import os
import queue
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.odd_envs import Witness
from helpers.training_runs import environment_for_subprocess, wait_for

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy, EpsilonSpread, Exploration
from lrl.actors.manager import ActorError, ActorManager
from lrl.actors.policy import LocalPolicyFactory
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_spec
from lrl.envs.toy import Ledger
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.networks.q_network import vector_size, write_vector
from lrl.recipe import Recipe
from lrl.schedules import Constant
from lrl.transport import ChunkQueue, WeightStore
from lrl.types import RowKind, Rows

VERSION = 7
LEDGER = EnvConfig(id="lrl/Ledger-v0")


def faulty(**kwargs: Any) -> EnvConfig:
    return EnvConfig(id="helpers.odd_envs:Faulty-v0", kwargs=kwargs)


class Learner:
    """A manager with what it needs, and all rows that were taken, by actor and in their order."""

    def __init__(
        self, config: ActorConfig, env: EnvConfig, exploration: Exploration | None = None
    ) -> None:
        spec = make_spec(env)
        encoder = Recipe.of(functools.partial(MLPEncoder, hidden_sizes=(8,)))
        recipe = NetworkRecipe(spec, encoder, Recipe.of(ScalarHead))
        self.network = recipe.build()
        self.store = WeightStore(vector_size(self.network))
        vector = torch.empty(vector_size(self.network))
        write_vector(self.network, vector)
        self.store.publish(vector.numpy(), VERSION)
        self.queue = ChunkQueue()
        self.slot = ActorSlot(3, num_actors=config.num_actors, envs_per_actor=config.envs_per_actor)
        self.manager = ActorManager(
            config,
            env,
            spec,
            exploration or EpsilonGreedy(Constant(0.5)),
            LocalPolicyFactory(recipe, self.store),
            self.queue,
            self.slot,
        )
        self.rows: dict[int, list[Rows]] = {actor: [] for actor in range(config.num_actors)}
        self.episodes = 0

    def take(self, timeout: float = 0.0) -> bool:
        try:
            chunk = self.queue.get(timeout)
        except queue.Empty:
            return False
        with chunk:
            copies = {name: column.copy() for name, column in vars(chunk.rows).items()}
        self.rows[chunk.actor].append(Rows(**copies))
        self.episodes += len(chunk.episode_return)
        return True

    def drain(self) -> None:
        while self.take():
            pass

    def take_until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
            self.take(0.05)
            self.manager.check()

    def column(self, actor: int, name: str) -> np.ndarray:
        parts = [getattr(rows, name) for rows in self.rows[actor]]
        return np.concatenate(parts) if parts else np.empty(0)

    def steps(self, actor: int) -> int:
        return sum(int((rows.kind == RowKind.STEP).sum()) for rows in self.rows[actor])

    def all_acted(self, steps: int = 1) -> bool:
        return all(self.steps(actor) >= steps for actor in self.rows)

    def stop(self) -> None:
        self.manager.stop(drain=self.drain)


@pytest.fixture
def learner():
    made: list[Learner] = []

    def make(
        env: EnvConfig = LEDGER, exploration: Exploration | None = None, **config: Any
    ) -> Learner:
        settings = {"num_actors": 2, "envs_per_actor": 1, "chunk_rows": 8, **config}
        made.append(Learner(ActorConfig(**settings), env, exploration))
        made[-1].manager.start()
        return made[-1]

    yield make
    for one in made:
        one.stop()
        one.queue.close()
        assert not any(process.is_alive() for process in one.manager.processes)


@pytest.mark.parametrize(("start_method", "actors"), [("forkserver", 3), ("spawn", 2)])
def test_actors_start_as_they_are_told(learner, monkeypatch, start_method, actors):
    monkeypatch.setenv("RANK", "1")
    made = learner(
        EnvConfig(id="helpers.odd_envs:Witness-v0"),
        EpsilonSpread(0.0, 1.0),
        num_actors=actors,
        envs_per_actor=2,
        start_method=start_method,
    )
    made.take_until(lambda: made.all_acted(60), "60 steps of each actor")
    epsilons = np.linspace(0.0, 1.0, 2 * actors)
    for actor in range(actors):
        frames = made.column(actor, "frame")
        facts = dict(zip(Witness.FACTS, frames[0], strict=True))
        assert facts == {
            "actor": actor,
            "threads": 1,
            "gpu_hidden": 1,
            "interrupt_ignored": 1,
            "interrupt_blocked": 1,  # so it was ignored from the first moment
            "rank_hidden": 1,
            "lightning": 0,
        }
        assert set(made.column(actor, "stream")) == {2 * actor, 2 * actor + 1}
        assert set(made.column(actor, "policy_version")) == {VERSION}
        seeds = ActorSlot(3, actor=actor, num_actors=actors, envs_per_actor=2).env_seeds()
        assert list(made.column(actor, "reward")[:2]) == [seed % 2**20 for seed in seeds]
        with torch.no_grad():
            greedy = made.network.q_values(torch.from_numpy(frames)).argmax(1).numpy()
        different = (made.column(actor, "action") != greedy).reshape(-1, 2).mean(axis=0)
        expected = 0.75 * epsilons[2 * actor : 2 * actor + 2]  # 1 of 4 random actions is greedy
        np.testing.assert_allclose(different, expected, atol=0.25)  # 5 standard deviations
        assert actor > 0 or different[0] == 0


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


def test_rows_of_a_restarted_actor_never_mix_with_those_before(learner):
    """The old process leaves a full ring behind, which the learner has not looked at yet."""
    made = learner(num_actors=1, envs_per_actor=2)
    channel = made.manager._handles[0].channel
    wait_for(lambda: channel.counters["wait_seconds"] > 0, "a full ring")
    made.manager.processes[0].kill()
    wait_for(lambda: made.manager._handles[0].deaths, "the death being seen")
    time.sleep(0.5)
    made.take_until(lambda: RowKind.GAP in made.column(0, "kind"), "a gap")
    made.take_until(lambda: made.steps(0) > 500, "more rows")
    instance = Ledger.decode(made.column(0, "frame"))[:, 0]
    kind, stream = made.column(0, "kind"), made.column(0, "stream")
    for number in (0, 1):
        gaps = np.flatnonzero(kind[stream == number] == RowKind.GAP)
        assert len(gaps) == 1
        rows = instance[stream == number]
        assert len(set(rows[: gaps[0]])) == 1
        assert len(set(rows[gaps[0] + 1 :])) == 1
        assert rows[0] != rows[-1]  # a new seed
    assert len(instance) > 4 * 8 + 2


FAULTS = {
    "error": "RuntimeError: the ball is lost",
    "exit": "SystemExit: the game gives up",
    "odd": "OddError: odd error with code 7",
    "silent": "SilentError: <exception str() failed>",
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
    assert made.steps(1) > 50 - 8  # all but the chunk at hand were sent


def test_an_exception_is_logged_and_the_actor_restarted(learner, tmp_path, caplog):
    made = learner(faulty(once=str(tmp_path / "failed"), actor=0))
    made.take_until(lambda: made.steps(0) > 200, "steps after the restart")
    assert made.manager.restarts == 1
    assert "the ball is lost" in caplog.text
    assert "restart 1 in 0.1 s" in caplog.text


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


def test_a_stalled_learner_blocks_actors_and_loses_nothing(learner):
    made = learner(num_actors=2, chunks_per_actor=3)
    channels = [handle.channel for handle in made.manager._handles]
    wait_for(lambda: all(c.counters["wait_seconds"] > 0 for c in channels), "full rings")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    time.sleep(0.3)
    assert [c.counters["rows_produced"] for c in channels] == [3 * 8, 3 * 8]
    assert made.queue.fill == 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 5_000  # kB
    made.take_until(lambda: made.all_acted(500), "all actors going on")
    made.stop()
    totals = made.queue.totals()
    assert totals.received == totals.produced
    for actor in range(2):
        _assert_contiguous(made, actor)


def _assert_contiguous(made: Learner, actor: int) -> None:
    """Every row of the one environment is there once: its episodes and steps count up."""
    acted = made.column(actor, "kind") == RowKind.STEP
    _, episode, step = Ledger.decode(made.column(actor, "frame")).T
    previous = (0, -1)
    for position, is_step in zip(zip(episode, step, strict=True), acted, strict=True):
        following = {(previous[0], previous[1] + 1)} | (
            {(previous[0] + 1, 0)} if is_step else set()
        )
        assert position in following
        previous = position


def test_statistics_sum_up_to_what_was_received(learner):
    made = learner(num_actors=2, envs_per_actor=3)
    made.take_until(lambda: made.all_acted(100), "some rows")
    made.stop()
    statistics = made.manager.statistics()
    assert [one.actor for one in statistics] == [0, 1]
    assert [one.env_steps for one in statistics] == [made.steps(0), made.steps(1)]
    assert sum(one.frames for one in statistics) == made.steps(0) + made.steps(1)
    assert sum(one.episodes for one in statistics) == made.episodes > 0
    for one in statistics:
        assert one.env_steps_per_second == pytest.approx(one.env_steps / one.seconds)
        assert 0.0 <= one.wait_seconds < one.seconds


def test_stop_ends_blocked_actors_without_a_loss(learner, caplog):
    made = learner(num_actors=2)
    channels = [handle.channel for handle in made.manager._handles]
    wait_for(lambda: all(c.counters["wait_seconds"] > 0 for c in channels), "full rings")
    made.stop()
    assert [process.exitcode for process in made.manager.processes] == [0, 0]
    totals = made.queue.totals()
    assert totals.received == totals.produced > 0
    assert not caplog.records
    made.stop()  # idempotent


def test_stop_kills_actors_that_are_still_starting(learner, caplog):
    made = learner(faulty(fault="hang", where="init"), num_actors=2)
    made.manager.stop(timeout=0.3)
    assert [process.exitcode for process in made.manager.processes] == [-9, -9]
    assert "actor 1 did not stop in time and is killed" in caplog.text


def test_stop_during_a_restart_leaves_no_actor(learner, tmp_path):
    made = learner(faulty(after=3), num_actors=4, max_restarts=100)
    made.take_until(lambda: made.manager.restarts > 3, "restarts")
    made.stop()
    assert not any(process.is_alive() for process in made.manager.processes)


SCRIPT = """
    import contextlib
    import queue
    import sys
    from pathlib import Path

    import numpy as np

    from lrl.actors.config import ActorConfig
    from lrl.actors.exploration import EpsilonGreedy
    from lrl.actors.manager import ActorManager
    from lrl.actors.slot import ActorSlot
    from lrl.envs import EnvConfig, make_spec
    from lrl.transport import ChunkQueue

    class Zeros:
        def build(self):
            return lambda observation: (np.zeros((len(observation), 4), np.float32), 0)

    def main():
        env = EnvConfig(id="lrl/Identity-v0")
        chunks = ChunkQueue()
        config = ActorConfig(num_actors=1, timeout_seconds=2.0, start_method=sys.argv[1])
        manager = ActorManager(
            config, env, make_spec(env), EpsilonGreedy(), Zeros(), chunks, ActorSlot(0)
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
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    message = next(line for line in output.splitlines() if "ActorError: actor 0" in line)
    assert "put the script's work under `if __name__ == '__main__':`" in message


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
    output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1] == "restarts: 0", output
