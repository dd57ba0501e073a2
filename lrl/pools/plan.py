"""What actors in other processes are told, wherever they run."""

from __future__ import annotations

from dataclasses import dataclass

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig
from lrl.inference.config import InferenceConfig
from lrl.networks import NetworkRecipe
from lrl.types import EnvSpec


@dataclass(frozen=True)
class ActingPlan:
    """All that a pool of actors in other processes starts from.

    Attributes:
        actors: Number of actors and of their environments, and what to do when one fails.
        env: The environment that each builds for itself.
        spec: What it looks like.
        exploration: How actors explore.
        slot: The first actor's place in the run.
        recipe: Builds the network in other processes.
        inference: The servers that compute all action values, if there are any.
        version: Learner steps so far: the version of the first weights.
    """

    actors: ActorConfig
    env: EnvConfig
    spec: EnvSpec
    exploration: Exploration
    slot: ActorSlot
    recipe: NetworkRecipe
    inference: InferenceConfig | None = None
    version: int = 0

    @property
    def groups(self) -> int:
        """Groups of an actor's environments; with servers, one acts while another waits."""
        return 1 if self.inference is None else self.inference.groups_per_actor
