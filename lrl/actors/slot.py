"""An actor's place in the run: which environments, streams, and seeds are its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

TRAINING_SEED_FLOOR = 2**24
"""Environment seeds of training lie at or above this, those of evaluation below."""
_SEED_SPAN = 2**31 - TRAINING_SEED_FLOOR  # ALE takes 31 bits


@dataclass(frozen=True)
class ActorSlot:
    """Where one actor stands among all actors of all ranks.

    Attributes:
        seed: The run's seed.
        rank: Learner process this actor belongs to, of `world_size`.
        world_size: Number of learner processes.
        actor: Index of the actor on its rank, of `num_actors`.
        num_actors: Actors per rank; the synchronous mode counts as one.
        envs_per_actor: Environments of each actor.
        incarnation: 0 at first, one more with every restart.
    """

    seed: int
    rank: int = 0
    world_size: int = 1
    actor: int = 0
    num_actors: int = 1
    envs_per_actor: int = 1
    incarnation: int = 0

    @property
    def streams(self) -> npt.NDArray[np.int32]:
        """Stream numbers of this actor's environments, unique on its rank."""
        return np.arange(self.envs_per_actor, dtype=np.int32) + self.actor * self.envs_per_actor

    @property
    def environments(self) -> npt.NDArray[np.int64]:
        """Indices of this actor's environments among those of all ranks, for exploration."""
        offset = (self.rank * self.num_actors + self.actor) * self.envs_per_actor
        return np.arange(self.envs_per_actor, dtype=np.int64) + offset

    @property
    def total_environments(self) -> int:
        """Number of environments of all ranks."""
        return self.world_size * self.num_actors * self.envs_per_actor

    def steps_of_run(self, env_steps: int, num_actors: int) -> int:
        """Return the environment steps of all actors of all ranks, from those of some.

        The others are taken to be as fast.

        Args:
            env_steps: What the actors that were counted made together.
            num_actors: How many of this rank's they are.

        Example:
            >>> ActorSlot(seed=0, world_size=2, num_actors=6).steps_of_run(100, num_actors=2)
            600
        """
        return env_steps * self.world_size * self.num_actors // num_actors

    def restarted(self) -> ActorSlot:
        """Return the slot's next incarnation."""
        return replace(self, incarnation=self.incarnation + 1)

    def split(self, groups: int) -> list[ActorSlot]:
        """Return the slots of equal groups of this actor's environments, in their order."""
        return [
            replace(
                self,
                actor=self.actor * groups + group,
                num_actors=self.num_actors * groups,
                envs_per_actor=self.envs_per_actor // groups,
            )
            for group in range(groups)
        ]

    def env_seeds(self) -> list[int]:
        """Return one seed per environment, never one that evaluation uses.

        They are distinct over all actors, ranks and incarnations of a run: they count up from a
        number that depends on the run's seed, and every environment mixes its seed itself.
        """
        numbers = self._seed_base + self.incarnation * self.total_environments + self.environments
        return [TRAINING_SEED_FLOOR + int(number) % _SEED_SPAN for number in numbers]

    def place_of(self, env_seed: int) -> tuple[int, int]:
        """Return whose seed this is: an environment among those of all ranks, and its incarnation.

        The inverse of `env_seeds`, for any slot of the run.

        Example:
            >>> slot = ActorSlot(seed=1, actor=2, num_actors=3, envs_per_actor=4, incarnation=5)
            >>> [slot.place_of(seed) for seed in slot.env_seeds()]
            [(8, 5), (9, 5), (10, 5), (11, 5)]
        """
        number = (env_seed - TRAINING_SEED_FLOOR - self._seed_base) % _SEED_SPAN
        incarnation, environment = divmod(number, self.total_environments)
        return environment, incarnation

    def generator(self) -> np.random.Generator:
        """Return the generator of this actor's exploration."""
        return np.random.default_rng(self._seed_sequence())

    def policy_seed(self) -> int:
        """Return the seed of what this actor's policy draws by itself, such as noise."""
        (child,) = self._seed_sequence().spawn(1)
        return int(child.generate_state(1, np.uint64)[0])

    @property
    def _seed_base(self) -> int:
        return int(np.random.SeedSequence(self.seed).generate_state(1)[0])

    def _seed_sequence(self) -> np.random.SeedSequence:
        place = (self.rank, self.actor, self.incarnation)
        return np.random.SeedSequence(self.seed, spawn_key=place)
