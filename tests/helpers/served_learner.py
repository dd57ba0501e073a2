"""A learner with an inference server in its own process, and what the server should say."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from helpers.inference import ask_many, finish, in_background, start
from lrl.inference.requests import Requester, RequestLayout, RequestSlots
from lrl.inference.server import InferenceServer, ServerPlan
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.networks.q_network import read_vector, vector_size
from lrl.parts.recipe import Recipe
from lrl.transport import WeightStore
from lrl.types import EnvSpec

SPEC = EnvSpec.box((4,), "float32", 3)
ENCODER = functools.partial(MLPEncoder, hidden_sizes=(32,))


class ServedLearner:
    """Publishes random weights, owns the slots and the server, and computes what it should say."""

    def __init__(
        self,
        slots: int = 2,
        rows: int = 1,
        spec: EnvSpec = SPEC,
        encoder: Callable = ENCODER,
        head: Callable = ScalarHead,
        **plan: Any,
    ) -> None:
        recipe = NetworkRecipe(spec, Recipe.of(encoder), Recipe.of(head))
        self.network = recipe.build().eval()
        self.store = WeightStore(vector_size(self.network))
        self.weights: dict[int, torch.Tensor] = {}
        self.publish(0)
        self.slots = RequestSlots(RequestLayout(spec, slots, rows))
        self.errors, self._server_errors = multiprocessing.Pipe(duplex=False)
        settings = {
            "batch_requests": slots,
            "max_batch_delay_seconds": 0.0,
            "sync_period_seconds": 0.0,
            **plan,
        }
        self._plan = ServerPlan(
            recipe, self.store, self.slots, device="cpu", num_threads=1, seed=0, **settings
        )
        self.start_server()

    def start_server(self) -> None:
        self.server = InferenceServer(self._plan, self._server_errors)
        self.served_network = self.server.policy.policy.network

    def publish(self, version: int) -> None:
        rng = np.random.default_rng(version)
        vector = 0.3 * rng.standard_normal(vector_size(self.network), np.float32)
        self.store.publish(vector, version)
        self.weights[version] = torch.from_numpy(vector)

    def values(self, version: int, *batches: np.ndarray) -> np.ndarray:
        """Compute what a version says of batches, one after the other."""
        read_vector(self.network, self.weights[version])
        with torch.no_grad():
            parts = [self.network.q_values(torch.from_numpy(batch)) for batch in batches]
        return torch.cat(parts).numpy()

    def requester(self, slot: int = 0) -> Requester:
        """Return an actor; a slot can have but one in a test."""
        return Requester(self.slots.client(slot), 0)

    def ask(self, requester: Requester, observation: np.ndarray) -> tuple[np.ndarray, int]:
        """Ask, let the server run one batch in this thread, and return what it says."""
        requester.ask(observation)
        self.server.serve()  # takes it in
        self.server.serve()  # runs the batch
        return reply_to(requester, 0.0)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in a thread; what the server raises is raised here in the end."""
        future = in_background(self.server.run)
        try:
            yield
        finally:
            self.slots.server["stop"] = 1
        future.result(100.0)

    def serve_processes(self, count: int) -> list[tuple[list[int], np.ndarray]]:
        """Serve `count` requests of each slot, made in a process, while new weights come.

        Returns:
            Versions and values of the replies, `[count]` and `[count, rows, actions]`, by slot.
        """
        results, processes = [], []
        for slot in range(self.slots.layout.slots):
            result, sender = multiprocessing.Pipe(duplex=False)
            end = self.slots.client(slot)
            processes.append(start("forkserver", ask_many, end, count, sender))
            sender.close()
            results.append(result)
        with self.serving():
            while not all(result.poll() for result in results):
                self.publish(self.store.version + 1)
                time.sleep(0.01)
        replies = [result.recv() for result in results]
        for process, result in zip(processes, results, strict=True):
            assert finish(process) == 0
            result.close()
        return replies

    def close(self) -> None:
        self.slots.close()
        self.store.close()
        self.errors.close()
        self._server_errors.close()


def reply_to(requester: Requester, seconds: float = 30.0) -> tuple[np.ndarray, int]:
    reply = requester.wait(seconds)
    assert reply is not None
    assert not reply.failed
    return reply.values, reply.version


class Faults:
    """Makes a network fail as often as it is told, from the next forward on."""

    def __init__(self, network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._features = network.features
        monkeypatch.setattr(network, "features", self)

    def __call__(self, observation: torch.Tensor, memory: Any = None) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError(f"the network is ill, {self.left} left")
        return self._features(observation, memory)
