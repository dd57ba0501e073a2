"""The evaluator: a process that plays evaluation episodes while the learner goes on."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from lrl.actors.config import ActorConfig
from lrl.actors.policy import SubscribedPolicy, publish_weights
from lrl.envs import EnvConfig
from lrl.evaluation.episodes import Episodes, run_episodes
from lrl.networks.q_network import NetworkRecipe, QNetwork
from lrl.processes.child import StopRequested, errors_sent_to, isolate
from lrl.processes.shared_memory import SharedBlock
from lrl.processes.supervised_process import SupervisedProcess
from lrl.processes.supervisor import Supervisor
from lrl.transport import WeightStore

_IDLE_SECONDS = 0.05
_NICENESS = 10  # on too few cores it is the evaluation that waits
_PATIENCE = 10.0  # times an actor's time-out: 32 games take 6 s of a core to reset
_STATE = np.dtype(
    [
        ("stop", "i8"),  # 1 asks the evaluator to finish; written by the learner, as is `asked`
        ("asked", "i8"),  # learner step whose weights are to be evaluated; 0 before the first
        ("done", "i8"),  # learner step whose results are below
        ("heartbeat", "f8"),  # time.monotonic() of the last sign of life
    ]
)
_RESULT = np.dtype([("return", "f8"), ("length", "i8"), ("timed_out", "?")])


class EvaluatorError(RuntimeError):
    """The evaluator failed and will not be restarted; the message holds its traceback."""


class Board:
    """What learner and evaluator tell each other, in shared memory.

    Attributes:
        state: Fields by name, `[1]`.
        results: `return`, `length` and `timed_out` by episode, `[episodes]`.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        nbytes = _STATE.itemsize + episodes * _RESULT.itemsize
        self._block = SharedBlock(nbytes, "lower evaluation.episodes")
        self._map()

    def _map(self) -> None:
        self.state: Any = self._block.array(_STATE, 1)
        self.results: Any = self._block.array(_RESULT, self._episodes, _STATE.itemsize)

    def __getstate__(self) -> tuple[int, SharedBlock]:
        return self._episodes, self._block

    def __setstate__(self, state: tuple[int, SharedBlock]) -> None:
        self._episodes, self._block = state
        self._map()


@dataclass(frozen=True)
class EvaluatorPlan:
    """All the evaluator is told; pickled once, when it starts.

    Attributes:
        network: Builds the network.
        env: Environment of the episodes.
        seeds: One per episode.
        epsilon: Probability of a random action.
        max_frames: Frames after which an episode is cut off.
    """

    network: NetworkRecipe
    env: EnvConfig
    seeds: Sequence[int]
    epsilon: float
    max_frames: int


def run_evaluator(
    plan: EvaluatorPlan, store: WeightStore, board: Board, errors: Connection
) -> None:
    """Evaluate what is asked for until the learner says stop; the body of the process."""
    isolate()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    torch.set_num_threads(1)
    with errors_sent_to(errors):
        policy = SubscribedPolicy(plan.network.build(), store, noise=False)
        try:
            while True:
                _show_life(board)
                if board.state["asked"][0] == board.state["done"][0]:
                    time.sleep(_IDLE_SECONDS)
                else:
                    _evaluate(plan, policy, board)
        except StopRequested:
            os._exit(0)  # taking torch down costs half a second of a niced process; nothing is lost


def _evaluate(plan: EvaluatorPlan, policy: SubscribedPolicy, board: Board) -> None:
    episodes = run_episodes(
        plan.env,
        policy,
        plan.seeds,
        epsilon=plan.epsilon,
        max_frames=plan.max_frames,
        check=lambda: _show_life(board),
    )
    board.results["return"] = episodes.returns
    board.results["length"] = episodes.lengths
    board.results["timed_out"] = episodes.timed_out
    board.state["done"] = policy.version  # of all steps: the learner publishes no other meanwhile


def _show_life(board: Board) -> None:
    board.state["heartbeat"] = time.monotonic()
    if board.state["stop"][0]:
        raise StopRequested


@dataclass(kw_only=True)
class EvaluatorHandle(SupervisedProcess):
    """The evaluator's process of the moment, and its board."""

    board: Board

    def has_started(self) -> bool:
        """Return whether the process ever showed life."""
        return self.board.state["heartbeat"][0] != 0


class Evaluator(Supervisor[EvaluatorHandle]):
    """Plays evaluation episodes in a process of its own, one set of weights after the other.

    An evaluator that dies or hangs is restarted, as actors are, and begins its episodes again.

    Args:
        plan: What it plays.
        num_parameters: `vector_size` of the network.
        actors: How failures are met: as those of actors, but ten times the time-out, and the run
            also ends when `max_restarts` have not got it through the episodes of one learner step.
    """

    error = EvaluatorError

    def __init__(self, plan: EvaluatorPlan, num_parameters: int, actors: ActorConfig) -> None:
        super().__init__(replace(actors, timeout_seconds=_PATIENCE * actors.timeout_seconds), 1)
        self.plan = plan
        self._failed_step, self._failures = -1, 0
        self._board = Board(len(plan.seeds))
        self._store = WeightStore(num_parameters)
        self._context = multiprocessing.get_context("spawn")

    @property
    def is_busy(self) -> bool:
        """Whether a result is awaited."""
        return bool(self._board.state["asked"][0] != self._board.state["done"][0])

    def ask(self, network: QNetwork, learner_step: int) -> None:
        """Have weights evaluated; they are copied, and the learner may go on.

        Args:
            network: Holds the weights.
            learner_step: Where they come from; above that of all earlier ones, and above 0.

        Raises:
            ValueError: The weights before are not done.
        """
        if self.is_busy:
            raise ValueError("the evaluator is busy; wait for its result")
        publish_weights(network, self._store, learner_step)
        self._board.state["asked"] = learner_step

    def results(self) -> Episodes:
        """Return the episodes of the weights that were asked for last, once it is not busy."""
        results = self._board.results.copy()
        return Episodes(results["return"], results["length"], results["timed_out"])

    def close(self) -> None:
        """Stop the process; bounded and idempotent."""
        self.stop(timeout=2.0)
        self._store.close()

    def _launch(self, index: int, previous: EvaluatorHandle | None) -> EvaluatorHandle:
        self._board.state["heartbeat"] = 0.0
        arguments = [self.plan, self._store, self._board]
        started = self._start_process(self._context, "evaluator", run_evaluator, arguments)
        return EvaluatorHandle("evaluator", *started, board=self._board)

    def _heartbeat(self, handle: EvaluatorHandle) -> float:
        return float(self._board.state["heartbeat"][0])

    def _request_stop(self) -> None:
        self._board.state["stop"] = 1

    def _reason_to_give_up(self, handle: EvaluatorHandle) -> str | None:
        if handle.has_failed:
            return "an error in it"
        asked = int(self._board.state["asked"][0])
        self._failures = self._failures + 1 if asked == self._failed_step else 1
        self._failed_step = asked
        if self._failures > self._limits.max_restarts:
            return f"failed {self._failures} times at the episodes of learner step {asked}"
        return None
