"""The actor manager: starts, watches, restarts and stops the background actors."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.process import ActorPlan, PolicyFactory, run_actor
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.transport import Channel, ChunkLayout, ChunkQueue
from lrl.types import EnvSpec

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_RESTART_WINDOW_SECONDS = 60.0
_GUARD = "put the script's work under `if __name__ == '__main__':`"


class ActorError(RuntimeError):
    """An actor failed and will not be restarted; the message holds its traceback."""


@dataclass(frozen=True)
class ActorStatistics:
    """What one actor did over all its incarnations."""

    actor: int
    env_steps: int
    frames: int
    episodes: int
    seconds: float
    wait_seconds: float
    restarts: int

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps per second of life, waiting included."""
        return self.env_steps / self.seconds if self.seconds > 0 else 0.0


@dataclass
class _Worker:
    """One actor's process of the moment, and what is kept over its restarts."""

    slot: ActorSlot
    process: BaseProcess
    channel: Channel
    errors: Connection
    launched_at: float
    ended_at: float | None = None
    restart_at: float | None = None
    deaths: deque[float] = field(default_factory=deque)
    past: list[tuple[Channel, float]] = field(default_factory=list)


class ActorManager:
    """Owns the actor processes of one rank; a thread watches them.

    Created by the datamodule, started by the dataset at its first batch. The learner calls `check`
    while it waits, which raises what the watching thread found. `stop` is bounded and idempotent.

    Args:
        config: Number of actors and what to do when one fails.
        env: Environment that every actor builds for itself.
        spec: What the environment looks like, for the layout of chunks.
        exploration: How actors explore.
        policy: Builds the behaviour policy in the actor process.
        queue: Receives each actor's channel.
        slot: The first actor's slot; the others differ in their index.
        env_steps_offset: Environment steps of the whole run so far (after a resume).
    """

    def __init__(
        self,
        config: ActorConfig,
        env: EnvConfig,
        spec: EnvSpec,
        exploration: Exploration,
        policy: PolicyFactory,
        queue: ChunkQueue,
        slot: ActorSlot,
        env_steps_offset: int = 0,
    ) -> None:
        self.config = config
        self.env = env
        self.exploration = exploration
        self.policy = policy
        self.queue = queue
        self.first_slot = slot
        self.env_steps_offset = env_steps_offset
        self.layout = ChunkLayout(spec, config.chunk_rows, config.chunks_per_actor)
        self.restarts = 0
        self._context = _context(config.start_method)
        self._workers: list[_Worker] = []
        self._error: ActorError | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start all actors and the thread that watches them.

        Raises:
            ActorError: Called while a child process imports the main script: it has no guard.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ActorError(
                f"actors cannot start while an actor imports the main module; {_GUARD}"
            )
        for actor in range(self.config.num_actors):
            slot = ActorSlot(**{**vars(self.first_slot), "actor": actor})
            self._workers.append(self._launch(slot))
        self._thread = threading.Thread(target=self._watch, name="lrl-actor-manager", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the actors, if anything did."""
        if self._error is not None:
            raise self._error

    @property
    def processes(self) -> list[BaseProcess]:
        """The actor processes of the moment, by actor index."""
        return [worker.process for worker in self._workers]

    def stop(self, drain: Callable[[], object] = lambda: None, timeout: float = 5.0) -> None:
        """Ask all actors to finish, take their last rows, and end those that do not obey.

        Args:
            drain: Called repeatedly while waiting; empties the queue so that no actor is blocked.
            timeout: Seconds before actors are killed.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        deadline = time.monotonic() + timeout
        self._request_stop()
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            drain()
            self._thread.join(0.02)
        self._request_stop()  # the thread may have been in the middle of a restart
        while time.monotonic() < deadline and any(w.process.is_alive() for w in self._workers):
            drain()
            wait([w.process.sentinel for w in self._workers if w.process.is_alive()], 0.02)
        for worker in self._workers:
            if worker.process.is_alive():
                _log.warning("actor %d did not stop in time and is killed", worker.slot.actor)
                worker.process.kill()
            worker.process.join()
            worker.ended_at = worker.ended_at or time.monotonic()
            worker.errors.close()
        drain()

    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did so far, by actor index."""
        return [_statistics(worker) for worker in self._workers]

    def _request_stop(self) -> None:
        for worker in self._workers:
            worker.channel.request_stop()

    def _launch(self, slot: ActorSlot) -> _Worker:
        channel = Channel(self.layout, slot.actor, slot.incarnation)
        errors, child_errors = self._context.Pipe(duplex=False)
        plan = ActorPlan(
            slot, self.env, self.exploration, self.policy, channel.actor_end, child_errors,
            self.env_steps_offset,
        )  # fmt: skip
        process = self._context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=run_actor, args=(plan,), name=f"lrl-actor-{slot.actor}", daemon=True
        )
        launched_at = time.monotonic()
        process.start()
        child_errors.close()
        channel.started()
        self.queue.add(channel)
        return _Worker(slot, process, channel, errors, launched_at)

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                alive = [w.process.sentinel for w in self._workers if w.ended_at is None]
                if alive:
                    wait(alive, self._seconds_until_restart())
                else:
                    self._stopping.wait(self._seconds_until_restart())
                for index, worker in enumerate(self._workers):
                    if not self._stopping.is_set():
                        self._attend(index, worker)
        except ActorError as error:
            self._error = error
        except Exception as error:
            self._error = ActorError(f"the actor manager failed: {error!r}")
            self._error.__cause__ = error

    def _seconds_until_restart(self) -> float:
        due = [w.restart_at - time.monotonic() for w in self._workers if w.restart_at is not None]
        return max(0.02, min([_POLL_SECONDS, *due]))

    def _attend(self, index: int, worker: _Worker) -> None:
        now = time.monotonic()
        if worker.restart_at is not None:
            if now >= worker.restart_at and self._is_drained(worker):
                self._workers[index] = self._relaunch(worker)
        elif worker.process.exitcode is not None:
            self._bury(worker, _cause_of_death(worker))
        elif now - self._last_progress(worker) > self.config.timeout_seconds:
            worker.process.kill()
            worker.process.join()
            self._bury(worker, f"made no progress for {self.config.timeout_seconds:g} s")

    def _is_drained(self, worker: _Worker) -> bool:
        """Return whether all rows of a dead actor arrived: newer ones of its streams must wait."""
        ledger = self.queue.ledger()
        return ledger[worker.slot.actor, worker.slot.incarnation].in_flight == 0

    def _last_progress(self, worker: _Worker) -> float:
        heartbeat = float(worker.channel.counters["heartbeat"])
        return heartbeat if heartbeat > 0 else worker.launched_at + self.config.timeout_seconds

    def _bury(self, worker: _Worker, cause: str) -> None:
        now = worker.ended_at = time.monotonic()
        worker.process.join()
        self.queue.retire(worker.slot.actor, worker.slot.incarnation)
        worker.deaths.append(now)
        while worker.deaths[0] < now - _RESTART_WINDOW_SECONDS:
            worker.deaths.popleft()
        message = f"actor {worker.slot.actor} (pid {worker.process.pid}) {cause}"
        never_acted = worker.slot.incarnation == 0 and worker.channel.counters["env_steps"] == 0
        if self.config.on_failure == "fail":
            raise ActorError(f"{message}\n(actors.on_failure is 'fail')")
        if never_acted and worker.process.exitcode == 1:
            raise ActorError(f"{message}\n(it failed before its first step: not restarted)")
        if len(worker.deaths) > self.config.max_restarts:
            raise ActorError(
                f"{message}\n(failed {len(worker.deaths)} times in {_RESTART_WINDOW_SECONDS:g} s; "
                f"actors.max_restarts is {self.config.max_restarts})"
            )
        delay = min(30.0, 0.1 * 2 ** (len(worker.deaths) - 1))
        worker.restart_at = now + delay
        _log.warning("%s; restart %d in %.1f s", message, worker.slot.incarnation + 1, delay)

    def _relaunch(self, worker: _Worker) -> _Worker:
        assert worker.ended_at is not None
        worker.errors.close()
        fresh = self._launch(worker.slot.restarted())
        fresh.deaths = worker.deaths
        fresh.past = [*worker.past, (worker.channel, worker.ended_at - worker.launched_at)]
        self.restarts += 1
        return fresh


def _context(start_method: str) -> BaseContext:
    methods = multiprocessing.get_all_start_methods()
    if start_method == "auto":
        start_method = "forkserver" if "forkserver" in methods else "spawn"
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        # The main module too: a script that imports Lightning would cost every actor seconds.
        context.set_forkserver_preload(["__main__", "lrl.actors.process", "lrl.actors.policy"])
    return context


def _cause_of_death(worker: _Worker) -> str:
    traceback = ""
    with contextlib.suppress(EOFError, OSError):
        if worker.errors.poll():
            traceback = worker.errors.recv_bytes().decode(errors="replace")
    if traceback:
        return f"failed:\n{traceback}"
    code = worker.process.exitcode
    if code == 1 and not worker.channel.counters["started"]:
        return f"ended while it was starting; its own output says why (in a script: {_GUARD})"
    if code is not None and code < 0:
        hint = " (often the out-of-memory killer)" if code == -9 else ""
        return f"was killed by signal {-code}{hint}"
    return f"exited with code {code}"


def _statistics(worker: _Worker) -> ActorStatistics:
    end = worker.ended_at or time.monotonic()
    lives = [*worker.past, (worker.channel, end - worker.launched_at)]

    def total(name: str) -> float:
        return sum(float(channel.counters[name]) for channel, _ in lives)

    return ActorStatistics(
        actor=worker.slot.actor,
        env_steps=int(total("env_steps")),
        frames=int(total("frames")),
        episodes=int(total("episodes")),
        seconds=sum(seconds for _, seconds in lives),
        wait_seconds=total("wait_seconds"),
        restarts=worker.slot.incarnation,
    )
