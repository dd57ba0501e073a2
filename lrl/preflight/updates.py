"""Several learner steps in one training step: what else is due has to fall between such steps."""

from __future__ import annotations

from collections.abc import Sequence

import lightning as L

from lrl.preflight.callbacks import periods_of
from lrl.types import ConfigError

NOT_CALLED = ("training_step", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step")
"""Methods of an agent that are not called then."""


def check_updates_per_step(
    updates: int, trainer: L.Trainer, agent: str, own_methods: Sequence[str]
) -> None:
    """Check that nothing is due between two updates of one training step.

    Args:
        updates: `model.updates_per_step`.
        trainer: The Trainer.
        agent: The name of the agent's class.
        own_methods: Those of `NOT_CALLED` that the agent overrides.

    Raises:
        ConfigError: Something is, or the Trainer's own optimisation would be needed.
    """
    if updates == 1:
        return
    for method in own_methods:
        raise ConfigError(
            f"model.updates_per_step is {updates}, but {agent} has a {method} of its own, which "
            "would not be called: set it to 1, or override compute_loss only"
        )
    periods = [
        ("trainer.max_steps", trainer.max_steps),
        ("trainer.log_every_n_steps", getattr(trainer, "log_every_n_steps", 0)),
        *periods_of(trainer),
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
