"""The behaviour policy behind a server: an actor's side of central inference. Numpy only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lrl.actors.process import Pulse
from lrl.actors.slot import ActorSlot
from lrl.inference.requests import RequestEnd, Requester

_PATIENCE_SECONDS = 0.1
_PAUSE_AFTER_FAILURE_SECONDS = 0.05


class RemotePolicy:
    """Action values from an inference server, for one group of environments.

    `prefetch` sends observations ahead, so that they are answered while something else is done; a
    call waits for the answer. It waits as long as it takes: the learner restarts servers, or ends
    the run. Where the network failed it asks again; the learner logs why.
    Exploration is the actor's: a server knows nothing of epsilon or masks.

    Args:
        requester: Makes the requests.
        pulse: Called while waiting.
    """

    def __init__(self, requester: Requester, pulse: Pulse) -> None:
        self._requester = requester
        self._pulse = pulse
        self._asked: npt.NDArray[np.generic] | None = None

    def prefetch(self, observation: npt.NDArray[np.generic]) -> None:
        """Ask for the values that the next call, with the same array, will return."""
        self._requester.ask(observation)
        self._asked = observation

    def __call__(self, observation: npt.NDArray) -> tuple[npt.NDArray[np.float32], int]:
        """Return action values and the policy version that gave them.

        Raises:
            StopRequested: The learner asked to stop, and no answer came.
        """
        if self._asked is not observation:
            self.prefetch(observation)
        while True:
            reply = self._requester.wait(_PATIENCE_SECONDS)
            if reply is None:
                self._pulse()
            elif reply.failed:
                self._pulse()
                time.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
                self.prefetch(observation)
            else:
                self._asked = None
                return reply.values, reply.version


@dataclass(frozen=True)
class RemotePolicyFactory:
    """Builds the policies of one actor's groups; picklable while its process is started."""

    ends: tuple[RequestEnd, ...]

    def build(self, slots: Sequence[ActorSlot], pulse: Pulse) -> list[RemotePolicy]:
        """Open the actor's halves of its request slots."""
        return [
            RemotePolicy(Requester(end, slot.incarnation), pulse)
            for end, slot in zip(self.ends, slots, strict=True)
        ]
