"""A learner with actors in the background, as a fixture."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.managed_actors import LEDGER, Learner
from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.envs import EnvConfig


@pytest.fixture
def learner():
    made: list[Learner] = []

    def make(
        env: EnvConfig = LEDGER, exploration: Exploration | None = None, **config: Any
    ) -> Learner:
        settings = {"num_actors": 2, "envs_per_actor": 1, "chunk_rows": 8, **config}
        made.append(Learner(ActorConfig(**settings), env, exploration))
        made[-1].manager.start()
        return made[-1]

    yield make
    while made:  # pytest keeps `make`, and with it whatever is left here
        one = made.pop()
        one.stop()
        one.queue.close()
        assert not any(process.is_alive() for process in one.manager.processes)
