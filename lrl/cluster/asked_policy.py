"""The behaviour policy behind a server of the cluster: an actor's side of central inference."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from lrl.actors.actor import BehaviourPolicy, Decision
from lrl.types import Column, Memory, Observation

_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.05


class NoAnswer(Exception):
    """A server gave no action values, in time or at all. Nothing was done; try again later."""


class AskedPolicy(BehaviourPolicy):
    """Action values from an inference server on the cluster, for one group of environments.

    Args:
        memory: What it has to remember, all zeros where an episode begins.
    """

    def __init__(self, memory: Mapping[str, Column]) -> None:
        import ray

        self._ray: Any = ray
        self._memory = memory
        self._server: Any = None
        self._incarnation = -1
        self._asked: Observation = None
        self._call: Any = None

    @property
    @override
    def memory(self) -> Mapping[str, Column]:
        return self._memory

    def ask_from_now_on(self, server: Any, incarnation: int) -> None:
        """Ask this server; another than before is asked again what that one was asked."""
        if incarnation != self._incarnation:
            self._server, self._incarnation, self._asked = server, incarnation, None

    @override
    def prefetch(self, observation: Observation, memory: Memory | None = None) -> None:
        self._call = self._server.decide.remote(observation, memory)
        self._asked = observation

    def __call__(self, observation: Observation, memory: Memory | None = None) -> Decision:
        """Return action values, the policy version that gave them, and what it remembers.

        Raises:
            NoAnswer: The server is gone, failed, or takes longer than a second.
        """
        if self._asked is not observation:
            self.prefetch(observation, memory)
        errors = self._ray.exceptions
        try:
            decision = self._ray.get(self._call, timeout=_PATIENCE_SECONDS)
        except errors.GetTimeoutError as error:
            raise NoAnswer from error
        except errors.RayError as error:  # that of the network, too: its supervisor hears of it
            self._asked = None
            time.sleep(_PAUSE_SECONDS)
            raise NoAnswer from error
        self._asked = None
        return decision
