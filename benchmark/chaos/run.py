"""A training run whose actors are attacked while every row is checked.

`COMMAND` with arguments of `train_under_attack` as JSON prints its counts as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import lightning as L

from lrl import (
    DQN,
    ActorConfig,
    ActorLearnerCallback,
    EnvConfig,
    RateLimiterConfig,
    ReplayConfig,
    ReplayDataModule,
)
from lrl.actors.manager import ActorManager
from lrl.learner.datamodule import dataset_of
from lrl.networks import MLPEncoder
from lrl.pools.processes import ProcessPool
from lrl.testing import Ledger, LedgerEnv

COMMAND = (sys.executable, "-c", f"from {__name__} import main; main()")
"""Not with `-m`: actors that are spawned would import this module, and Lightning with it."""
CHUNK_ROWS = 32
_FRAME_STACK, _N_STEP, _GAMMA = 2, 3, 0.99
_LOOK_PERIOD = 10  # learner steps between two looks at new rows
_PROGRESS_SECONDS = 1.0
_PATIENCE_SECONDS = 120.0


class Attacker(threading.Thread):
    """Send signals to random actors, and measure how long each takes to act again.

    Runs in the learner's process. An actor that has not acted yet is left alone.

    Args:
        manager: The actors.
        signals: What is sent, in turn.
        every: Seconds between two attacks.
        attacks: Number of attacks.
    """

    def __init__(
        self, manager: ActorManager, signals: Sequence[signal.Signals], every: float, attacks: int
    ) -> None:
        super().__init__(name="lrl-attacker", daemon=True)
        self.back_seconds: list[float] = []
        self._manager, self._signals = manager, signals
        self._every, self.attacks = every, attacks
        self._rng = random.Random(0)
        self._ended = threading.Event()

    def run(self) -> None:
        """Attack, until all attacks are made."""
        victims: dict[int, tuple[int, float]] = {}
        made, due = 0, time.monotonic() + self._every
        while (made < self.attacks or victims) and not self._ended.wait(0.002):
            acting, now = self._manager.acting(), time.monotonic()
            if any(now > since + _PATIENCE_SECONDS for _, since in victims.values()):
                return  # one does not come back: the attacks then are fewer than planned
            for actor, (pid, since) in list(victims.items()):
                if acting[actor] not in (None, pid):
                    self.back_seconds.append(now - since)
                    del victims[actor]
            candidates = [a for a, pid in enumerate(acting) if pid and a not in victims]
            if made < self.attacks and now >= due and candidates:
                actor = self._rng.choice(candidates)
                pid = acting[actor]
                assert pid is not None
                os.kill(pid, self._signals[made % len(self._signals)])
                victims[actor] = pid, now
                made, due = made + 1, due + self._every

    def end(self) -> None:
        """Attack no more; idempotent."""
        self._ended.set()


class Auditor(L.Callback):
    """Check rows and batches while the run goes on, and end it when its time is over.

    Args:
        seconds: Length of the run, from its first learner step.
        attack: Makes the attacker once the actors run.
        ledger: Checks.
        progress: A file that gets a line of time, environment steps and learner steps each second.
    """

    def __init__(
        self,
        seconds: float,
        attack: Callable[[ActorManager], Attacker],
        ledger: Ledger,
        progress: Path,
    ) -> None:
        self.seconds, self.ledger, self.progress = seconds, ledger, progress
        self.attacker: Attacker | None = None
        self.pool: ProcessPool | None = None
        self.began = self.ended = self._reported = 0.0
        self.env_steps = 0
        self._attack = attack

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Check what is new."""
        dataset, now = dataset_of(trainer), time.monotonic()
        if self.attacker is None:
            assert isinstance(dataset.pool, ProcessPool)
            self.pool, self.began = dataset.pool, now
            self.ledger.slot = dataset.pool.manager.first_slot
            self.attacker = attacker = self._attack(dataset.pool.manager)
            attacker.start()
        if trainer.global_step % _LOOK_PERIOD == 0:
            self.ledger.take_new(dataset.replay.streams)
            self.ledger.take_batch(batch, _N_STEP, _GAMMA)
        if now >= self._reported + _PROGRESS_SECONDS:
            self._reported = now
            with self.progress.open("a") as file:
                file.write(f"{now} {dataset.env_steps} {trainer.global_step}\n")
        self.ended, self.env_steps = now, dataset.env_steps
        if now >= self.began + self.seconds and not self.attacker.is_alive():
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Attack no more."""
        self._end_attack()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Attack no more."""
        self._end_attack()

    def _end_attack(self) -> None:
        if self.attacker is not None:
            self.attacker.end()
            self.attacker.join()


def train_under_attack(
    folder: Path | str,
    seconds: float,
    signals: Sequence[str] = ("SIGKILL",),
    every: float = 2.0,
    attacks: int | None = None,
    actors: int = 4,
    start_method: Literal["auto", "forkserver", "spawn"] = "auto",
    timeout_seconds: float = 60.0,
) -> dict[str, float]:
    """Train on `LedgerEnv` while actors are killed or stopped; check every row and batches.

    Args:
        folder: Takes the run's files, and `progress.txt`.
        seconds: Length of the run.
        signals: Names of the signals, sent in turn.
        every: Seconds between two attacks.
        attacks: Number of attacks; None is as many as fit.
        actors: Number of actors.
        start_method: How they start.
        timeout_seconds: Without progress for so long an actor counts as hung.

    Returns:
        Counts: of the attacks, of the transport's ledger (`produced` and so on), of the rows that
        were checked in the replay, and `back_seconds` from an attack to the new actor's first step.
    """
    attacks = int(seconds / every) if attacks is None else attacks
    data = ReplayDataModule(
        EnvConfig("lrl/Ledger-v0", {"copies": 4}, frame_stack=_FRAME_STACK),
        ActorConfig(
            actors, 2, max_restarts=10**6, timeout_seconds=timeout_seconds,
            start_method=start_method, chunk_rows=CHUNK_ROWS,
        ),
        replay=ReplayConfig(20_000, batch_size=32, n_step=_N_STEP, gamma=_GAMMA),
        rate=RateLimiterConfig(samples_per_insert=4.0, warm_up_env_steps=200),
        learner_threads=1,
    )  # fmt: skip
    ledger = Ledger(LedgerEnv(), _FRAME_STACK)
    numbers = [signal.Signals[name] for name in signals]
    folder = Path(folder)
    auditor = Auditor(
        seconds,
        lambda manager: Attacker(manager, numbers, every, attacks),
        ledger,
        folder / "progress.txt",
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        limit_train_batches=1000,
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[auditor, ActorLearnerCallback(100, 0, 0)],
    )
    module = DQN(encoder=functools.partial(MLPEncoder, hidden_sizes=(64,)))
    trainer.fit(module, datamodule=data)
    return _counts(trainer, data, auditor)


def _counts(trainer: L.Trainer, data: ReplayDataModule, auditor: Auditor) -> dict[str, float]:
    assert data.dataset is not None
    assert auditor.pool is not None
    assert auditor.attacker is not None
    streams, manager = data.dataset.replay.streams, auditor.pool.manager
    auditor.ledger.take_new(streams)
    entries = manager.queue.ledger()
    totals = manager.queue.totals()
    back = auditor.attacker.back_seconds
    audited = ("rows", "corrupt", "duplicated", "missing", "overlooked", "transitions")
    return {
        "planned": auditor.attacker.attacks,
        "attacks": len(back),
        "restarts": manager.restarts,
        "learner_steps": trainer.global_step,
        "env_steps_per_second": auditor.env_steps / (auditor.ended - auditor.began),
        "produced": totals.produced,
        "received": totals.received,
        "dropped_chunks": sum(manager.queue.chunks_dropped.values()),
        "lost": totals.lost,
        "lost_at_most": max(entry.lost for entry in entries.values()),
        "stored": int(streams.counts.sum()),
        "back_seconds_median": median(back) if back else 0.0,
        "back_seconds_max": max(back, default=0.0),
        **{name: auditor.ledger.counts[name] for name in audited},
    }


def main() -> None:
    """Train with the arguments of `train_under_attack`, given as JSON."""
    warnings.simplefilter("ignore")
    print(json.dumps(train_under_attack(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
