"""The rate of a learner whose actors on a cluster answer late: `... slow_path slow` or `plain`.

Packets are neither delayed nor lost, which takes a kernel that can; an answer counts as arrived
later than it was.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from typing import Any

import lightning as L

import lrl.cluster.session
from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    ClusterConfig,
    EnvConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
)

DELAY, LATE_SHARE, LATE_DELAY = 0.1, 0.05, 1.0
_FIRST, _LAST = 500, 3000  # learner steps between which time is taken


class SlowRay:
    """The module `ray`, in which an answer is ready only some time after it came.

    Args:
        ray: The module.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._rng = random.Random(0)
        self._due: dict[Any, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], None]:
        """Return calls whose answers came long enough ago."""
        end = time.monotonic() + timeout
        while True:
            there = self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]
            now = time.monotonic()
            for call in there:
                late = LATE_DELAY if self._rng.random() < LATE_SHARE else DELAY
                self._due.setdefault(call, now + late)
            ready = [call for call in there if self._due[call] <= now][:num_returns]
            if ready or now >= end:
                return ready, None
            time.sleep(0.002)


class Timer(L.Callback):
    """Takes the time between two learner steps."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Look whether it is one of them."""
        if trainer.global_step == _FIRST:
            self.began = time.monotonic()
        elif trainer.global_step == _LAST:
            self.seconds = time.monotonic() - self.began


def learner_rate(is_slow: bool) -> float:
    """Return learner steps a second."""
    if is_slow:
        slow = SlowRay(lrl.cluster.session.import_ray())
        lrl.cluster.session.import_ray = lambda: slow
    data = ReplayDataModule(
        EnvConfig("CartPole-v1"),
        ActorConfig(num_actors=0, envs_per_actor=16),
        replay=ReplayConfig(capacity=50_000, batch_size=32),
        rate=RateLimiterConfig(samples_per_insert=64.0, max_samples_ahead=50_000.0),
        cluster=ClusterConfig(),
        learner_threads=1,
    )
    timer = Timer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu", max_steps=_LAST, max_epochs=-1, logger=False,
            default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[timer, ActorLearnerCallback(100, 0, 0)],
        )  # fmt: skip
        trainer.fit(DQN(), datamodule=data)
    return (_LAST - _FIRST) / timer.seconds


if __name__ == "__main__":
    print(learner_rate(sys.argv[1] == "slow"))
