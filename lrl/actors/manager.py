"""The actor manager: starts, watches, restarts and stops the background actors."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.handle import MAIN_GUARD, ActorHandle, ActorStatistics
from lrl.actors.process import ActorPlan, PolicyFactory, run_actor
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.transport import Channel, ChunkLayout, ChunkQueue
from lrl.types import EnvSpec

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_RESTART_WINDOW_SECONDS = 60.0


class ActorError(RuntimeError):
    """An actor failed and will not be restarted; the message holds its traceback."""


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
        self._handles: list[ActorHandle] = []
        self._error: ActorError | None = None
        self._continued_at = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start all actors and the thread that watches them.

        Raises:
            ActorError: Called while a child process imports the main script: it has no guard.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ActorError(
                f"actors cannot start while an actor imports the main module; {MAIN_GUARD}"
            )
        for actor in range(self.config.num_actors):
            slot = replace(self.first_slot, actor=actor)
            self._handles.append(self._launch(slot))
        self._thread = threading.Thread(target=self._watch, name="lrl-actor-manager", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the actors, if anything did."""
        if self._error is not None:
            raise self._error

    @property
    def processes(self) -> list[BaseProcess]:
        """The actor processes of the moment, by actor index."""
        return [handle.process for handle in self._handles]

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
        while time.monotonic() < deadline and any(w.process.is_alive() for w in self._handles):
            drain()
            wait([w.process.sentinel for w in self._handles if w.process.is_alive()], 0.02)
        for handle in self._handles:
            if handle.process.is_alive():
                _log.warning("actor %d did not stop in time and is killed", handle.slot.actor)
                handle.process.kill()
            handle.process.join()
            handle.ended_at = handle.ended_at or time.monotonic()
            handle.errors.close()
        drain()

    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did so far, by actor index."""
        return [handle.statistics() for handle in self._handles]

    def _request_stop(self) -> None:
        for handle in self._handles:
            handle.channel.request_stop()

    def _launch(self, slot: ActorSlot) -> ActorHandle:
        channel = Channel(self.layout, slot.actor, slot.incarnation)
        env_steps = sum(int(handle.total("env_steps")) for handle in self._handles)
        errors, child_errors = self._context.Pipe(duplex=False)
        plan = ActorPlan(
            slot, self.env, self.exploration, self.policy, channel.actor_end, child_errors,
            self.env_steps_offset + env_steps * slot.world_size,
        )  # fmt: skip
        process = self._context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=run_actor, args=(plan,), name=f"lrl-actor-{slot.actor}", daemon=True
        )
        launched_at = time.monotonic()
        try:
            with _interrupt_blocked():
                process.start()
        except (OSError, EOFError) as error:
            channel.close()
            errors.close()
            raise ActorError(
                f"actor {slot.actor} cannot be started: {error!r} (its own output may say more; "
                f"in a script: {MAIN_GUARD})"
            ) from error
        finally:
            child_errors.close()
        channel.started()
        self.queue.add(channel)
        return ActorHandle(slot, process, channel, errors, launched_at)

    def _watch(self) -> None:
        looked_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                alive = [w.process.sentinel for w in self._handles if w.ended_at is None]
                if alive:
                    wait(alive, self._seconds_until_restart())
                else:
                    self._stopping.wait(self._seconds_until_restart())
                now = time.monotonic()
                if now - looked_at > _POLL_SECONDS + self.config.timeout_seconds / 2:
                    self._continued_at = now  # Ctrl-Z and fg: nobody could make progress
                looked_at = now
                for index, handle in enumerate(self._handles):
                    if not self._stopping.is_set():
                        self._attend(index, handle)
        except ActorError as error:
            self._error = error
        except Exception as error:
            self._error = ActorError(f"the actor manager failed: {error!r}")
            self._error.__cause__ = error

    def _seconds_until_restart(self) -> float:
        due = [w.restart_at - time.monotonic() for w in self._handles if w.restart_at is not None]
        return max(0.02, min([_POLL_SECONDS, *due]))

    def _attend(self, index: int, handle: ActorHandle) -> None:
        now = time.monotonic()
        if handle.restart_at is not None:
            if now >= handle.restart_at and self._is_drained(handle):
                self._handles[index] = self._relaunch(handle)
        elif handle.process.exitcode is not None:
            self._bury(handle, handle.cause_of_death())
        elif now - self._last_progress(handle) > self.config.timeout_seconds:
            handle.process.kill()
            handle.process.join()
            self._bury(handle, f"made no progress for {self.config.timeout_seconds:g} s")

    def _is_drained(self, handle: ActorHandle) -> bool:
        """Return whether all rows of a dead actor arrived: newer ones of its streams must wait."""
        ledger = self.queue.ledger()
        return ledger[handle.slot.actor, handle.slot.incarnation].in_flight == 0

    def _last_progress(self, handle: ActorHandle) -> float:
        heartbeat = float(handle.channel.counters["heartbeat"])
        sign_of_life = heartbeat or handle.launched_at + self.config.timeout_seconds
        return max(sign_of_life, self._continued_at)

    def _bury(self, handle: ActorHandle, cause: str) -> None:
        now = handle.ended_at = time.monotonic()
        handle.process.join()
        self.queue.retire(handle.slot.actor, handle.slot.incarnation)
        handle.deaths.append(now)
        while handle.deaths[0] < now - _RESTART_WINDOW_SECONDS:
            handle.deaths.popleft()
        message = f"actor {handle.slot.actor} (pid {handle.process.pid}) {cause}"
        first_life = handle.slot.incarnation == self.first_slot.incarnation
        never_acted = first_life and handle.channel.counters["env_steps"] == 0
        if self.config.on_failure == "fail":
            raise ActorError(f"{message}\n(actors.on_failure is 'fail')")
        if never_acted and handle.process.exitcode == 1:
            raise ActorError(f"{message}\n(it failed before its first step: not restarted)")
        if len(handle.deaths) > self.config.max_restarts:
            raise ActorError(
                f"{message}\n(failed {len(handle.deaths)} times in {_RESTART_WINDOW_SECONDS:g} s; "
                f"actors.max_restarts is {self.config.max_restarts})"
            )
        delay = min(30.0, 0.1 * 2 ** (len(handle.deaths) - 1))
        handle.restart_at = now + delay
        _log.warning("%s; restart %d in %.1f s", message, len(handle.past) + 1, delay)

    def _relaunch(self, handle: ActorHandle) -> ActorHandle:
        assert handle.ended_at is not None
        handle.errors.close()
        fresh = self._launch(handle.slot.restarted())
        fresh.deaths = handle.deaths
        fresh.past = [*handle.past, (handle.channel, handle.ended_at - handle.launched_at)]
        self.restarts += 1
        return fresh


@contextlib.contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Let processes that are started ignore Ctrl-C from their first moment; they inherit the mask.

    It reaches the whole process group, and kills an interpreter that is still importing.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # started later, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context(start_method: str) -> BaseContext:
    methods = multiprocessing.get_all_start_methods()
    if start_method == "auto":
        start_method = "forkserver" if "forkserver" in methods else "spawn"
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        # The main module too: a script that imports Lightning would cost every actor seconds.
        context.set_forkserver_preload(["__main__", "lrl.actors.process", "lrl.actors.policy"])
    return context
