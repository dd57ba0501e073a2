"""The one call that checks a run as a whole, before anything starts (docs/preflight.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import lightning as L

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import Exploration
from lrl.cluster.config import ClusterConfig
from lrl.envs import EnvConfig, make_spec
from lrl.evaluation.episodes import EvaluationConfig, check_same_spaces, differing_spaces
from lrl.inference.config import InferenceConfig
from lrl.preflight.callbacks import check_callbacks, evaluates_in_background
from lrl.preflight.machine import (
    check_compiler,
    check_machine,
    check_replay_device,
    check_replay_index,
)
from lrl.preflight.settings import (
    check_cluster,
    check_inference,
    check_sequences,
    check_synchronous,
    check_warm_up,
    check_weight_period,
)
from lrl.preflight.trainer import (
    check_captured,
    check_clipping,
    check_scheduler,
    check_trainer,
    check_updates_per_step,
)
from lrl.replay import RateLimiterConfig, ReplayConfig, Sampler, TrackingSampler
from lrl.types import ConfigError, EnvSpec


class BringsExperience(ABC):
    """A datamodule that has its run checked: `ReplayDataModule`."""

    env: EnvConfig
    evaluation_env: EnvConfig
    actors: ActorConfig
    inference: InferenceConfig | None
    cluster: ClusterConfig | None
    exploration: Exploration
    replay: ReplayConfig
    rate: RateLimiterConfig
    evaluation: EvaluationConfig
    has_own_pool: bool
    has_own_experience: bool
    takes_weights: bool
    """Whether what acts has to be sent the weights that it acts with."""

    @property
    def num_processes(self) -> int:
        """Actors in processes of this machine."""
        return 0 if self.has_own_pool else self.actors.num_actors

    @property
    def num_actors(self) -> int:
        """Actors of a rank, wherever they are; 0 in synchronous mode."""
        return self.actors.num_actors + (self.cluster.num_actors if self.cluster else 0)

    @property
    def busy_cores(self) -> int:
        """Cores of this machine that a rank's actors and inference servers keep busy."""
        if self.has_own_pool or (self.cluster is not None and self.cluster.address is not None):
            return self.num_processes
        return self.num_actors + (self.inference.busy_threads if self.inference else 0)

    @property
    def local_inference(self) -> InferenceConfig | None:
        """The inference servers of this machine; with a cluster they are there."""
        return self.inference if self.cluster is None else None

    @property
    @abstractmethod
    def env_spec(self) -> EnvSpec:
        """The environment's specification."""


def check_evaluation(trainer: L.Trainer, data: BringsExperience) -> None:
    """Check that evaluation has the spaces of training, and as many episodes for each rank.

    Raises:
        ConfigError: It has not.
    """
    if data.evaluation_env != data.env:
        check_same_spaces(data.env_spec, make_spec(data.evaluation_env))
    evaluation, ranks = data.evaluation, trainer.world_size
    if evaluation.episodes % ranks or evaluation.test_episodes % ranks:
        raise ConfigError(
            f"evaluation.episodes {evaluation.episodes} and evaluation.test_episodes "
            f"{evaluation.test_episodes} must be multiples of the {ranks} ranks"
        )


def check_agent(agent: object, env_spec: EnvSpec) -> None:
    """Check that an agent whose network was made before was made for this environment.

    Args:
        agent: The Trainer's module, a `DQN` with its `env_spec` or another one.
        env_spec: Of the environment.

    Raises:
        ConfigError: It has other observations or actions.
    """
    known = getattr(agent, "env_spec", None)
    if isinstance(known, EnvSpec) and (other := differing_spaces(known, env_spec)):
        raise ConfigError(
            f"data.env gives an environment with {', '.join(other)}, for which the agent's network "
            "was made (its env_spec): train a new agent, or give this one its own environment"
        )


def check_run(
    trainer: L.Trainer,
    settings: Mapping[str, Any],
    data: BringsExperience | None = None,
    sampler: Sampler | None = None,
) -> None:
    """Check that the parts of a run that trains fit together.

    Args:
        trainer: The Trainer, with its callbacks.
        settings: Those of the agent, by their names in `model`.
        data: The datamodule; None if it is none of lrl's.
        sampler: What it draws from the replay with.

    Raises:
        ConfigError: They do not; the message names the settings.
    """
    check_trainer(trainer, has_experience=data is not None)
    takes_weights = data is None or data.takes_weights
    check_updates_per_step(settings.get("updates_per_step", 1), trainer, takes_weights)
    check_clipping(settings.get("gradient_clip_norm"), trainer)
    check_scheduler(settings.get("lr_scheduler"))
    if settings.get("updater") == "captured":
        check_captured(trainer)
    elif settings.get("updater") == "compiled":
        check_compiler(trainer.strategy.root_device)
    if data is None:
        check_callbacks(trainer, takes_weights=False, needs_priorities=False)
        return
    actors, ranks = data.actors, trainer.num_devices
    if data.cluster is not None:
        check_cluster(data.cluster, actors, data.inference)
    elif data.inference is not None:
        check_inference(data.inference, actors)
    check_replay_device(data.replay.device, trainer.strategy.root_device)
    check_replay_index(data.replay, sampler, trainer)
    check_synchronous(actors, data.rate, evaluates_in_background(trainer), data.num_actors)
    check_weight_period(trainer, data.takes_weights)
    data.exploration.check_actors(max(1, data.num_actors) * trainer.world_size)
    if not data.has_own_experience:
        check_warm_up(data.rate, data.replay)
        if data.replay.sequences is not None:
            has_priorities = isinstance(sampler, TrackingSampler)
            check_sequences(data.replay.sequences, settings, has_priorities)
    if not data.has_own_pool and sampler is not None:
        replay = None if data.has_own_experience else data.replay
        streams = max(1, data.num_actors) * actors.envs_per_actor
        check_machine(data.env_spec, actors, streams, data.local_inference, replay, sampler, ranks)
    needs_priorities = isinstance(sampler, TrackingSampler) and data.replay.index == "host"
    check_callbacks(trainer, data.takes_weights, needs_priorities)
