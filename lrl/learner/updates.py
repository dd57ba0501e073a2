"""Several learner steps in one training step of Lightning: less of the Trainer around each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lrl.learner.loss import weighted_loss
from lrl.networks import onednn_products
from lrl.preflight.settings import callbacks_of
from lrl.types import Batch, ConfigError

if TYPE_CHECKING:
    from lrl.learner.dqn import DQN


_ROWS_ASKED_AT_ONCE = 512  # on a CPU, twice as many of Atari's take longer for each
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
    for batch, answer in zip(batches, _answers(module, batches), strict=True):
        known = answer is not None
        output = module.loss_from(batch, answer) if known else module.compute_loss(batch)
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


def _answers(module: DQN, batches: Sequence[Batch]) -> Iterator[Any]:
    """Yield what the bootstrap rule needs of the target network for each batch.

    Asked of many rows at once it takes less time for each: of as many batches as come before the
    target network moves. None leaves it to the loss, which is compiled, somebody's own, or has to
    draw new noise for every batch.
    """
    own = module.replaces("compute_loss") or module.replaces("move_target")
    if own or module.loss_of is not weighted_loss or module.target.is_noisy:
        yield from [None] * len(batches)
        return
    size = len(batches[0].action)
    period = module.target_update_period_learner_steps
    most = max(1, _ROWS_ASKED_AT_ONCE // size)
    first = 0
    while first < len(batches):
        until_move = period - module.trainer.global_step % period
        group = batches[first : first + min(most, until_move)]
        yield from _asked_together(module, group) if len(group) > 1 else [None]
        first += len(group)


def _asked_together(module: DQN, batches: Sequence[Batch]) -> Iterator[Any]:
    with torch.no_grad(), onednn_products():
        answer = module.bootstrap.ask(_joined(batches), module.target)
    begin = 0
    for batch in batches:
        rows = slice(begin, begin + len(batch.action))
        yield apply_to_collection(
            answer, Tensor, lambda tensor, rows=rows: tensor if len(tensor) == 1 else tensor[rows]
        )
        begin = rows.stop


def _joined(batches: Sequence[Batch]) -> Batch:
    names = [name for name, column in vars(batches[0]).items() if column is not None]
    return Batch(**{name: torch.cat([getattr(part, name) for part in batches]) for name in names})


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
