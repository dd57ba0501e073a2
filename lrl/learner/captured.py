"""Learner steps that are recorded once and repeated: a CUDA graph, or on a CPU a tape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lrl.learner.updater import Agent, EagerUpdater, Losses, Updated
from lrl.networks import onednn_products
from lrl.networks.heads import TDLoss
from lrl.parts.recipe import Recipe
from lrl.parts.tape import Tape
from lrl.replay import Drawing
from lrl.types import AnyBatch, Batch, ConfigError

_EAGER_STEPS = 3
"""Learner steps before one is recorded: optimizers make their state in the first, and CUDA graphs
need memory that was used before."""
_MOST_RECORDED = 4
"""Layouts of batches of which a step is recorded; others are learnt from eagerly."""
_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def check_capturable(optimizer: Recipe) -> None:
    """Check that an optimizer counts in tensors, which a repeated step changes.

    Raises:
        ConfigError: It counts in numbers of Python, which would stay what they were.
    """
    if optimizer.find() not in _FUSED or not optimizer.init_args.get("fused"):
        raise ConfigError(
            f"model.updater is captured, but model.optimizer is {optimizer.class_path} with "
            f"{dict(optimizer.init_args)}, whose count of steps would stay what it was: set it to "
            "torch.optim.Adam or torch.optim.AdamW with init_args.fused true, or the updater to "
            "eager"
        )


class CapturableAgent(Agent, Protocol):
    """What is needed of a module, beside what every updater needs."""

    gradient_clip_norm: float | None

    def is_measured(self) -> bool:
        """Return whether the next learner step is logged."""
        ...

    def plain_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer, without what Lightning puts around it."""
        ...

    def count(self, step: Callable[[], Tensor]) -> None:
        """Make a learner step that optimises by itself and returns the norm of its gradients."""
        ...


class CapturedUpdater(EagerUpdater):
    """Repeats a whole learner step: noise, losses, gradients, clipping and optimizer.

    What is learnt is what `EagerUpdater` learns from the same batches, asked one by one. Steps
    that are logged are not repeated but made anew, and so are the first ones. A step is recorded
    again when a setting of the optimizer changed, but for the learning rate, which it reads in a
    tensor, and with an index on the device when `n_step` did.

    Args:
        agent: The module, whose optimizer is a fused Adam or AdamW: it counts its steps in tensors.
    """

    def __init__(self, agent: CapturableAgent) -> None:
        super().__init__(agent)
        self._agent: CapturableAgent = agent
        self._optimizer: Any = None
        self._eager_steps = _EAGER_STEPS
        self._is_on_gpu = False
        self._settings: list[dict[str, Any]] = []
        self._groups: Any = None
        self._rates: list[Tensor] = []
        self._recorded: dict[Any, Tape | _Graph] = {}

    def __call__(self, batches: Sequence[AnyBatch]) -> Updated:
        """Make one learner step with each batch, in turn."""
        if self._optimizer is None:
            self._optimizer = self._agent.plain_optimizer()
            _check_groups(self._optimizer)
            self._is_on_gpu = next(self._agent.online.parameters()).is_cuda
        losses = [self._learn(batch) for batch in batches]
        keys = torch.cat([batch.keys for batch in batches])
        priorities = torch.cat([one.td.priority for one in losses])
        return Updated(losses[-1].loss, keys, priorities)

    def _learn(self, batch: AnyBatch) -> Losses:
        columns = batch.columns()
        if self._is_on_gpu:
            columns.pop("keys", None)  # which stay on the host
        if isinstance(batch, Drawing):
            layout: Any = batch.index.layout
        else:
            layout = tuple((name, c.shape, c.stride(), c.dtype) for name, c in columns.items())
        self._look_at_settings()
        is_full = layout not in self._recorded and len(self._recorded) == _MOST_RECORDED
        if self._eager_steps or self._agent.is_measured() or is_full:
            self._eager_steps = max(0, self._eager_steps - 1)
            losses = self.losses(batch)
            self._agent.optimize(losses.loss)
            # Without its graph of gradients, which would be part of what is recorded next.
            return Losses(losses.loss.detach(), TDLoss(*(part.detach() for part in losses.td)))
        return self._repeated(batch, columns, layout)

    def _look_at_settings(self) -> None:
        """Forget what was recorded with another state of the optimizer; write down its rates."""
        groups = self._optimizer.param_groups
        settings = [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in groups
        ]
        # A state that is loaded brings groups and moments of its own.
        if settings != self._settings or groups is not self._groups:
            self._settings, self._groups = settings, groups
            self._recorded.clear()
            self._rates = [_place_of_rate(group["params"][0].device) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            rate.fill_(group["lr"])

    def _repeated(self, batch: AnyBatch, columns: dict[str, Tensor], layout: Any) -> Losses:
        inputs, found = list(columns.values()), list[Losses]()
        if isinstance(batch, Drawing):
            batch.index.prepare()

        def step() -> Tensor:
            if layout in self._recorded:
                outputs = self._recorded[layout](inputs)
            else:
                if isinstance(batch, Drawing):  # only an n_step that changed makes another layout
                    self._recorded.clear()
                self._recorded[layout] = self._record(batch, columns)
                outputs = self._recorded[layout].outputs
            loss, norm, *td = outputs
            found.append(Losses(loss, TDLoss(*td)))
            self._agent.look_at(batch, found[0])
            return norm

        self._agent.count(step)
        return found[0]

    def _record(self, batch: AnyBatch, columns: dict[str, Tensor]) -> Tape | _Graph:
        def step(*inputs: Tensor) -> Sequence[Tensor]:
            given = dict(zip(columns, inputs, strict=True))
            sent = batch.sent(lambda _: given)
            if isinstance(sent, Batch) and "keys" in given:
                sent = replace(sent, keys=given["keys"])
            return self._step(sent)

        each: dict[str, Sequence[Any]] = {"lr": self._rates}
        if self._is_on_gpu:  # a fused optimizer does nothing else for it
            each["capturable"] = [True] * len(self._rates)
        try:
            with _set_in(self._optimizer.param_groups, each):
                return (_Graph if self._is_on_gpu else Tape)(step, list(columns.values()))
        except RuntimeError as error:
            raise ConfigError(
                f"model.updater is captured, but the learner step cannot be repeated: {error}. "
                "Have the loss compute with tensors alone (torch.where instead of `if`), or set "
                "the updater to eager"
            ) from error

    def _step(self, batch: AnyBatch) -> Sequence[Tensor]:
        agent, drawing = self._agent, batch
        if isinstance(drawing, Drawing):
            batch = drawing.index.draw(drawing.batch_size)
        assert isinstance(batch, Batch)
        agent.online.sample_noise()
        agent.target.sample_noise()
        with onednn_products():
            losses = self._checked(batch)
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = None
        losses.loss.backward()
        learnt = [p for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in learnt])
        if agent.gradient_clip_norm is not None:
            nn.utils.clip_grads_with_norm_(learnt, agent.gradient_clip_norm, norm)
        self._optimizer.step()
        if isinstance(drawing, Drawing):
            drawing.index.set_priorities(batch.keys, losses.td.priority)
        for parameter in parameters:
            parameter.grad = None
        return losses.loss.detach(), norm, *(part.detach() for part in losses.td)


class _Graph:
    """A CUDA graph of a function, with the interface of a `Tape`.

    Args:
        function: From tensors to tensors.
        inputs: Its first arguments.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        own = [tensor.clone() for tensor in inputs]
        places: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(inputs):
            places.setdefault(tensor.dtype, []).append(place)
        self._inputs = [(group, [own[place] for place in group]) for group in places.values()]
        self._graph = torch.cuda.CUDAGraph()
        # What saves a replay on the GPU in another thread must not end this.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            outputs = function(*own)
            self._outputs = torch.cat([tensor.reshape(-1) for tensor in outputs])
        self._shapes = [tensor.shape for tensor in outputs]
        self._sizes = [tensor.numel() for tensor in outputs]
        self.outputs = self(inputs)  # capturing computes nothing

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Do the same with other inputs."""
        for places, own in self._inputs:
            torch._foreach_copy_(own, [inputs[place] for place in places])  # pyright: ignore[reportPrivateImportUsage]
        self._graph.replay()
        parts = self._outputs.clone().split(self._sizes)
        return tuple(part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Check the optimizer as it is: a checkpoint brings settings of its own."""
    if type(optimizer) not in _FUSED or not all(g.get("fused") for g in optimizer.param_groups):
        raise ConfigError(
            "model.updater is captured, but the optimizer that the run goes on with is not fused, "
            "as it was when its checkpoint was saved: set the updater to eager, or train afresh"
        )


@contextlib.contextmanager
def _set_in(groups: Sequence[dict[str, Any]], each: dict[str, Sequence[Any]]) -> Iterator[None]:
    """Give groups of parameters other settings for a while: for each name one of each group."""
    before = [{name: group[name] for name in each} for group in groups]
    for name, values in each.items():
        for group, value in zip(groups, values, strict=True):
            group[name] = value
    try:
        yield
    finally:
        for group, settings in zip(groups, before, strict=True):
            group.update(settings)


def _place_of_rate(device: torch.device) -> Tensor:
    """Return where a learning rate is read at every step; GPUs read 32 bits."""
    return torch.zeros(
        (), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device
    )
