"""The behaviour policy behind a server: an actor's side of central inference. Numpy only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from lrl.actors.actor import BehaviourPolicy, Decision
from lrl.actors.process import Pulse
from lrl.actors.slot import ActorSlot
from lrl.inference.requests import RequestEnd, Requester
from lrl.types import Column, Memory, Observation

_PATIENCE_SECONDS = 0.1
_PAUSE_AFTER_FAILURE_SECONDS = 0.05


class RemotePolicy(BehaviourPolicy):
    """Action values from an inference server, for one group of environments.

    `prefetch` sends observations ahead, so that they are answered while something else is done; a
    call waits for the answer. It waits as long as it takes: the learner restarts servers, or ends
    the run. Where the network failed it asks again; the learner logs why.
    Exploration is the actor's: a server knows nothing of epsilon or masks.

    Args:
        requester: Makes the requests.
        memory: What it has to remember, all zeros where an episode begins.
        pulse: Called while waiting.
    """

    def __init__(
        self, requester: Requester, pulse: Pulse, memory: Mapping[str, Column] | None = None
    ) -> None:
        self._requester = requester
        self._pulse = pulse
        self._memory = memory or {}
        self._asked: Observation = None

    @property
    @override
    def memory(self) -> Mapping[str, Column]:
        return self._memory

    def prefetch(self, observation: Observation, memory: Memory | None = None) -> None:
        """Ask for the values that the next call, with the same arrays, will return."""
        self._requester.ask(observation, memory)
        self._asked = observation

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return action values, the policy version that gave them, and what it remembers.

        Raises:
            StopRequested: The learner asked to stop, and no answer came.
        """
        if self._asked is not observation:
            self.prefetch(observation, memory)
        while True:
            reply = self._requester.wait(_PATIENCE_SECONDS)
            if reply is None:
                self._pulse()
            elif reply.failed:
                self._pulse()
                time.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
                self.prefetch(observation, memory)
            else:
                self._asked = None
                return Decision(reply.values, reply.version, reply.memory)


@dataclass(frozen=True)
class RemotePolicyFactory:
    """Builds the policies of one actor's groups; picklable while its process is started."""

    ends: tuple[RequestEnd, ...]

    def build(self, slots: Sequence[ActorSlot], pulse: Pulse) -> list[RemotePolicy]:
        """Open the actor's halves of its request slots."""
        return [
            RemotePolicy(Requester(end, slot.incarnation), pulse, end.layout.spec.memory)
            for end, slot in zip(self.ends, slots, strict=True)
        ]
