"""A run with actors on a cluster, whose Ray is in this process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.envs import EnvConfig, make_spec
from lrl.inference.config import InferenceConfig
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.pools.cluster import ClusterPool
from lrl.pools.plan import ActingPlan
from lrl.testing import Ledger, LedgerEnv
from lrl.types import Rows

LEDGER = EnvConfig("lrl/Ledger-v0")
SPEC = make_spec(LEDGER)
SLOT = ActorSlot(7, num_actors=2, envs_per_actor=2)
RECIPE = NetworkRecipe(SPEC, Recipe.of(MLPEncoder), Recipe.of(ScalarHead))
ENVS = 2


class Run:
    """A pool that was started, and what came of it.

    Args:
        env: What the actors act in.
        inference: Servers, if there are any.
        waits: Until the cluster is joined.
        settings: Of actors and cluster.
    """

    def __init__(
        self,
        env: EnvConfig = LEDGER,
        inference: InferenceConfig | None = None,
        waits: bool = True,
        **settings: Any,
    ) -> None:
        known = {field.name for field in dataclasses.fields(ClusterConfig)}
        ours = {name: settings.pop(name) for name in list(settings) if name in known}
        actors = ActorConfig(num_actors=0, envs_per_actor=ENVS, chunk_rows=16, **settings)
        plan = ActingPlan(actors, env, SPEC, EpsilonGreedy(), SLOT, RECIPE, inference)
        self.pool = ClusterPool(ClusterConfig(**ours), plan, ["numpy"])
        torch.manual_seed(3)
        self.network = RECIPE.build()
        self.rows: list[Rows] = []
        self.pool.start(self.network, 0)
        if waits:
            self.settle()

    def poll(self, times: int = 4) -> list[Rows]:
        """Return the rows of so many rounds, in each of which the fleet looks after its actors."""
        found: list[Rows] = []
        for _ in range(times):
            self.fleet._looked_at -= 0.2
            if self.fleet.servers is not None:
                self.fleet.servers._asked = [0.0] * len(self.fleet.servers.all)
            for delivery in self.pool.poll(0.0):
                found.extend(delivery.rows)
        self.rows += found
        return found

    def settle(self) -> None:
        """Wait until the thread that waits for Ray has nothing to do."""
        self.fleet._session.later(lambda: None).result(5.0)

    def ledger(self) -> Ledger:
        """Return the book of all rows so far, which is without a fault."""
        ledger = Ledger(LedgerEnv(), slot=SLOT)
        for rows in self.rows:
            ledger.take(rows)
        ledger.raise_faults()
        return ledger

    @property
    def fleet(self):
        return self.pool.fleet

    def actor(self, index: int = 0):
        return self.fleet.actors.all[index].body

    def restart(self, index: int = 0) -> None:
        """Let the pause before a restart be over."""
        self.fleet.actors.all[index].restart_at = 0.0


def of_stream(rows: list[Rows], stream: int, column: str) -> np.ndarray:
    return np.concatenate([r.columns()[column][r.stream == stream] for r in rows])
