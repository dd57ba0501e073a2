"""Actors or servers on a cluster as their learner sees them: begun, watched, replaced."""

from __future__ import annotations

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from lrl.actors.manager import ActorError
from lrl.actors.slot import ActorSlot
from lrl.cluster.nodes import Nodes, Welcome
from lrl.cluster.session import Session
from lrl.cluster.weights import SentWeights
from lrl.processes.supervised_process import Lives
from lrl.processes.supervisor import SupervisedConfig, refusal
from lrl.types import ConfigError

_log = logging.getLogger(__name__)
_ROOM_WARNING_SECONDS = 30.0
_PLACED_SECONDS = 10.0
"""Who has not joined after so long waits for room, and may ask for it elsewhere."""
_MESSAGE_LINES = 40
_COLOUR = re.compile(r"\x1b\[\d+m")

State = Literal["joining", "starting", "acting", "dead"]


@dataclass
class Remote:
    """One actor or server of the moment, and what is kept over its restarts."""

    name: str
    index: int
    slot: ActorSlot
    needs: dict[str, Any]
    """Ray's options that it was placed by."""
    body: Any
    """What is called."""
    call: Any
    """The call that is to be answered next, None if there is none; further ones are in `calls`."""
    state: State = "joining"
    since: float = field(default_factory=time.monotonic)
    """When it last answered, or was asked something while it had nothing to do."""
    launched_at: float = field(default_factory=time.monotonic)
    warned_at: float = -math.inf
    acted_at: float | None = None
    restart_at: float = 0.0
    welcome: Welcome | None = None
    calls: deque[Any] = field(default_factory=deque)
    version: int = -1
    """Of the weights that it was sent."""
    number: int = 0
    """Of the answer that comes next."""
    servers: tuple[int, ...] = ()
    """Incarnations of the servers that it was told of."""
    counters: dict[str, Any] = field(default_factory=dict)
    past: Counter[str] = field(default_factory=Counter)
    """Counters and seconds of earlier incarnations."""
    lives: Lives = field(default_factory=Lives)

    def __str__(self) -> str:
        """Return its name in messages."""
        where = f" (pid {self.welcome.pid} on {self.place})" if self.welcome else ""
        return f"{self.name}{where}"

    @property
    def place(self) -> str:
        """Its host, and the beginning of Ray's name of the node; empty before it has said so."""
        return f"{self.welcome.host} {self.welcome.node[:8]}" if self.welcome else ""

    def totals(self) -> Counter[str]:
        """Return its counters over all incarnations, and the seconds that it was there."""
        total = Counter(self.past)
        total.update(self.counters)
        alive = 0.0 if self.state == "dead" else time.monotonic() - self.launched_at
        total.update(seconds=alive)  # pyright: ignore[reportArgumentType]
        return total


class Remotes(ABC):
    """All actors of a run on the cluster, or all its servers.

    Everything happens in the calls of one thread, that of the learner. Ray restarts nothing and
    tries nothing again, so a call is answered once or never: whoever is silent is given up, and
    another started in its place.

    Args:
        session: In the cluster.
        nodes: Where they are.
        limits: What happens when one fails.
        weights: What they act with.
        first: The slot of the first one.
        count: How many there are.
    """

    kind: ClassVar[type]
    """The class that runs there."""
    error: ClassVar[type[RuntimeError]] = ActorError

    def __init__(
        self,
        session: Session,
        nodes: Nodes,
        limits: SupervisedConfig,
        weights: SentWeights,
        first: ActorSlot,
        count: int,
    ) -> None:
        self.restarts = 0
        self.all: list[Remote] = []
        self._session = session
        self._ray = session.ray
        self._config = session.config
        self._nodes = nodes
        self._limits = limits
        self._weights = weights
        self._first = first
        self._count = count

    @abstractmethod
    def _name(self, index: int) -> str:
        """Return the name of one of them in messages."""

    @abstractmethod
    def _needs(self, index: int) -> dict[str, Any]:
        """Return Ray's options for one of them."""

    @abstractmethod
    def _begin(self, remote: Remote) -> Any:
        """Return the call that builds what it acts with."""

    @abstractmethod
    def _ask(self, remote: Remote) -> None:
        """Ask for what comes next, if anything does; called whenever one that acts has answered."""

    @abstractmethod
    def _take(self, remote: Remote, value: Any) -> Any:
        """Return what an answer holds for others, or None."""

    def _after_death(self, remote: Remote) -> None:  # noqa: B027 (servers leave nothing)
        """Settle what one that acted leaves undone."""

    def start(self) -> None:
        """Ask the cluster for all of them."""
        for index in range(self._count):
            slot = replace(self._first, actor=self._first.actor + index)
            self.all.append(self._launch(index, slot))

    def waiting(self) -> dict[Any, Remote]:
        """Return whose call is to be answered next, by calls."""
        return {remote.call: remote for remote in self.all if remote.call is not None}

    def look_after(self, absent_seconds: float) -> None:
        """Give up who is silent, replace who is dead, and ask who has nothing to do.

        Args:
            absent_seconds: For which nobody looked, so that nobody was silent.

        Raises:
            RuntimeError: One failed for good.
        """
        now = time.monotonic()
        for index, remote in enumerate(self.all):
            remote.since += absent_seconds
            if remote.state == "dead":
                if now >= remote.restart_at:
                    remote.lives.restarts += 1
                    self.restarts += 1
                    self.all[index] = self._successor(remote, remote.slot.restarted())
            elif remote.state == "joining":
                is_late = now - remote.launched_at > _PLACED_SECONDS
                if is_late and not self._is_ready(remote.call):
                    self.all[index] = self._elsewhere(remote)
            elif remote.call is None:
                remote.since = now
                self._ask(remote)
            elif now - remote.since > self._patience(remote) and not self._is_ready(remote.call):
                assert remote.welcome is not None
                self._nodes.avoid(remote.welcome.node)
                self._weights.send_again()
                cause = f"answered nothing for {self._patience(remote):g} s"
                self._bury(remote, cause, raised=False)

    def take(self, remote: Remote) -> Any:
        """Take the answer of a call that is ready, and ask for what comes next.

        Returns:
            What it holds for others, or None.

        Raises:
            RuntimeError: It failed for good.
        """
        try:
            value = self._ray.get(remote.call)
        except self._ray.exceptions.RayTaskError as error:
            self._bury(remote, f"failed:\n{_of_call(error)}", raised=True)
            return None
        except self._ray.exceptions.RayError as error:
            cause = _in_short(f"{type(error).__name__}: {error}")
            self._bury(remote, cause, raised=False)
            return None
        remote.since = time.monotonic()
        remote.call = remote.calls.popleft() if remote.calls else None
        if remote.state == "joining":
            self._welcome(remote, value)
        elif remote.state == "starting":
            remote.state = "acting"
            self._ask(remote)
        else:
            remote.acted_at = remote.acted_at or remote.since
            self._ask(remote)
            return self._take(remote, value)
        return None

    def kill(self) -> None:
        """End all of them."""
        for remote in self.all:
            self._kill(remote)

    def _launch(self, index: int, slot: ActorSlot) -> Remote:
        needs = self._needs(index)
        options = {
            "scheduling_strategy": "SPREAD" if self._config.spread else "DEFAULT",
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        body = self._ray.remote(self.kind).options(**options, **needs).remote()
        meeting = body.meet.remote(self._nodes.packages)
        return Remote(self._name(index), index, slot, needs, body, meeting)

    def _elsewhere(self, remote: Remote) -> Remote:
        """Return one that waits for room, or another in its place if it may be elsewhere by now."""
        self._tell_of_no_room(remote)
        if self._needs(remote.index) == remote.needs:
            return remote
        self._kill(remote)
        return self._successor(remote, remote.slot)

    def _successor(self, remote: Remote, slot: ActorSlot) -> Remote:
        fresh = self._launch(remote.index, slot)
        fresh.lives, fresh.past, fresh.warned_at = remote.lives, remote.past, remote.warned_at
        return fresh

    def _welcome(self, remote: Remote, welcome: Welcome) -> None:
        remote.welcome = welcome
        if difference := self._nodes.difference(welcome.versions):
            raise self.error(f"{remote}: {difference}")
        remote.state, remote.call = "starting", self._begin(remote)
        remote.version = self._weights.version

    def _patience(self, remote: Remote) -> float:
        if remote.state == "starting":
            return 2.0 * self._limits.timeout_seconds
        return self._config.silence_seconds

    def _is_ready(self, call: Any) -> bool:
        return bool(self._ray.wait([call], num_returns=1, timeout=0)[0])

    def _tell_of_no_room(self, remote: Remote) -> None:
        now = time.monotonic()
        if now - remote.warned_at > _ROOM_WARNING_SECONDS:
            remote.warned_at = now
            needs = {name: value for name, value in remote.needs.items() if value}
            wanted = ", ".join(f"{name} {value}" for name, value in needs.items())
            _log.warning(
                "%s waits for room on the cluster: it takes %s, and free are %s",
                remote, wanted or "nothing", self._session.head.room(self._config.labels),
            )  # fmt: skip

    def _bury(self, remote: Remote, cause: str, raised: bool) -> None:
        """Settle the end of one.

        Args:
            remote: The one.
            cause: What it came from, in words.
            raised: Whether its own code raised an error.

        Raises:
            RuntimeError: There will be no other in its place.
        """
        limits, acted = self._limits, remote.state == "acting"
        if acted:
            self._after_death(remote)
        self._kill(remote)
        remote.past = remote.totals()
        remote.state, remote.call, remote.counters = "dead", None, {}
        remote.calls.clear()
        delay = remote.lives.end(remote.acted_at)
        message = f"{remote} {cause}"
        never_acted = not acted and remote.slot.incarnation == self._first.incarnation
        hopeless = "it failed before its first step" if raised and never_acted else None
        if reason := refusal(remote.lives, limits, hopeless):
            raise self.error(f"{message}\n({reason})")
        remote.restart_at = time.monotonic() + delay
        _log.warning("%s; restart %d in %.1f s", message, remote.lives.restarts + 1, delay)

    def _kill(self, remote: Remote) -> None:
        self._session.later(lambda: self._ray.kill(remote.body, no_restart=True))


def _in_short(text: str) -> str:
    """Return Ray's message without its list of the actor's names and its guesses at causes."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("\t")]
    return "\n".join(lines[:_MESSAGE_LINES]).partition(" Some common causes")[0].rstrip(".")


def _of_call(error: Any) -> str:
    """Return what a call raised: a sentence of lrl's as it is, of others the traceback there."""
    is_ours = isinstance(error.cause, ConfigError)
    text = str(error.cause) if is_ours else _COLOUR.sub("", str(error))
    if "No module named" in text:
        text += "; install it on every node, or start Ray there with a PYTHONPATH that has it"
    return text
