"""Actors as their manager sees them: what each did, over all its incarnations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lrl.actors.slot import ActorSlot
from lrl.processes.supervised_process import SupervisedProcess
from lrl.transport import Channel


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
    node: str = ""
    """Where it is on a cluster; empty if it is on this machine."""

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps per second of life, waiting included."""
        return self.env_steps / self.seconds if self.seconds > 0 else 0.0


@dataclass(kw_only=True)
class ActorHandle(SupervisedProcess):
    """An actor's process and channel of the moment, and what is kept over its restarts."""

    slot: ActorSlot
    channel: Channel
    past: list[tuple[Channel, float]] = field(default_factory=list)
    """Channels of earlier incarnations, and the seconds that each lived."""

    def has_started(self) -> bool:
        """Return whether the process has opened its channel."""
        return self.channel.counters["started"] != 0

    def total(self, counter: str) -> float:
        """Sum a counter over all incarnations."""
        channels = [*(channel for channel, _ in self.past), self.channel]
        return sum(float(channel.counters[counter]) for channel in channels)

    def statistics(self) -> ActorStatistics:
        """Return what the actor did so far."""
        now = self.ended_at or time.monotonic()
        return ActorStatistics(
            actor=self.slot.actor,
            env_steps=int(self.total("env_steps")),
            frames=int(self.total("frames")),
            episodes=int(self.total("episodes")),
            seconds=sum(seconds for _, seconds in self.past) + now - self.launched_at,
            wait_seconds=self.total("wait_seconds"),
            restarts=self.lives.restarts,
        )
