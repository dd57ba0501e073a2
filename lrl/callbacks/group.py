"""Several callbacks as one, whose hooks all go to every part in the order of one list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lrl.preflight.callbacks import HasParts

_HOOKS = tuple(
    name
    for name, member in vars(L.Callback).items()
    if inspect.isfunction(member) and not name.endswith("state_dict") and name[0] != "_"
)


class TornDownAlways(L.Callback):
    """Is torn down after an exception too, which Lightning leaves out."""

    @override
    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "fit")


class CallbackGroup(Checkpoint, HasParts):
    """Pass every hook on to every part, in the order of the list.

    A part that leaves a hook as Lightning declares it costs nothing there. It is a Lightning
    `Checkpoint`, so that the Trainer adds none of its own and calls it after other callbacks.

    Args:
        parts: Callbacks, at most one of each type that has a state; fixed from then on.
    """

    def __init__(self, parts: Sequence[L.Callback]) -> None:
        self.parts = tuple(parts)
        self._calls: dict[str, tuple[Callable[..., None], ...]] = {}
        for hook in _HOOKS:
            nothing = getattr(L.Callback, hook)
            having = (part for part in self.parts if getattr(type(part), hook) is not nothing)
            self._calls[hook] = tuple(getattr(part, hook) for part in having)
            if not self._calls[hook] and getattr(type(self), hook) is getattr(CallbackGroup, hook):
                setattr(self, hook, MethodType(nothing, self))  # there are several in each step

    @override
    def state_dict(self) -> dict[str, Any]:
        states = {part.state_key: part.state_dict() for part in self.parts}
        return {key: state for key, state in states.items() if state}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part in self.parts:
            if part.state_key in state_dict:
                part.load_state_dict(state_dict[part.state_key])


def _passing_on(hook: str) -> Callable[..., None]:
    signature = inspect.signature(getattr(L.Callback, hook))

    def pass_on(self: CallbackGroup, *args: Any, **kwargs: Any) -> None:
        if kwargs:  # Lightning gives some by name, and calls by position are faster
            args = signature.bind(self, *args, **kwargs).args[1:]
        for call in self._calls[hook]:
            call(*args)

    pass_on.__name__ = hook  # by which a method is pickled, for ranks that are spawned
    return pass_on


for _hook in _HOOKS:
    setattr(CallbackGroup, _hook, _passing_on(_hook))
