"""Checks that settings fit together, so that none silently does nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import NoReturn

import lightning as L
import torch

from lrl.actors.config import ActorConfig
from lrl.inference.config import InferenceConfig
from lrl.replay import RateLimiterConfig
from lrl.types import ConfigError

_OF_RINGS = ("chunk_rows", "chunks_per_actor", "start_method")
_OF_SUPERVISION = ("on_failure", "max_restarts", "timeout_seconds")


def is_logging_step(trainer: L.Trainer, learner_step: int) -> bool:
    """Return whether a learner step's metrics are logged (Trainer's `log_every_n_steps`)."""
    interval: int = getattr(trainer, "log_every_n_steps", 0)
    return interval > 0 and learner_step % interval == 0


def check_synchronous(actors: ActorConfig, rate: RateLimiterConfig, has_evaluator: bool) -> None:
    """Check that nothing is set that acts only on actors in the background, if there are none.

    Args:
        actors: Those of the run.
        rate: Its ratio of learning to acting.
        has_evaluator: Whether a process plays evaluation episodes, whose failures are met as those
            of actors are.

    Raises:
        ConfigError: Such a setting has another value than its default.
    """
    if rate.error_buffer is not None and rate.samples_per_insert is None:
        raise ConfigError(
            f"rate.error_buffer is {rate.error_buffer}, but rate.samples_per_insert is null (free "
            "running), so that nobody waits and it would do nothing: leave it out"
        )
    if actors.num_actors > 0:
        return
    idle = _OF_RINGS if has_evaluator else (*_OF_RINGS, *_OF_SUPERVISION)
    for name in idle:
        if (value := getattr(actors, name)) != getattr(ActorConfig, name):
            refuse_synchronous(f"actors.{name}", value)
    if rate.error_buffer is not None:
        refuse_synchronous("rate.error_buffer", rate.error_buffer)


def refuse_synchronous(name: str, value: object) -> NoReturn:
    """Refuse a setting that would do nothing without actors in the background.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"{name} is {value}, but actors.num_actors is 0 (synchronous mode), where it would do "
        "nothing: leave it out, or give the run --config recipe:system/synchronous last"
    )


def check_inference(inference: InferenceConfig, actors: ActorConfig) -> None:
    """Check that central inference fits the actors and this machine.

    Raises:
        ConfigError: It does not.
    """
    if inference.num_servers == 0:
        if actors.groups > 1:
            raise ConfigError(
                f"actors.groups is {actors.groups}, but without inference servers an actor never "
                "waits: set it to 1, or inference.num_servers to 1 or more"
            )
        for setting in fields(InferenceConfig):
            value = getattr(inference, setting.name)
            if value != setting.default:
                raise ConfigError(
                    f"inference.{setting.name} is {value}, but inference.num_servers is 0, so it "
                    "would do nothing: set num_servers to 1 or more"
                )
        return
    if actors.num_actors == 0:
        raise ConfigError(
            f"actors.num_actors is 0 (synchronous mode) but inference.num_servers is "
            f"{inference.num_servers}: servers serve actors in the background; raise num_actors, "
            "or set num_servers to 0"
        )
    inference.check(actors)
    if inference.num_threads > 1 and "cpu" not in inference.devices:
        raise ConfigError(
            f"inference.num_threads is {inference.num_threads}, but inference.devices "
            f"{list(inference.devices)} has no cpu, so it would do nothing: leave it out"
        )
    for device in inference.devices:
        _check_device(device)


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
        if device.type == "cuda":  # without opening it in the learner, which keeps what it opens
            known = (device.index or 0) < torch.cuda.device_count()
        else:
            known = torch.empty(1, device=device).cpu() is not None
        error = f"torch sees {torch.cuda.device_count()} GPUs"
    except (RuntimeError, NotImplementedError) as exception:
        known, error = False, str(exception)
    if not known:
        raise ConfigError(
            f"inference.devices: {name!r} cannot be used here ({error}); use 'cpu', 'cuda', or "
            "'cuda:1' for the second of several"
        )


def check_agent_numbers(
    period_learner_steps: int, tau: float, clip_norm: float | None, updates_per_step: int
) -> None:
    """Check the numbers of the agent: of its target network, gradients and training steps.

    Raises:
        ConfigError: One is out of its range.
    """
    if period_learner_steps < 1:
        raise ConfigError(
            "model.target_update_period_learner_steps must be at least 1, got "
            f"{period_learner_steps}"
        )
    is_norm = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (is_norm and 0 < clip_norm < float("inf")):
        raise ConfigError(
            f"model.gradient_clip_norm must be a number above 0, got {clip_norm!r}; null clips "
            "nothing"
        )
    if updates_per_step < 1:
        raise ConfigError(f"model.updates_per_step must be at least 1, got {updates_per_step}")
    if not 0.0 < tau <= 1.0:
        raise ConfigError(f"model.target_update_tau must be above 0 and at most 1, got {tau}")
