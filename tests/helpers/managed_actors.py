"""An actor manager with what it needs, and a learner that takes the rows and keeps them."""

from __future__ import annotations

import copy
import functools
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy, Exploration
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_spec
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.networks.q_network import vector_size, weights_of
from lrl.parts.recipe import Recipe
from lrl.schedules import Constant
from lrl.transport import ChunkQueue, WeightStore
from lrl.types import RowKind, Rows

VERSION = 7
LEDGER = EnvConfig(id="lrl/Ledger-v0")


def faulty(**kwargs: Any) -> EnvConfig:
    return EnvConfig(id="helpers.odd_envs:Faulty-v0", kwargs=kwargs)


class Learner:
    """A manager with what it needs, and all rows that were taken, by actor and in their order."""

    def __init__(
        self, config: ActorConfig, env: EnvConfig, exploration: Exploration | None = None
    ) -> None:
        spec = make_spec(env)
        encoder = Recipe.of(functools.partial(MLPEncoder, hidden_sizes=(8,)))
        recipe = NetworkRecipe(spec, encoder, Recipe.of(ScalarHead))
        self.network = recipe.build()
        self.store = WeightStore(vector_size(self.network))
        vector = weights_of(self.network)
        self.store.publish(vector.numpy(), VERSION)
        self.queue = ChunkQueue()
        self.slot = ActorSlot(3, num_actors=config.num_actors, envs_per_actor=config.envs_per_actor)
        factory = LocalPolicyFactory(recipe, self.store)
        self.manager = ActorManager(
            config,
            env,
            spec,
            exploration or EpsilonGreedy(Constant(0.5)),
            lambda actor: factory,
            self.queue,
            self.slot,
        )
        self.rows: dict[int, list[Rows]] = {actor: [] for actor in range(config.num_actors)}
        self.episodes = 0

    def take(self, timeout: float = 0.0) -> bool:
        try:
            chunk = self.queue.get(timeout)
        except queue.Empty:
            return False
        with chunk:
            self.rows[chunk.actor].append(copy.deepcopy(chunk.rows))
        self.episodes += len(chunk.episode_return)
        return True

    def drain(self) -> None:
        while self.take():
            pass

    def take_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 100.0
        while not condition():
            assert time.monotonic() < deadline, f"not in 100 s: {what}"
            self.take(0.05)
            self.manager.check()

    def column(self, actor: int, name: str) -> np.ndarray:
        parts = [getattr(rows, name) for rows in self.rows[actor]]
        return np.concatenate(parts) if parts else np.empty(0)

    def steps(self, actor: int) -> int:
        return sum(int((rows.kind == RowKind.STEP).sum()) for rows in self.rows[actor])

    def all_acted(self, steps: int = 1) -> bool:
        return all(self.steps(actor) >= steps for actor in self.rows)

    def stop(self) -> None:
        self.manager.stop(drain=self.drain)
