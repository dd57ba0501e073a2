"""The actors on a cluster as their learner sees them: asked, watched, replaced."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lrl.actors.config import ActorConfig
from lrl.actors.handle import ActorStatistics
from lrl.actors.manager import ActorError
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.cluster.remote_actor import Answer, RemoteActor, RemotePlan, Welcome, installed
from lrl.cluster.session import Session
from lrl.processes.supervised_process import Lives

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
_ABSENT_SECONDS = 1.0
"""A learner that looked at nobody for longer was elsewhere: silence begins anew."""
_AVOID_SECONDS = 60.0
_ROOM_WARNING_SECONDS = 30.0
_LAST_CALLS_SECONDS = 2.0
_MESSAGE_LINES = 40

State = Literal["joining", "starting", "acting", "dead"]


@dataclass
class Remote:
    """One actor of the fleet, and what is kept over its restarts."""

    slot: ActorSlot
    actor: Any
    call: Any
    """The call that is to be answered next; further ones are in `calls`."""
    state: State = "joining"
    since: float = field(default_factory=lambda: time.monotonic())
    """When it last answered, or was first asked."""
    launched_at: float = field(default_factory=lambda: time.monotonic())
    warned_at: float = field(default_factory=lambda: time.monotonic())
    acted_at: float | None = None
    restart_at: float = 0.0
    welcome: Welcome | None = None
    calls: deque[Any] = field(default_factory=deque)
    version: int = -1
    """Of the weights that it was sent."""
    number: int = 0
    """Of the answer that comes next."""
    counters: dict[str, float] = field(default_factory=dict)
    past: Counter[str] = field(default_factory=Counter)
    """Counters and seconds of earlier incarnations."""
    lives: Lives = field(default_factory=Lives)

    @property
    def name(self) -> str:
        """Its name in messages."""
        where = f" (pid {self.welcome.pid} on {self.welcome.host})" if self.welcome else ""
        return f"cluster actor {self.slot.actor}{where}"

    def statistics(self) -> ActorStatistics:
        """Return what it did over all incarnations."""
        total = Counter(self.past)
        total.update(self.counters)
        seconds = self.past["seconds"]
        seconds += 0.0 if self.state == "dead" else time.monotonic() - self.launched_at
        return ActorStatistics(
            actor=self.slot.actor,
            env_steps=int(total["env_steps"]),
            frames=int(total["frames"]),
            episodes=int(total["episodes"]),
            seconds=seconds,
            wait_seconds=total["wait_seconds"],
            restarts=self.lives.restarts,
        )


class Fleet:
    """Asks the actors for rows, gives up those that are silent, and starts others in their place.

    Everything happens in the calls of one thread, that of the learner: an actor makes as many
    chunks as were asked of it and waits. Ray restarts nothing and tries nothing again, so a call
    is answered once or never.

    Args:
        config: What actors need on the cluster.
        actors: What happens when one fails.
        plan: From an actor's slot, and the run's environment steps so far, to what it is told.
        slot: That of the first one.
        packages: Names of packages that must have the same versions on all nodes.
    """

    def __init__(
        self,
        config: ClusterConfig,
        actors: ActorConfig,
        plan: Callable[[int, ActorSlot, int], RemotePlan],
        slot: ActorSlot,
        packages: Sequence[str],
    ) -> None:
        self.config = config
        self.restarts = 0
        self.calls_lost = 0
        self.rows_dropped = 0
        self._limits = actors
        self._plan = plan
        self._slot = slot
        self._versions = installed(packages)
        self._run = random.SystemRandom().getrandbits(63)
        self._session = Session(config)
        self._ray = self._session.ray
        self._remotes: list[Remote] = []
        self._avoided: dict[str, float] = {}
        self._weights: npt.NDArray[np.float32] | None = None
        self._version = -1
        self._ref: Any = None
        self._looked_at = time.monotonic()
        self._error: RuntimeError | None = None
        self._is_closed = False

    def start(self) -> None:
        """Join the cluster and ask it for actors."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop, lambda answer, has_gap: None)
            self._session.join()
            for index in range(self.config.num_actors):
                slot = replace(self._slot, actor=self._slot.actor + index)
                self._remotes.append(self._launch(slot))
            undo.pop_all()

    def publish(self, vector: npt.NDArray[np.float32], version: int) -> None:
        """Act with these weights from the next call on; they are sent once to each node."""
        self._weights, self._version, self._ref = vector, version, None

    def check(self) -> None:
        """Raise what ended the fleet.

        Raises:
            ActorError: An actor failed for good, or the cluster is gone.
        """
        if self._error is not None:
            raise self._error

    def answers(self, timeout: float) -> Iterator[tuple[Answer, bool]]:
        """Yield what has been answered, each with whether rows before it are missing."""
        if self._error is not None:
            return
        try:
            self._look_after()
            waiting = {r.call: r for r in self._remotes if r.call is not None}
            if not waiting:
                time.sleep(min(timeout, _LOOK_SECONDS))
                return
            for call in self._ready(list(waiting), timeout):
                answer = self._answer(waiting[call])
                if answer is not None:
                    yield answer
        except ActorError as error:
            self._error = error

    def statistics(self) -> list[ActorStatistics]:
        """Return what each actor did so far."""
        return [remote.statistics() for remote in self._remotes]

    def places(self) -> list[Welcome | None]:
        """Return where each actor is; None before it has said so."""
        return [remote.welcome for remote in self._remotes]

    def stop(self, take: Callable[[Answer, bool], object]) -> None:
        """Take what was asked for already, end the actors and leave the cluster; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._error is None:
                self._take_last(take)
            for remote in self._remotes:
                self._kill(remote)
        finally:
            self._session.leave()

    def _take_last(self, take: Callable[[Answer, bool], object]) -> None:
        deadline = time.monotonic() + _LAST_CALLS_SECONDS
        while time.monotonic() < deadline:
            waiting = {r.call: r for r in self._remotes if r.state == "acting" and r.call}
            if not waiting:
                return
            for call in self._ready(list(waiting), 0.1):
                try:
                    answer = self._answer(waiting[call])
                except ActorError as error:
                    _log.warning("%s", error)
                    continue
                if answer is not None:
                    take(*answer)

    def _ready(self, calls: list[Any], timeout: float) -> list[Any]:
        if timeout > 0 and not self._ray.wait(calls, num_returns=1, timeout=timeout)[0]:
            return []
        return self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]

    def _launch(self, slot: ActorSlot) -> Remote:
        config, now = self.config, time.monotonic()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        labels = dict(config.labels)
        if self._avoided:
            labels["ray.io/node-id"] = f"!in({', '.join(self._avoided)})"
        options: dict[str, Any] = {
            "num_cpus": config.num_cpus,
            "resources": config.resources or None,
            "label_selector": labels or None,
            "scheduling_strategy": "SPREAD" if config.spread else "DEFAULT",
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        made = self._ray.remote(RemoteActor).options(**options).remote()
        return Remote(slot, made, made.meet.remote(list(self._versions)))

    def _look_after(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        was_absent = now - self._looked_at > _ABSENT_SECONDS
        self._looked_at = now
        for index, remote in enumerate(self._remotes):
            if was_absent:
                remote.since = now
            if remote.state == "dead":
                if now >= remote.restart_at:
                    self._remotes[index] = self._replaced(remote)
            elif remote.state == "joining":
                self._tell_of_no_room(remote, now)
            elif now - remote.since > self._patience(remote) and not self._ready([remote.call], 0):
                assert remote.welcome is not None
                self._avoided[remote.welcome.node] = now + _AVOID_SECONDS
                self._bury(remote, f"answered nothing for {self._patience(remote):g} s")

    def _patience(self, remote: Remote) -> float:
        if remote.state == "starting":
            return 2.0 * self._limits.timeout_seconds
        return self.config.silence_seconds

    def _tell_of_no_room(self, remote: Remote, now: float) -> None:
        if now - remote.warned_at > _ROOM_WARNING_SECONDS:
            remote.warned_at = now
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
            _log.warning(
                "%s waits for room on the cluster: it takes %g CPUs%s, and of %g there are %g "
                "free",
                remote.name, self.config.num_cpus,
                f" and {self.config.resources}" if self.config.resources else "",
                total.get("CPU", 0.0), free.get("CPU", 0.0),
            )  # fmt: skip

    def _replaced(self, dead: Remote) -> Remote:
        fresh = self._launch(dead.slot.restarted())
        fresh.lives, fresh.past = dead.lives, dead.past
        fresh.lives.restarts += 1
        self.restarts += 1
        return fresh

    def _answer(self, remote: Remote) -> tuple[Answer, bool] | None:
        """Take the answer of a call that is ready, and ask for what comes next."""
        try:
            value = self._ray.get(remote.call)
        except self._ray.exceptions.RayTaskError as error:
            self._bury(remote, f"failed:\n{error}")
            return None
        except self._ray.exceptions.RayError as error:
            self._bury(remote, _first_lines(f"{type(error).__name__}: {error}"))
            return None
        remote.since = time.monotonic()
        remote.call = remote.calls.popleft() if remote.calls else None
        if remote.state == "joining":
            self._begin(remote, value)
            return None
        if remote.state == "starting":
            remote.state = "acting"
            self._ask(remote)
            return None
        if remote.acted_at is None:
            remote.acted_at = remote.since
        if not self._is_closed:
            self._ask(remote)
        return self._checked(remote, value)

    def _begin(self, remote: Remote, welcome: Welcome) -> None:
        remote.welcome = welcome
        wrong = {
            name: there
            for name, here in self._versions.items()
            if (there := welcome.versions.get(name, "none")) != here
        }
        if wrong:
            name, there = next(iter(wrong.items()))
            raise ActorError(
                f"{remote.name}: {name} {there} is installed there and {self._versions[name]} "
                "here; all nodes need the same versions of "
                f"{', '.join(self._versions)}"
            )
        done = sum(each.statistics().env_steps for each in self._remotes)
        plan = self._plan(self._run, remote.slot, done)
        remote.state, remote.version = "starting", self._version
        remote.call = remote.actor.begin.remote(plan, self._newest(), self._version)

    def _newest(self) -> Any:
        if self._ref is None:
            self._ref = self._ray.put(self._weights)
        return self._ref

    def _ask(self, remote: Remote) -> None:
        asked = len(remote.calls) + (remote.call is not None)
        for _ in range(self.config.calls_per_actor - asked):
            newer = self._newest() if remote.version < self._version else None
            remote.version = self._version
            remote.calls.append(remote.actor.act.remote(newer, self._version))
        if remote.call is None:
            remote.call = remote.calls.popleft()

    def _checked(self, remote: Remote, answer: Answer) -> tuple[Answer, bool] | None:
        """Return an answer and whether one before it is missing; None for one that is damaged."""
        expected = (self._run, remote.slot.actor, remote.slot.incarnation)
        if answer[:3] != expected or answer.checksum != answer.computed_checksum():
            self.rows_dropped += len(answer.columns["kind"])
            return None
        has_gap = answer.number != remote.number
        remote.number = answer.number + 1
        remote.counters = answer.counters
        return answer, has_gap

    def _bury(self, remote: Remote, cause: str) -> None:
        """Settle the end of an actor.

        Raises:
            ActorError: There will be no other in its place.
        """
        limits, acted = self._limits, remote.state == "acting"
        if acted:
            self.calls_lost += 1 + len(remote.calls)
        self._kill(remote)
        remote.past.update(remote.counters)
        remote.past["seconds"] += time.monotonic() - remote.launched_at  # pyright: ignore[reportArgumentType]
        remote.state, remote.call, remote.counters = "dead", None, {}
        remote.calls.clear()
        delay = remote.lives.end(remote.acted_at)
        message = f"{remote.name} {cause}"
        if limits.on_failure == "fail":
            raise ActorError(f"{message}\n({limits.section}.on_failure is 'fail')")
        if not acted and "failed:\n" in cause and remote.slot.incarnation == self._slot.incarnation:
            raise ActorError(f"{message}\n(it failed before its first step: not restarted)")
        if failures := remote.lives.exhausted(limits.max_restarts):
            budget = f"{limits.section}.max_restarts is {limits.max_restarts}"
            raise ActorError(f"{message}\n({failures}; {budget})")
        remote.restart_at = time.monotonic() + delay
        _log.warning("%s; restart %d in %.1f s", message, remote.lives.restarts + 1, delay)

    def _kill(self, remote: Remote) -> None:
        try:
            self._ray.kill(remote.actor, no_restart=True)
        except Exception as error:
            _log.debug("%s could not be ended: %r", remote.name, error)


def _first_lines(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines[:_MESSAGE_LINES])
