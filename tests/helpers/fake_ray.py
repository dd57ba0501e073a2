"""Ray as far as lrl uses it, in this process: calls are made when their answers are taken."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Base of what `ray.get` raises."""


class RayTaskError(RayError):
    """The call itself raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"\x1b[36mTraceback\x1b[39m: {cause!r}")
        self.cause = cause


class RayActorError(RayError):
    """The actor is gone."""


class ObjectLostError(RayError):
    """The answer was made, and lost with its node."""


class GetTimeoutError(RayError, TimeoutError):
    """No answer came in time."""


class Ref:
    """An object in the store."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Call:
    """A call of an actor; those of one actor are answered in their order."""

    def __init__(self, actor: FakeActor, method: str, arguments: tuple[Any, ...]) -> None:
        self.actor, self.method, self.arguments = actor, method, arguments


class FakeActor:
    """An actor of which a test may decide that it is silent, dead or damaged."""

    def __init__(self, kind: type, options: dict[str, Any], number: int) -> None:
        self.body, self.options, self.number = kind(), options, number
        self.is_silent = self.is_dead = self.is_killed = False
        self.answered = lambda answer: answer
        self.calls: deque[Call] = deque()
        self.most_unfinished = 0

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        def remote(*arguments: Any) -> Call:
            call = Call(self, method, arguments)
            self.calls.append(call)
            self.most_unfinished = max(self.most_unfinished, len(self.calls))
            return call

        return SimpleNamespace(remote=remote)


class FakeRay:
    """The module."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        RayActorError=RayActorError,
        GetTimeoutError=GetTimeoutError,
    )

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.objects_put = 0
        self.has_room = True
        self.is_lost = False
        """Whether the next answer is lost on its way."""
        self.head_answers = threading.Event()
        self.head_answers.set()
        self.is_member = True  # so that nobody joins a real cluster
        self.settings: dict[str, Any] = {}
        """With which it was started or joined."""
        self.labels = [{"zone": "b"}, {"zone": "a"}, {}]

    def is_initialized(self) -> bool:
        return self.is_member

    def init(self, **settings: Any) -> None:
        self.settings = settings
        self.head_answers.wait()

    def shutdown(self) -> None:
        self.head_answers.wait()

    def remote(self, kind: type) -> Any:
        def make(**options: Any) -> Any:
            def start() -> FakeActor:
                self.actors.append(FakeActor(kind, options, len(self.actors)))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=make)

    def put(self, value: Any) -> Ref:
        self.objects_put += 1
        return Ref(value)

    def wait(
        self, calls: list[Call], num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        def is_ready(call: Call) -> bool:
            waits_for_room = call.method == "meet" and not self.has_room
            return call.actor.is_dead or not (call.actor.is_silent or waits_for_room)

        ready = [call for call in calls if is_ready(call)][:num_returns]
        return ready, [call for call in calls if call not in ready]

    def get(self, call: Call, timeout: float | None = None) -> Any:
        actor = call.actor
        if actor.is_dead:
            raise RayActorError("it died\n\tactor_id: 12ab\nfor a reason. Some common causes")
        if self.is_lost:
            self.is_lost = False
            actor.calls.remove(call)
            raise ObjectLostError
        if actor.is_silent:
            raise GetTimeoutError
        if call.method == "decide":  # the calls of such an actor never wait for each other
            actor.calls.remove(call)
        else:
            others = [c for c in actor.calls if c.method != "decide"]
            assert others[0] is call, "answers are taken in the order of the calls"
            actor.calls.remove(call)
        self.node = f"node{actor.number}"
        arguments = [a.value if isinstance(a, Ref) else a for a in call.arguments]
        try:
            value: Any = getattr(actor.body, call.method)(*arguments)
            return actor.answered(asyncio.run(value) if inspect.iscoroutine(value) else value)
        except Exception as error:
            raise RayTaskError(error) from error

    def kill(self, actor: FakeActor, no_restart: bool) -> None:
        assert no_restart
        self.head_answers.wait()
        actor.is_killed = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: self.node)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Labels": labels} for labels in self.labels]

    def cluster_resources(self) -> dict[str, float]:
        self.head_answers.wait()
        return {"CPU": 2.0}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}
