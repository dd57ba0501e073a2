"""Checks that settings fit together, so that none silently does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import lightning as L

from lrl.actors.config import ActorConfig
from lrl.cluster.config import ClusterConfig
from lrl.cluster.session import check_trust, import_ray
from lrl.inference.config import InferenceConfig
from lrl.parts.devices import usable_device
from lrl.preflight.callbacks import SyncsWeights, parts_of
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay import (
    Experience,
    RateLimiterConfig,
    ReplayConfig,
    Rollouts,
    SequenceConfig,
)
from lrl.types import ConfigError

_OF_PROCESSES = ("chunks_per_actor", "start_method")
_OF_RINGS = ("chunk_rows", *_OF_PROCESSES)
_OF_SUPERVISION = ("on_failure", "max_restarts", "timeout_seconds")


class OwnOptimisation(NamedTuple):
    """Why a training step optimises by itself, in place of the Trainer.

    Attributes:
        setting: What is set, and to what.
        otherwise: What to set it to for the Trainer to optimise.
    """

    setting: str
    otherwise: str


def own_optimisation(updates: int, updater: str) -> OwnOptimisation | None:
    """Return why a training step optimises by itself; None if the Trainer does.

    Args:
        updates: `model.updates_per_step`.
        updater: `model.updater`.
    """
    if updater == "captured":
        return OwnOptimisation("model.updater is captured", "eager")
    if updates > 1:
        return OwnOptimisation(f"model.updates_per_step is {updates}", "1")
    return None


def is_logging_step(trainer: L.Trainer, learner_step: int) -> bool:
    """Return whether a learner step's metrics are logged (Trainer's `log_every_n_steps`)."""
    period: int = getattr(trainer, "log_every_n_steps", 0)
    return period > 0 and learner_step % period == 0


def check_synchronous(
    actors: ActorConfig, rate: RateLimiterConfig, has_evaluator: bool, num_actors: int
) -> None:
    """Check that nothing is set that would do nothing without actors in the background.

    Args:
        actors: Those of the run.
        rate: Its ratio of learning to acting.
        has_evaluator: Whether a process plays evaluation episodes, whose failures are met as those
            of actors are.
        num_actors: Actors on this machine and on a cluster.

    Raises:
        ConfigError: Such a setting has another value than its default.
    """
    if rate.max_samples_ahead is not None and rate.samples_per_insert is None:
        raise ConfigError(
            f"rate.max_samples_ahead is {rate.max_samples_ahead}, but rate.samples_per_insert is "
            "null (free running), so that nobody waits and it would do nothing: leave it out"
        )
    if num_actors > 0:
        return
    if rate.samples_per_insert is None:
        raise ConfigError(
            "rate.samples_per_insert is null (free running) but actors.num_actors is 0: "
            "without background actors the ratio decides when to act; set it to a number"
        )
    idle = _OF_RINGS if has_evaluator else (*_OF_RINGS, *_OF_SUPERVISION)
    for name in idle:
        if (value := getattr(actors, name)) != getattr(ActorConfig, name):
            _refuse_synchronous(f"actors.{name}", value)
    if rate.max_samples_ahead is not None:
        _refuse_synchronous("rate.max_samples_ahead", rate.max_samples_ahead)


def check_weight_period(trainer: L.Trainer, takes_weights: bool) -> None:
    """Check that weights have no period where nobody takes them.

    Args:
        trainer: Has the callbacks.
        takes_weights: Whether what acts has to be sent weights.

    Raises:
        ConfigError: They have one.
    """
    for sync in parts_of(trainer, SyncsWeights):
        if not takes_weights and sync.asked_period != sync.default_period:
            raise ConfigError(
                f"sync_period_learner_steps is {sync.asked_period}, but nobody takes weights (in "
                "synchronous mode, actors.num_actors 0, and with a data.pool that has no publish "
                "of its own), so that it would do nothing: leave it out"
            )


def _refuse_synchronous(name: str, value: object) -> NoReturn:
    raise ConfigError(
        f"{name} is {value}, but actors.num_actors is 0 (synchronous mode), where it would do "
        "nothing: leave it out, or give the run --config recipe:system/synchronous last"
    )


def check_cluster(
    cluster: ClusterConfig, actors: ActorConfig, inference: InferenceConfig | None
) -> None:
    """Check that actors can be placed on a cluster, and that settings of processes do something.

    Args:
        cluster: The actors there.
        actors: What is said of all actors.
        inference: Servers on the cluster that compute their action values, if there are any.

    Raises:
        ConfigError: Ray is not installed, or something does not fit.
    """
    idle = "i_know_this_network_is_private" if cluster.address is None else "object_store_mib"
    if (value := getattr(cluster, idle)) != getattr(ClusterConfig, idle):
        raise ConfigError(
            f"cluster.{idle} is {value}, but cluster.address is {cluster.address or 'null'}, so "
            "that it would do nothing: leave it out"
        )
    check_trust(import_ray(), cluster)
    _check_object_store(cluster)
    if inference is not None:
        _check_remote_inference(inference, cluster, actors)
    for name in _OF_PROCESSES if actors.num_actors == 0 else ():
        if (value := getattr(actors, name)) != getattr(ActorConfig, name):
            raise ConfigError(
                f"actors.{name} is {value}, but with data.cluster and actors.num_actors 0 there "
                "are no processes of this machine, so that it would do nothing: leave it out"
            )


def _check_object_store(cluster: ClusterConfig) -> None:
    needed, free = cluster.object_store_mib * 2**20, available_bytes()
    if cluster.address is None and free is not None and needed > free:
        raise ConfigError(
            f"cluster.object_store_mib is {cluster.object_store_mib}, for which a Ray that is "
            f"started here would take {format_bytes(needed)}, and {format_bytes(free)} are free: "
            "lower it"
        )


def _check_remote_inference(
    inference: InferenceConfig, cluster: ClusterConfig, actors: ActorConfig
) -> None:
    if actors.num_actors > 0:
        raise ConfigError(
            "data.inference has its servers on data.cluster, which actors in processes of this "
            f"machine cannot reach: set actors.num_actors, which is {actors.num_actors}, to 0"
        )
    for name in inference.devices:
        if name not in ("cpu", "cuda"):
            raise ConfigError(
                f"inference.devices {name!r} is no device of a server on data.cluster, where Ray "
                "chooses the GPU: 'cpu' and 'cuda' are"
            )
        if cluster.address is None:
            usable_device("inference.devices", name)
    _check_batches(inference, replace(actors, num_actors=cluster.num_actors))


def check_inference(inference: InferenceConfig, actors: ActorConfig) -> None:
    """Check that inference servers, their batches and devices fit the actors and this machine.

    Raises:
        ConfigError: It does not.
    """
    _check_batches(inference, actors)
    for name in inference.devices:
        if usable_device("inference.devices", name).type == "meta":
            raise ConfigError(f"inference.devices {name!r} cannot be used here, 'cpu' can")


def _check_batches(inference: InferenceConfig, actors: ActorConfig) -> None:
    inference.check(actors)
    if inference.num_threads > 1 and "cpu" not in inference.devices:
        raise ConfigError(
            f"inference.num_threads is {inference.num_threads}, but inference.devices "
            f"{list(inference.devices)} has no cpu, so it would do nothing: leave it out"
        )


def check_warm_up(rate: RateLimiterConfig, replay: ReplayConfig) -> None:
    """Check that the environment steps before learning starts fit into the replay.

    Raises:
        ConfigError: They do not.
    """
    if rate.warm_up_env_steps > replay.capacity:
        raise ConfigError(
            f"rate.warm_up_env_steps is {rate.warm_up_env_steps}, but the replay keeps only "
            f"{replay.capacity} rows: set it to at most replay.capacity"
        )


def check_offline(pool: str, rate: RateLimiterConfig, has_replay: bool) -> None:
    """Check that nothing is set that would do nothing where all rows are there at once.

    Args:
        pool: Name of the pool that brings them.
        rate: The ratio of learning to acting.
        has_replay: Whether they are learnt from by a replay.

    Raises:
        ConfigError: Such a setting has another value than its default, or rows are not kept.
    """
    if replace(rate, max_learner_steps_per_second=None) != RateLimiterConfig():
        raise ConfigError(
            f"data.pool {pool} brings all rows before learning begins, so that data.rate would do "
            "nothing (but for max_learner_steps_per_second): leave it out, or give the run "
            "--config recipe:system/offline last"
        )
    if not has_replay:
        raise ConfigError(
            f"data.pool {pool} brings each row once, and data.experience would forget it: leave "
            "data.experience out, so that a replay keeps all rows"
        )


def check_holds(replay: ReplayConfig, rows: int) -> None:
    """Check that a replay keeps all of so many rows.

    Raises:
        ConfigError: It does not.
    """
    if rows > replay.capacity:
        raise ConfigError(
            f"replay.capacity is {replay.capacity}, but data.pool brings {rows} rows, of which the "
            f"first would be overwritten: set replay.capacity to at least {rows}"
        )


def check_sequences(
    sequences: SequenceConfig, agent: Mapping[str, Any], has_priorities: bool
) -> None:
    """Check that sequences suit the agent, and that each of their settings does something.

    Args:
        sequences: How rows are cut.
        agent: Settings of the agent, by their names in `model`.
        has_priorities: Whether the sampler draws by priorities.

    Raises:
        ConfigError: They do not.
    """
    updater = agent.get("updater", "eager")
    if updater != "eager":
        raise ConfigError(
            f"model.updater is {updater}, but what is done with replay.sequences depends on where "
            "episodes begin in them: set it to eager"
        )
    if agent.get("core") is None:
        if sequences.burn_in:
            raise ConfigError(
                f"replay.sequences.burn_in is {sequences.burn_in}, but without model.core nothing "
                "is remembered, so that it would do nothing: set burn_in to 0, or give the agent "
                "a core (lrl.networks.LSTMCore)"
            )
        if sequences.memory != SequenceConfig.memory:
            raise ConfigError(
                f"replay.sequences.memory is {sequences.memory}, but without model.core nothing "
                "is remembered: leave it out"
            )
    if sequences.eta != SequenceConfig.eta and not has_priorities:
        raise ConfigError(
            f"replay.sequences.eta is {sequences.eta}, but replay.sampler draws without "
            "priorities, so that it would do nothing: leave it out, or set the sampler to "
            "lrl.replay.PrioritizedSampler"
        )


def check_experience(
    experience: Experience, rate: RateLimiterConfig, rule: Any, updates_per_step: int
) -> None:
    """Check that what is learnt from fits the bootstrap rule, and that one of two sets the pace.

    Args:
        experience: What is learnt from.
        rate: The ratio of learning to acting, where experience does not decide.
        rule: The agent's bootstrap rule; None if the agent is none of lrl's.
        updates_per_step: Batches of one training step.

    Raises:
        ConfigError: They do not fit.
    """
    name = type(experience).__name__
    if rule is not None and experience.gives_returns and rule.bootstraps:
        raise ConfigError(
            f"data.experience {name} gives whole returns, but model.bootstrap "
            f"{type(rule).__name__} would look for next observations: set it to "
            "lrl.learner.NoBootstrap"
        )
    if rule is not None and not (experience.gives_returns or rule.bootstraps):
        raise ConfigError(
            f"model.bootstrap {type(rule).__name__} takes rewards for whole returns, but those of "
            f"{name} are not: set it to lrl.learner.MaxBootstrap, or data.experience to "
            "lrl.replay.Rollouts"
        )
    unlimited = replace(rate, max_learner_steps_per_second=None)
    if experience.sets_pace and unlimited != RateLimiterConfig():
        raise ConfigError(
            f"data.experience {name} says by itself when to act and when to learn, so that "
            "data.rate would do nothing (but for max_learner_steps_per_second): leave it out"
        )
    if isinstance(experience, Rollouts) and experience.batches_per_rollout % updates_per_step:
        raise ConfigError(
            f"model.updates_per_step is {updates_per_step}, which does not divide the "
            f"{experience.batches_per_rollout} batches of a rollout (experience.num_minibatches x "
            "epochs), so that some updates would wait for the next one: set it to 1, for example"
        )
