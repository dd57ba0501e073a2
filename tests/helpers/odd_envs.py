"""Environments that fail on purpose, and one that tells where it runs; actors import this module.

Only actor processes see a fault: the learner builds the environment too, to read its spaces.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class OddError(Exception):
    """Cannot be built from its own arguments, so it does not survive pickling."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"odd error with code {code}")


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


RAISED: dict[str, Callable[[], BaseException]] = {
    "error": lambda: RuntimeError("the ball is lost"),
    "exit": lambda: SystemExit("the game gives up"),
    "odd": lambda: OddError(code=7),
    "silent": SilentError,
    "giant": lambda: RuntimeError("x" * 300_000 + " and that was all"),
    "interrupt": KeyboardInterrupt,
    "undecodable": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "unpicklable": lambda: RuntimeError("this lock", threading.Lock()),
}


def fail(fault: str) -> None:
    if fault in RAISED:
        raise RAISED[fault]()
    if fault == "bad end":  # as when a library's destructor crashes at the end of the process
        multiprocessing.util.Finalize(None, os._exit, args=(7,), exitpriority=1)
        raise RuntimeError("the ball is lost, and the court too")
    if fault in ("hung close", "thread that goes on"):
        if fault != "hung close":
            threading.Thread(target=time.sleep, args=(1000,)).start()
        raise RuntimeError("the ball is lost for ever")
    if fault == "vanish":
        os._exit(3)
    if fault == "crash":
        ctypes.string_at(0)
    if fault == "work":
        while time.process_time() < 2.5:
            pass
    time.sleep({"hang": 1000, "slow": 0.02}.get(fault, 0))


def actor_index() -> int:
    """Index of the actor whose process this is, -1 in the learner."""
    prefix, _, index = multiprocessing.current_process().name.rpartition("-")
    return int(index) if prefix == "lrl-actor" else -1


class Faulty(gymnasium.Env):
    """Fail in some place of some actor or of the evaluator, at every attempt or at the first only.

    Args:
        fault: What happens; see `fail`.
        where: `init`, `reset` or `step`.
        after: Steps that go well before.
        actor: Actor that fails; -1 for all of them.
        evaluator: Fail in the evaluator instead of in actors.
        once: A file that is made by the first failure and prevents others.
    """

    def __init__(
        self,
        fault: str = "error",
        where: str = "step",
        after: int = 50,
        actor: int = -1,
        once: str | None = None,
        evaluator: bool = False,
    ) -> None:
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._fault, self._where, self._after = fault, where, after
        self._actor, self._once, self._evaluator = actor, once, evaluator
        self._steps = 0
        self._visit("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._visit("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: int):
        self._steps += 1
        if self._steps > self._after:
            self._visit("step")
        end = self._steps % 10 == 0
        info = {"log": bytes(10**7), "hook": lambda: None} if self._fault == "huge info" else {}
        return np.full(2, 0.5, np.float32), float(action), end, False, info

    def close(self):
        if self._fault == "hung close" and self._is_meant():
            time.sleep(1000)

    def _visit(self, where: str) -> None:
        if where != self._where or not self._is_meant():
            return
        if self._once is not None:
            if Path(self._once).exists():
                return
            Path(self._once).touch()
        fail(self._fault)

    def _is_meant(self) -> bool:
        if self._evaluator:
            return multiprocessing.current_process().name == "lrl-evaluator"
        index = actor_index()
        return index >= 0 and self._actor in (-1, index)


class Witness(gymnasium.Env):
    """Every observation tells what the process looks like; see `FACTS`."""

    FACTS = (
        "actor", "threads", "gpu_hidden", "interrupt_ignored", "interrupt_blocked",
        "rank_hidden", "lightning",
    )  # fmt: skip

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (len(self.FACTS),), np.float32)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self._facts(), {}

    def step(self, action: int):
        # The reward says which seed the last seeded reset had: exact in float32 below 2**24.
        return self._facts(), float((self.np_random_seed or 0) % 2**20), False, False, {}

    def _facts(self):
        torch = sys.modules.get("torch")
        return np.array(
            [
                actor_index(),
                torch.get_num_threads() if torch else 0,
                os.environ.get("CUDA_VISIBLE_DEVICES") == "",
                signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
                signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
                "RANK" not in os.environ,
                "lightning" in sys.modules,
            ],
            np.float32,
        )


class Drawing(gymnasium.Env):
    """Shows random numbers; the episode's last reward is random too, and its length is not.

    Args:
        source: `reset`: they follow from the seed, as they should. `own`: from a generator that no
            seed reaches. `global`: from numpy's global one.
    """

    def __init__(self, source: str = "reset") -> None:
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._source, self._own, self._time = source, np.random.default_rng(), 0

    def _draw(self) -> Any:
        if self._source == "global":
            return np.random.random(2).astype(np.float32)  # noqa: NPY002 (the point)
        return (self._own if self._source == "own" else self.np_random).random(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._time = 0
        return self._draw(), {}

    def step(self, action: int):
        self._time += 1
        end = self._time >= 9
        return self._draw(), float(self._draw()[action]) if end else 0.0, end, False, {}


for _name in ("Faulty", "Witness", "Drawing"):
    if f"{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_name}-v0", entry_point=f"{__name__}:{_name}")
