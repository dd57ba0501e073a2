"""Losses and gradients that are NaN or infinite: training stops there, and none of it is saved."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lrl.checkpoints.runs import is_trial
from lrl.parts.device_copies import HostCopy
from lrl.preflight.callbacks import GuardsLosses
from lrl.types import AnyBatch

_log = logging.getLogger(__name__)

_LAG_LEARNER_STEPS = 2
_KEPT_BATCHES = 64  # of one learner step: more only where gradients are accumulated over more
_DUMP_BYTES = 64 * 2**20
_ADVICE = (
    "Learning has diverged: lower the learning rate (model.optimizer), set "
    "model.gradient_clip_norm, or clip rewards (data.env.reward_clip)"
)


class NonFiniteLossError(RuntimeError):
    """Loss, gradients or weights are NaN or infinite; the message says where the batch lies."""


class _Remembered(NamedTuple):
    batch: AnyBatch
    row_loss: Tensor  # [batch]
    loss: Tensor  # []


class _Step(NamedTuple):
    """What belongs to one learner step, and is looked at now or a little later."""

    learner_step: int
    remembered: Sequence[_Remembered]
    values: HostCopy  # the losses, then the gradient norm where it is known


class NonFiniteGuard(L.Callback, GuardsLosses):
    """Look at every loss and gradient norm; the first that is not finite ends the run.

    On a CPU they are read before the optimizer steps, so that the weights stay as they were, but
    for learner steps that are repeated as a whole (`model.updater: captured`). On a
    GPU reading would make the learner wait at every step: they are copied aside and read two
    learner steps later, and before anything is saved. The batch is written into the run's
    folder, but for one that was drawn within a repeated step (`replay.index: device`).

    Attributes:
        folder: The run's folder; nothing is written while it is None.
        rank: Rank of this learner process.
        lag_learner_steps: Learner steps after which a loss on a CPU is looked at: tests raise it.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.rank = 0
        self.lag_learner_steps = 0
        self._expects_infinite_gradients = False
        self._remembered: deque[_Remembered] = deque(maxlen=_KEPT_BATCHES)
        self._pending: deque[_Step] = deque()

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks must ask
        self.folder = None if is_trial(trainer) else folder
        self.rank = trainer.global_rank
        # A loss scaler (16-mixed) leaves them out by itself.
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._expects_infinite_gradients = scaler is not None
        self._remembered.clear()
        self._pending.clear()

    @override
    def remember(self, batch: AnyBatch, row_loss: Tensor, loss: Tensor) -> None:
        self._remembered.append(_Remembered(batch, row_loss.detach(), loss.detach()))

    @override
    def check(self, learner_step: int, gradients: Sequence[Tensor], norm: Tensor | None) -> None:
        remembered = tuple(self._remembered)
        self._remembered.clear()
        values = [each.loss for each in remembered]
        if not self._expects_infinite_gradients:
            values.append(torch.as_tensor(cheap_norm(gradients) if norm is None else norm))
        lag = self.lag_learner_steps
        if any(value.is_cuda for value in values):
            lag = _LAG_LEARNER_STEPS
        elif not (lag and values) and all(map(math.isfinite, values)):
            return  # so mostly, and at the cost of a few conversions
        self._pending.append(_Step(learner_step, remembered, _copied_aside(values)))
        while len(self._pending) > lag:
            self._judge(self._pending.popleft())

    @override
    def check_pending(self, learner_step: int) -> None:
        if self._remembered:  # while gradients are accumulated
            remembered = tuple(self._remembered)
            values = _copied_aside([each.loss for each in remembered])
            self._pending.append(_Step(learner_step, remembered, values))
        while self._pending:
            self._judge(self._pending.popleft())

    @override
    def check_weights(self, network: nn.Module, learner_step: int) -> None:
        self.check_pending(learner_step)
        parameters = dict(network.named_parameters())
        found = torch.stack([torch.isfinite(each).all() for each in parameters.values()])
        for name, is_finite in zip(parameters, found.tolist(), strict=True):  # in one copy
            if not is_finite:
                raise NonFiniteLossError(
                    f"the weights {name} are not finite at learner step {learner_step}, and are "
                    f"not saved{self._kept()}. {_ADVICE}"
                )

    def _judge(self, step: _Step) -> None:
        losses = step.values.get().tolist()
        norm = losses.pop() if len(losses) > len(step.remembered) else None
        bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
        if not bad and math.isfinite(norm or 0.0):
            return
        self._pending.clear()
        what = f"loss is {losses[bad[0]]}" if bad else f"gradient norm is {norm}"
        path = self._dump(step, bad[0] if bad else -1, losses, norm)
        raise NonFiniteLossError(
            f"{what} at learner step {step.learner_step}"
            + (f", its batch is in {path}" if path else "")
            + f"{self._kept()}. {_ADVICE}"
        )

    def _dump(
        self, step: _Step, index: int, losses: Sequence[float], norm: float | None
    ) -> Path | None:
        """Write a batch as plain data, where there is one; a full disk is no reason to fail."""
        if self.folder is None or not step.remembered:
            return None
        if not step.remembered[index].batch.columns():  # drawn and forgotten within the step
            return None
        path = self.folder / f"batch_at_learner_step_{step.learner_step}_rank_{self.rank}.pt"
        content = {
            "learner_step": step.learner_step,
            "loss": losses[index],
            "gradient_norm": norm,
            **_rows(step.remembered[index]),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path)
        except (OSError, RuntimeError) as error:
            _log.warning("the batch cannot be written to %s: %s", path, error)
            return None
        return path

    def _kept(self) -> str:
        """Name the checkpoints that were saved before."""
        folder = self.folder / "checkpoints" if self.folder is not None else None
        found = sorted(path.name for path in folder.glob("*.ckpt")) if folder else []
        return f", {' and '.join(found)} of before stay in {folder}" if found else ""


def cheap_norm(gradients: Sequence[Tensor]) -> Tensor | float:
    """Return the norm of gradients, or something else that is finite where it is.

    On a CPU it takes less time than torch's norm, from which it differs by rounding.
    """
    if any(g.device.type != "cpu" or g.dtype != torch.float32 for g in gradients):
        return nn.utils.get_total_norm(gradients)
    with np.errstate(over="ignore", invalid="ignore"):
        flat = [gradient.numpy().reshape(-1) for gradient in gradients]
        return math.sqrt(sum(float(vector.dot(vector)) for vector in flat))


def _copied_aside(values: Sequence[Tensor]) -> HostCopy:
    """Start to copy scalars to the host."""
    device = next((value.device for value in values if value.is_cuda), "cpu")
    return HostCopy.of(torch.stack([value.to(device, torch.float64) for value in values]))


def _rows(remembered: _Remembered) -> dict[str, object]:
    """Return a batch's tensors by name, cut to `_DUMP_BYTES`; rows without a finite loss first."""
    columns = remembered.batch.columns()
    count = len(remembered.row_loss)
    row_bytes = sum(column.nbytes for column in columns.values()) // max(count, 1)
    rows = torch.isfinite(remembered.row_loss).to(torch.uint8).argsort(stable=True)
    rows = rows[: max(1, _DUMP_BYTES // max(row_bytes, 1))].cpu()  # where the keys are
    return {
        "rows": len(rows),
        "rows_of_batch": count,
        "row_loss": remembered.row_loss[rows].cpu(),
        "batch": {name: column[rows].cpu() for name, column in columns.items()},
    }
