"""Settings of the Trainer that a value-based learner cannot have, told before anything starts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from lrl.preflight.callbacks import (
    Evaluates,
    EvaluatesInBackground,
    Monitors,
    parts_of,
    periods_of,
)
from lrl.preflight.ranks import check_strategy, refuse_strategy
from lrl.preflight.settings import own_optimisation
from lrl.types import ConfigError

_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
_WITHIN_STEPS = (
    "on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"
)  # fmt: skip
_SHORT = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "None": "32-true"}
_NEEDED = (
    ("enable_checkpointing", False, "actor_learner keeps the best checkpoint and the last"),
    ("barebones", True, "lrl needs the loggers, checkpoints and evaluations that it leaves out"),
)
_SPLIT_NETWORKS = ("fsdp", "deepspeed", "model_parallel", "modelparallel")


def check_trainer(trainer: L.Trainer, has_experience: bool = True) -> None:
    """Check that the Trainer has no setting that lrl cannot do with, or Lightning never looks at.

    Args:
        trainer: The Trainer.
        has_experience: Whether batches are of lrl's making, of which none comes twice.

    Raises:
        ConfigError: There is such a setting.
    """
    check_strategy(trainer)
    _check_precision(trainer.precision)
    clip = trainer.gradient_clip_val
    if clip is not None and not clip >= 0:
        raise ConfigError(
            f"trainer.gradient_clip_val is {clip}, but must be at least 0: set it to the largest "
            "norm that gradients may have, or to null for no clipping"
        )
    if trainer.accumulate_grad_batches < 1:
        raise ConfigError(
            f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches}, but must be at "
            "least 1, which updates the network with every batch"
        )
    _check_whole_steps(trainer)
    period: int = getattr(trainer, "log_every_n_steps", 0)
    overfit: float = getattr(trainer, "overfit_batches", 0)
    if period < 0:
        raise ConfigError(
            f"trainer.log_every_n_steps is {period}, but must be at least 0 (0: never)"
        )
    if overfit > 0 and has_experience:
        raise ConfigError(
            f"trainer.overfit_batches is {overfit}, but batches of a replay never come again: set "
            "it to 0"
        )
    limit = trainer.limit_train_batches
    if has_experience and isinstance(limit, float) and limit != 1.0:
        raise ConfigError(
            f"trainer.limit_train_batches is {limit}, a share, but a replay has no end: give the "
            "number of batches after which an epoch ends, or leave it out"
        )


def _check_whole_steps(trainer: L.Trainer) -> None:
    """Check that each learner step takes as many batches: evaluations and saves count by them."""
    batches, limit = trainer.accumulate_grad_batches, trainer.limit_train_batches
    callbacks: list[L.Callback] = getattr(trainer, "callbacks", [])
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise ConfigError(
            "trainer.callbacks holds a GradientAccumulationScheduler, but periods are counted by "
            "batches of which each learner step takes as many: set trainer.accumulate_grad_batches"
        )
    is_trial = getattr(trainer, "fast_dev_run", 0)
    if isinstance(limit, int) and limit % batches and not is_trial:
        raise ConfigError(
            f"trainer.limit_train_batches is {limit}, but a learner step takes {batches} batches "
            f"(trainer.accumulate_grad_batches), and the last of an epoch would take fewer: set it "
            f"to {-(-limit // batches) * batches}, for example"
        )


def _check_precision(precision: object) -> None:
    if precision not in _PRECISIONS:
        raise ConfigError(
            f"trainer.precision is {precision}, but weights have to be kept in float32: set it to "
            "32-true, or to bf16-mixed where the processor has bfloat16"
        )


def check_clipping(norm: float | None, trainer: L.Trainer) -> None:
    """Check that gradients are clipped by the agent or by the Trainer, not by both.

    Raises:
        ConfigError: Both have a limit, or there is a way of clipping without one.
    """
    if norm is not None and trainer.gradient_clip_val:
        raise ConfigError(
            f"model.gradient_clip_norm is {norm} and trainer.gradient_clip_val "
            f"{trainer.gradient_clip_val}: leave one of them out"
        )
    algorithm = trainer.gradient_clip_algorithm
    if algorithm and not trainer.gradient_clip_val:
        raise ConfigError(
            f"trainer.gradient_clip_algorithm is {algorithm.value}, but nothing is clipped by it: "
            "set trainer.gradient_clip_val, or leave it out"
        )


def check_scheduler(scheduler: Mapping[str, Any] | None) -> None:
    """Check that a learning rate scheduler can be stepped with every learner step.

    Args:
        scheduler: `model.lr_scheduler`, with its `class_path`.

    Raises:
        ConfigError: It waits for a metric.
    """
    if scheduler is not None and str(scheduler["class_path"]).endswith(".ReduceLROnPlateau"):
        raise ConfigError(
            "model.lr_scheduler is ReduceLROnPlateau, which waits for a metric, but is stepped "
            "with every learner step: take one that counts steps, such as LinearLR"
        )


def check_updates_per_step(updates: int, trainer: L.Trainer, takes_weights: bool = True) -> None:
    """Check that nothing is due between two updates of one training step, and each hook is called.

    Args:
        updates: `model.updates_per_step`.
        trainer: The Trainer.
        takes_weights: Whether anybody does, so that they are due, too.

    Raises:
        ConfigError: Something is, or the Trainer's own optimisation would be needed.
    """
    if updates == 1:
        return
    periods = [
        ("trainer.max_steps", trainer.max_steps),
        ("trainer.log_every_n_steps", getattr(trainer, "log_every_n_steps", 0)),
        *periods_of(trainer, takes_weights=takes_weights),
    ]
    for name, learner_steps in periods:
        if learner_steps > 0 and learner_steps % updates:
            raise ConfigError(
                f"{name} is {learner_steps}, but model.updates_per_step is {updates}, so that "
                f"training steps end at its multiples only: set it to "
                f"{-(-learner_steps // updates) * updates}, for example"
            )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ConfigError(
            f"trainer.precision is {trainer.precision}, whose scaling of losses goes with one "
            f"update per step, but model.updates_per_step is {updates}: set precision to bf16-mixed"
        )
    _check_hooks(
        trainer,
        ("on_before_zero_grad",),
        f"which Lightning calls in its own optimisation only, but model.updates_per_step is "
        f"{updates}: set that to 1, or take on_before_backward",
    )


def check_captured(trainer: L.Trainer) -> None:
    """Check that nothing is to be done within learner steps that are repeated as a whole.

    Raises:
        ConfigError: Something is, which would be left out.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if getattr(trainer, "log_every_n_steps", 0) == 1:
        raise ConfigError(
            "trainer.log_every_n_steps is 1, but learner steps that are logged are not repeated, "
            "so that model.updater captured would do nothing: raise it, or set the updater to eager"
        )
    for setting, value, neutral in (
        ("precision", scaler and trainer.precision, None),
        ("devices", trainer.num_devices, 1),
        ("num_nodes", trainer.num_nodes, 1),
        ("detect_anomaly", trainer._detect_anomaly, False),
    ):
        if value != neutral:
            raise ConfigError(
                f"trainer.{setting} is {value}, of which a learner step that is repeated as a "
                "whole knows nothing: set model.updater to eager"
            )
    _check_hooks(
        trainer,
        _WITHIN_STEPS,
        "which is not called in learner steps that are repeated: set model.updater to eager",
    )


def _check_hooks(trainer: L.Trainer, hooks: Sequence[str], why_not: str) -> None:
    """Check that neither the agent nor a callback has hooks that are not called."""
    callbacks = ((part, L.Callback) for part in parts_of(trainer, L.Callback))
    for part, kind in [(trainer.lightning_module, L.LightningModule), *callbacks]:
        for hook in hooks:
            # Of the object, which may have functions of its own (`LambdaCallback`).
            if getattr(getattr(part, hook), "__func__", None) is not getattr(kind, hook):
                raise ConfigError(f"{type(part).__name__} has {hook}, {why_not}")


def check_evaluation_schedule(trainer: L.Trainer, evaluation: Evaluates) -> None:
    """Check that the Trainer has no schedule of evaluations beside that of lrl's callback.

    Args:
        trainer: The Trainer, whose schedule the callback has not replaced yet.
        evaluation: The callback.

    Raises:
        ConfigError: It has one, or a callback waits for scores that Lightning will not have.
    """
    name, learner_steps = evaluation.period
    schedule = f"evaluations come when {name} says: set that"
    refused: list[tuple[str, tuple[float, ...], str]] = [
        ("val_check_interval", (1.0,), schedule),
        ("check_val_every_n_epoch", (1,), schedule),
        ("num_sanity_val_steps", (0, 2), "an untrained network plays no episodes"),
    ]
    is_inline = learner_steps > 0 and not isinstance(evaluation, EvaluatesInBackground)
    if not is_inline and not getattr(trainer, "fast_dev_run", False):
        ones = (0, 0.0, 1.0) if learner_steps == 0 else (1.0,)
        refused.append(("limit_val_batches", ones, "Lightning's validation loop does not run"))
    for setting, allowed, why in refused:
        given = getattr(trainer, setting)
        # 1 is one batch, and 1.0 all of them.
        if not any(type(given) is type(one) and given == one for one in allowed):
            raise ConfigError(f"trainer.{setting} is {given}, but {why}; leave this out")
    if not isinstance(evaluation, EvaluatesInBackground):
        return
    for callback in parts_of(trainer, Monitors):
        if callback is not evaluation.best and (callback.monitor or "").startswith("eval/"):
            raise ConfigError(
                f"{type(callback).__name__} monitors {callback.monitor}, which evaluation in "
                "the background does not hand to Lightning: set evaluation to 'inline', or "
                "leave the callback out"
            )


def check_ranks(trainer: L.Trainer) -> None:
    """Check that ranks of the command line find each other, and are not spawned.

    Raises:
        ConfigError: Nobody told several machines how to find each other, so that the first would
            wait; or ranks would be spawned.
    """
    if getattr(trainer.strategy, "_start_method", "") == "spawn":
        raise ConfigError(
            "trainer.strategy spawns ranks, which is for scripts (such a rank cannot hand its "
            "results to the command line): set it to ddp"
        )
    cluster = getattr(trainer.strategy, "cluster_environment", None)
    is_unaware = isinstance(cluster, LightningEnvironment) and "MASTER_ADDR" not in os.environ
    if trainer.num_nodes > 1 and is_unaware:
        raise ConfigError(
            f"trainer.num_nodes is {trainer.num_nodes}, but nothing says where the others are: "
            "start it with torchrun or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK on each "
            "of them"
        )


def check_trainer_settings(
    settings: Mapping[str, Any], agent: Mapping[str, Any], *, is_fit: bool
) -> None:
    """Check that the settings fit from which the command line is to build a Trainer.

    Args:
        settings: Of the section `trainer`.
        agent: Of the section `model`.
        is_fit: Whether it is to train; what was trained on a GPU can be tested without one.

    Raises:
        ConfigError: Lightning would fail without a word on what to do, or overlook a setting.
    """
    accelerator, strategy = settings["accelerator"], settings["strategy"]
    precision = _SHORT.get(str(settings["precision"]), str(settings["precision"]))
    _check_precision(precision)
    has_gpu = accelerator != "cpu" and torch.cuda.is_available()
    if is_fit and precision == "16-mixed" and not has_gpu:
        raise ConfigError(
            "trainer.precision is 16-mixed, which needs a GPU (Lightning would train in bf16-mixed "
            "instead): set it to bf16-mixed, or to 32-true"
        )
    name = str(getattr(strategy, "class_path", strategy))
    if any(part in name.lower() for part in _SPLIT_NETWORKS):
        refuse_strategy(name)
    for setting, refused, why in _NEEDED:
        if settings[setting] is refused:
            raise ConfigError(f"trainer.{setting} is {refused}, but {why}: leave it out")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        is_apple = accelerator == "gpu" and torch.backends.mps.is_available()
        if not is_apple:
            raise ConfigError(
                f"trainer.accelerator is {accelerator}, but torch {torch.__version__} sees no GPU "
                "here: install a torch made for it, or set it to auto"
            )
    own = own_optimisation(agent.get("updates_per_step", 1), agent.get("updater", "eager"))
    for setting, neutral in (("gradient_clip_val", None), ("accumulate_grad_batches", 1)):
        if own and settings[setting] not in (neutral, 0):
            raise ConfigError(
                f"trainer.{setting} is {settings[setting]}, which Lightning does between training "
                f"steps, but {own.setting}: leave it out (model.gradient_clip_norm clips, too), or "
                f"set that to {own.otherwise}"
            )


@contextlib.contextmanager
def refusals_named(settings: Mapping[str, Any]) -> Iterator[None]:
    """Say which settings Lightning refuses, where its own words name them as arguments.

    Args:
        settings: Of the section `trainer`.

    Raises:
        ConfigError: In place of Lightning's errors.
    """
    try:
        yield
    except (TypeError, ValueError, ImportError, RuntimeError, MisconfigurationException) as error:
        words = set(re.findall(r"\w+", str(error)))
        plain = {n: v for n, v in settings.items() if isinstance(v, (str, int, float))}
        named = [
            f"trainer.{name} is {value}"
            for name, value in plain.items()
            if name in words or (isinstance(value, str) and repr(value) in str(error))
        ]
        raise ConfigError(f"{', '.join(named) or 'trainer'}: {error}") from error
