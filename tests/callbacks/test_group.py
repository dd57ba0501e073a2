"""A group of callbacks is to the Trainer what its parts would be."""

from __future__ import annotations

import copy
import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import make_run, quiet
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.model_helpers import is_overridden

from lrl import ConfigError
from lrl.callbacks import PeriodicEvaluation, PriorityUpdate, WeightSync
from lrl.callbacks.group import CallbackGroup
from lrl.preflight.callbacks import SyncsWeights, check_callbacks, parts_of

pytestmark = quiet
STATE = {"state_dict", "load_state_dict"}
HOOKS = [
    name
    for name, member in inspect.getmembers(L.Callback, inspect.isfunction)
    if not name.startswith("_") and name not in STATE
]


class Part(L.Callback):
    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen


def _noting(hook: str) -> Any:
    def note(self: Part, *args: Any, **kwargs: Any) -> None:
        self.seen.append((hook, self.name, args[2:], kwargs))

    note.__name__ = hook
    return note


class All(Part):
    """Notes every call of every hook."""


for _hook in HOOKS:
    setattr(All, _hook, _noting(_hook))


def arguments(hook: str) -> list[object]:
    return [object() for _ in list(inspect.signature(getattr(L.Callback, hook)).parameters)[1:]]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_goes_to_every_part_in_order(hook):
    seen: list[Any] = []
    group = CallbackGroup([All("a", seen), CallbackGroup([All("b", seen)]), All("c", seen)])
    given = arguments(hook)
    getattr(group, hook)(*given)
    assert seen == [(hook, name, tuple(given[2:]), {}) for name in "abc"]


@pytest.mark.parametrize("hook", HOOKS)
def test_arguments_may_have_their_names(hook):
    seen: list[Any] = []
    names = list(inspect.signature(getattr(L.Callback, hook)).parameters)[1:]
    given = dict(zip(names, arguments(hook), strict=True))
    getattr(CallbackGroup([All("a", seen)]), hook)(**dict(reversed(given.items())))
    assert seen == [(hook, "a", tuple(given.values())[2:], {})]


def test_a_run_calls_the_parts_as_if_they_were_the_trainers_own(tmp_path):
    def calls(folder: str, grouped: bool) -> list[tuple[str, str]]:
        seen: list[Any] = []
        parts: list[L.Callback] = [All("a", seen), All("b", seen)]
        callbacks = [CallbackGroup(parts)] if grouped else [*parts, Checkpoint()]
        make_run(tmp_path / folder, *callbacks, PeriodicEvaluation(2), max_steps=4).fit()
        return [(hook, name) for hook, name, *_ in seen]

    apart, together = calls("apart", grouped=False), calls("together", grouped=True)
    assert together == apart
    assert {"setup", "on_before_optimizer_step", "on_validation_end", "teardown"} <= {
        hook for hook, _ in together
    }


class Outer(CallbackGroup):
    def __init__(self, seen: list[Any], *parts: L.Callback) -> None:
        super().__init__(parts)
        self.seen = seen

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seen.append("before")
        super().on_train_start(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seen.append("own")


def test_a_subclass_may_do_more_in_a_hook():
    seen: list[Any] = []
    nothing: Any = None
    Outer(seen, All("a", seen)).on_train_start(nothing, nothing)
    assert seen == ["before", ("on_train_start", "a", (), {})]
    Outer(seen, Part("no hooks", seen)).on_train_end(nothing, nothing)
    assert seen[2:] == ["own"]


class Stateful(Part):
    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.name = state_dict["name"]


def test_a_group_keeps_the_state_of_each_part():
    group = CallbackGroup([Stateful("a", []), All("b", [])])
    assert is_overridden("state_dict", group)
    assert group.state_dict() == {"Stateful": {"name": "a"}}
    other = CallbackGroup([All("b", []), part := Stateful("c", [])])
    other.load_state_dict(group.state_dict())
    assert part.name == "a"


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda group: pickle.loads(pickle.dumps(group))])
def test_the_copy_of_a_group_calls_the_copies_of_its_parts(twin):
    """Ranks that are spawned get one."""
    seen: list[Any] = []
    other = twin(CallbackGroup([All("a", seen), CallbackGroup([PriorityUpdate()])]))
    other.on_fit_start(None, None)
    other.on_fit_end(trainer=None, pl_module=None)
    assert [hook for hook, *_ in other.parts[0].seen] == ["on_fit_start", "on_fit_end"]
    assert seen == []


def test_what_parts_offer_is_found_in_groups_within_groups():
    parts = [WeightSync(3), Part("a", []), PriorityUpdate()]
    inner = CallbackGroup(parts[1:])
    trainer: Any = SimpleNamespace(callbacks=[outer := CallbackGroup([parts[0], inner])])
    assert list(parts_of(trainer, L.Callback)) == [outer, parts[0], inner, *parts[1:]]
    assert list(parts_of(trainer, WeightSync)) == parts[:1]
    check_callbacks(trainer, takes_weights=True, needs_priorities=True)


def test_a_callback_of_ones_own_says_by_its_bases_what_it_does():
    class OwnSync(L.Callback, SyncsWeights):
        pass

    trainer: Any = SimpleNamespace(callbacks=[OwnSync()])
    check_callbacks(trainer, takes_weights=True, needs_priorities=False)
    with pytest.raises(ConfigError, match="needs priorities but no callback hands them on"):
        check_callbacks(trainer, takes_weights=True, needs_priorities=True)
