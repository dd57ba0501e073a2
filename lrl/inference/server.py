"""An inference server: action values for all its actors, in batches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from lrl.actors.policy import SubscribedPolicy
from lrl.inference.request_queue import RequestQueue
from lrl.inference.requests import RequestSlots
from lrl.networks.q_network import NetworkRecipe
from lrl.processes.child import errors_sent_to, isolate, send_traceback
from lrl.transport import WeightStore

_IDLE_SECONDS = 0.1  # without a look at `stop` and a heartbeat
_MAX_FAILURES = 3  # in a row


@dataclass(frozen=True)
class ServerPlan:
    """All an inference server is told; pickled once, when it starts.

    Attributes:
        recipe: Builds the network.
        store: The weights.
        slots: The requests.
        batch_requests: Requests in a full batch.
        max_batch_delay_seconds: How long the oldest request waits for a batch to fill.
        sync_period_seconds: Least time between two updates of the weights.
        device: Where the network runs.
        num_threads: Threads of torch.
        seed: Seed of the noise in noisy layers.
    """

    recipe: NetworkRecipe
    store: WeightStore
    slots: RequestSlots
    batch_requests: int
    max_batch_delay_seconds: float
    sync_period_seconds: float
    device: str
    num_threads: int
    seed: int


class InferenceServer:
    """Answers requests with a copy of the online network, until the learner says stop.

    A batch runs when it is full, or when its oldest request has waited for the delay. Weights
    change between batches only. Every row has noise of its own in noisy layers.

    Args:
        plan: See `ServerPlan`.
        errors: Takes the traceback of a batch in which the network failed.
    """

    def __init__(self, plan: ServerPlan, errors: Connection) -> None:
        network = plan.recipe.build().to(plan.device)
        self.policy = SubscribedPolicy(network, plan.store, plan.device, noise_per_row=True)
        self.policy.refresh()
        self.requests = RequestQueue(plan.slots, plan.batch_requests)
        self._store = plan.store
        self._delay = plan.max_batch_delay_seconds
        self._period = plan.sync_period_seconds
        self._errors = errors
        self._refreshed = time.monotonic()
        self._failures = 0

    def run(self) -> None:
        """Serve until the learner says stop.

        Raises:
            Exception: The network failed three times in a row.
        """
        while not self.requests.stop_requested:
            self.serve()

    def serve(self) -> None:
        """Wait for requests, or run a batch if there is one to run."""
        waited = self.requests.seconds_waited()
        if waited is None:
            self.requests.collect(_IDLE_SECONDS)
            return
        remaining = 0.0 if self.requests.is_full else max(0.0, self._delay - waited)
        self.requests.collect(min(remaining, _IDLE_SECONDS))
        if self.requests.is_full or remaining == 0.0:
            self._run_batch()

    def _run_batch(self) -> None:
        self._refresh()
        taken = self.requests.take()
        try:
            decision = self.policy.policy(taken.observation, taken.memory)
            lag = max(0, self._store.version - decision.version)
            self.requests.answer(taken, decision, lag)
        except Exception:
            self.requests.fail(taken)
            self._failures += 1
            if self._failures == _MAX_FAILURES:
                raise
            send_traceback(self._errors, fatal=False)
            return
        self._failures = 0

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._store.version != self.policy.version and now >= self._refreshed + self._period:
            self.policy.refresh()
            self._refreshed = now


def run_server(plan: ServerPlan, errors: Connection) -> None:
    """Serve until the learner says stop; the body of a server's process."""
    isolate()
    with errors_sent_to(errors):
        torch.set_num_threads(plan.num_threads)
        torch.manual_seed(plan.seed)
        InferenceServer(plan, errors).run()
