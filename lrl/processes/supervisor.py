"""Child processes that are watched and restarted: actors, inference servers, the evaluator."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from lrl.processes import helpers
from lrl.processes.child import run_with_stacks
from lrl.processes.main_module import MAIN_GUARD, check_main_guard, without_missing_main
from lrl.processes.supervised_process import Lives, SupervisedProcess, end
from lrl.types import ConfigError

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5


class HasSection(Protocol):
    """Settings that are a section of `data`."""

    section: ClassVar[str]


class SupervisedConfig(HasSection, Protocol):
    """What happens when a process fails: settings that actors and inference servers both have.

    Their configurations have no common base class, because to jsonargparse a dataclass with one is
    a choice of subclasses.
    """

    @property
    def on_failure(self) -> Literal["restart", "fail"]:
        """What to do when one dies or hangs."""
        ...

    @property
    def max_restarts(self) -> int:
        """Restarts of one within any 60 seconds before the run ends; or in a row at its start."""
        ...

    @property
    def timeout_seconds(self) -> float:
        """One that makes no progress for so long is killed; a start has twice as long, or more."""
        ...


def check_supervision(config: SupervisedConfig) -> None:
    """Check the ranges of what happens when a process fails."""
    check_at_least(config, max_restarts=0)
    if config.on_failure not in ("restart", "fail"):
        raise ConfigError(
            f"{config.section}.on_failure must be 'restart' or 'fail', got {config.on_failure!r}"
        )
    if not config.timeout_seconds >= 1:
        raise ConfigError(
            f"{config.section}.timeout_seconds must be at least 1 (signs of life come every 0.1 "
            f"s), got {config.timeout_seconds}"
        )


def refusal(lives: Lives, limits: SupervisedConfig, hopeless: str | None) -> str:
    """Say why there is no restart after a death; empty if there is one.

    Args:
        lives: The deaths.
        limits: How many may be.
        hopeless: Why the next life would end as this one; None if it need not.
    """
    if limits.on_failure == "fail":
        return f"{limits.section}.on_failure is 'fail'"
    if hopeless:
        return f"{hopeless}: not restarted"
    if failures := lives.exhausted(limits.max_restarts):
        return f"{failures}; {limits.section}.max_restarts is {limits.max_restarts}"
    return ""


def check_at_least(config: HasSection, **minima: int) -> None:
    """Check that settings are not below their minima."""
    for name, minimum in minima.items():
        value = getattr(config, name)
        if value < minimum:
            raise ConfigError(f"{config.section}.{name} must be at least {minimum}, got {value}")


H = TypeVar("H", bound=SupervisedProcess)


class Supervisor(ABC, Generic[H]):
    """Starts processes, restarts those that die or hang, and stops all; a thread watches them.

    Lives in the learner process, which calls `check` while it waits: that raises what the watching
    thread found. `stop` is bounded and idempotent.

    Args:
        config: What to do when a process fails.
        count: Number of processes.
    """

    error: type[RuntimeError]
    """What `check` raises."""

    def __init__(self, config: SupervisedConfig, count: int) -> None:
        self.restarts = 0
        self._limits = config
        self._count = count
        self._handles: list[H] = []
        self._error: RuntimeError | None = None
        self._continued_at = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _launch(self, index: int, previous: H | None) -> H:
        """Start a process, the first of its index or the one after `previous`."""

    @abstractmethod
    def _heartbeat(self, handle: H) -> float:
        """Return `time.monotonic()` of the last sign of life, 0 before the first."""

    def _is_starting(self, handle: H) -> bool:
        """Return whether a process has not come so far as to do its work."""
        return not self._heartbeat(handle)

    @abstractmethod
    def _request_stop(self) -> None:
        """Ask all processes to finish; never blocks."""

    def _after_death(self, handle: H) -> None:
        """Settle what the dead process left behind."""

    def _reason_to_give_up(self, handle: H) -> str | None:
        """Say why a dead process is not worth a restart; None if it is."""
        return None

    def _signs(self, handle: H) -> list[Any]:
        """Return what the thread waits for: the process's end, and whatever `_listen` takes."""
        return [handle.process.sentinel]

    def _listen(self, handle: H) -> None:
        """Take what a process has to say; called whenever the thread wakes, and at the end."""
        handle.take_traceback()

    def start(self) -> None:
        """Start all processes and the thread that watches them.

        Raises:
            SystemExit: The script that starts them would do so again in each of them.
        """
        check_main_guard()
        for index in range(self._count):
            self._handles.append(self._launch(index, None))
        name = f"lrl-{type(self).__name__}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the processes, if anything did."""
        if self._error is not None:
            raise self._error

    @property
    def processes(self) -> list[BaseProcess]:
        """The processes of the moment, by index."""
        return [handle.process for handle in self._handles]

    def stop(self, drain: Callable[[], object] = lambda: None, timeout: float = 5.0) -> None:
        """Ask all processes to finish, and end those that do not obey.

        Args:
            drain: Called repeatedly while waiting, and once when all have ended.
            timeout: Seconds before processes are killed.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        deadline = time.monotonic() + timeout
        self._request_stop()
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            drain()
            helpers.wake()  # a stopped fork server does not tell who has ended
            self._thread.join(0.02)
        self._request_stop()  # the thread may have been in the middle of a restart
        while time.monotonic() < deadline and any(p.is_alive() for p in self.processes):
            drain()
            helpers.wake()
            wait([p.sentinel for p in self.processes if p.is_alive()], 0.02)
        late = [handle for handle in self._handles if handle.process.is_alive()]
        for handle in late:
            _log.warning("%s did not stop in time and is killed", handle.name)
        end(late)
        for handle in self._handles:
            handle.ended_at = handle.ended_at or time.monotonic()
            self._listen(handle)
            handle.close()
        drain()

    def _watch(self) -> None:
        looked_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                alive = [h for h in self._handles if h.ended_at is None]
                if alive:
                    wait([s for h in alive for s in self._signs(h)], self._seconds_until_restart())
                else:
                    self._stopping.wait(self._seconds_until_restart())
                now = time.monotonic()
                if now - looked_at > _POLL_SECONDS + self._limits.timeout_seconds / 2:
                    self._continued_at = now  # Ctrl-Z and fg: nobody could make progress
                looked_at = now
                helpers.wake()
                for index, handle in enumerate(self._handles):
                    if not self._stopping.is_set():
                        self._look_after(index, handle)
        except Exception as error:
            if not isinstance(error, self.error):
                cause, error = error, self.error(f"watching the processes failed: {error!r}")
                error.__cause__ = cause
            self._error = error

    def _seconds_until_restart(self) -> float:
        due = [h.restart_at - time.monotonic() for h in self._handles if h.restart_at is not None]
        return max(0.02, min([_POLL_SECONDS, *due]))

    def _look_after(self, index: int, handle: H) -> None:
        now = time.monotonic()
        if handle.acted_at is None and not self._is_starting(handle):
            handle.acted_at = now
        if handle.restart_at is not None:
            if now >= handle.restart_at:
                self._handles[index] = self._relaunch(index, handle)
        elif handle.process.exitcode is not None:
            self._record_death(handle, handle.end_orphan() or handle.cause_of_death())
        elif handle.has_failed_to_end():
            end([handle])
            self._record_death(handle, handle.cause_of_death())
        elif handle.failed_at is None and (reason := self._hung(handle)):
            self._record_death(handle, reason + handle.end_hung())
        else:
            self._listen(handle)

    def _hung(self, handle: H) -> str | None:
        """Say why a process counts as hung; None if it does not."""
        heartbeat, timeout = self._heartbeat(handle), self._limits.timeout_seconds
        if time.monotonic() - max(heartbeat, self._continued_at) <= timeout:
            return None
        if self._is_starting(handle):
            assert handle.process.pid is not None
            pid = handle.process.pid
            return handle.start.verdict(pid, self._idle_start_seconds, since=self._continued_at)
        return f"made no progress for {timeout:g} s"

    @property
    def _idle_start_seconds(self) -> float:
        """How long a process that starts may do nothing."""
        return 2.0 * self._limits.timeout_seconds

    def _record_death(self, handle: H, cause: str) -> None:
        handle.ended_at = time.monotonic()
        self._after_death(handle)
        delay = handle.lives.end(handle.acted_at)
        message, limits = f"{handle.name} (pid {handle.process.pid}) {cause}", self._limits
        if reason := refusal(handle.lives, limits, self._reason_to_give_up(handle)):
            raise self.error(f"{message}\n({reason})")
        handle.restart_at = time.monotonic() + delay
        _log.warning("%s; restart %d in %.1f s", message, handle.lives.restarts + 1, delay)

    def _relaunch(self, index: int, handle: H) -> H:
        handle.close()
        fresh = self._launch(index, handle)
        fresh.lives = handle.lives
        fresh.lives.restarts += 1
        self.restarts += 1
        return fresh

    def _start_process(
        self, context: BaseContext, name: str, target: Callable[..., object], args: Sequence[Any]
    ) -> tuple[BaseProcess, Connection, Connection, float]:
        """Start a process with the writing end of a pipe for its errors as last argument.

        Returns:
            The process, the reading ends of the pipes for errors and for stacks of a process that
            crashes, and when it was launched.
        """
        errors, child_errors = context.Pipe(duplex=False)
        stacks, child_stacks = context.Pipe(duplex=False)
        process = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=run_with_stacks, args=(target, child_stacks, *args, child_errors),
            name=f"lrl-{name.replace(' ', '-')}", daemon=True,
        )  # fmt: skip
        launched_at = time.monotonic()
        try:
            with without_missing_main():
                helpers.start(process, context.get_start_method(), self._idle_start_seconds)
        except Exception as error:
            errors.close()
            stacks.close()
            hint = f"its own output may say more; in a script: {MAIN_GUARD}"
            if not isinstance(error, (OSError, EOFError)):
                hint = "settings that it is told, such as env.kwargs, must be picklable"
            raise self.error(f"{name} cannot be started: {error!r} ({hint})") from error
        finally:
            child_errors.close()
            child_stacks.close()
        return process, errors, stacks, launched_at
