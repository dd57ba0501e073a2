"""Several learner steps in one training step of Lightning: less of the Trainer around each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from torch import Tensor

from lrl.learner.checks import callbacks_of
from lrl.types import Batch, ConfigError

if TYPE_CHECKING:
    from lrl.learner.dqn import DQN


_NOT_CALLED = ("training_step", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step")


def learn(module: DQN, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Make one learner step with each batch, in turn.

    Args:
        module: Optimises manually (`automatic_optimization` is False), attached to a Trainer.
        batches: Any number above 0.

    Returns:
        The last `loss`, and the `keys` and `priorities` of all batches' rows.
    """
    optimizer: Any = module.optimizers()
    scheduler: Any = module.lr_schedulers()
    outputs = []
    for batch in batches:
        output = module.compute_loss(batch)
        optimizer.zero_grad()
        module.manual_backward(output["loss"])
        module.configure_gradient_clipping(optimizer)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        module.move_target(module.trainer.global_step)
        outputs.append({**output, "loss": output["loss"].detach()})
    return {
        "loss": outputs[-1]["loss"],
        "keys": torch.cat([output["keys"] for output in outputs]),
        "priorities": torch.cat([output["priorities"] for output in outputs]),
    }


def check_updates_per_step(module: DQN, trainer: L.Trainer) -> None:
    """Check that nothing is due between two updates of one training step.

    Raises:
        ConfigError: Something is, or the Trainer's own optimisation would be needed.
    """
    updates = module.updates_per_step
    if updates == 1:
        return
    for method in _NOT_CALLED:
        if module.replaces(method):
            raise ConfigError(
                f"model.updates_per_step is {updates}, but {type(module).__name__} has a {method} "
                "of its own, which would not be called: set it to 1, or override compute_loss alone"
            )
    periods: dict[str, int] = {
        "trainer.max_steps": trainer.max_steps,
        "trainer.log_every_n_steps": getattr(trainer, "log_every_n_steps", 0),
    }
    for callback in callbacks_of(trainer):
        periods.update(getattr(callback, "periods_learner_steps", {}))
        for name in ("period_learner_steps", "interval_learner_steps"):
            periods[f"{type(callback).__name__}.{name}"] = getattr(callback, name, 0)
        saves = getattr(callback, "_every_n_train_steps", 0)  # of Lightning's ModelCheckpoint
        periods[f"{type(callback).__name__}.every_n_train_steps"] = saves
    for name, learner_steps in periods.items():
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
