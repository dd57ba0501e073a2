import enum
import functools
import pickle
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_networks import FlatEncoder

from lrl.networks import Encoder, MLPEncoder
from lrl.parts.recipe import Recipe
from lrl.types import ConfigError

PATH = "helpers.tiny_networks.FlatEncoder"


class Outer:
    class Inner:
        pass


class Colour(str, enum.Enum):
    RED = "red"


Point = namedtuple("Point", "x y")


def test_a_class():
    recipe = Recipe.of(FlatEncoder)
    assert recipe.as_dict() == {"class_path": PATH, "init_args": {}}
    assert isinstance(recipe((2,)), FlatEncoder)


def test_a_partial_keeps_its_arguments():
    recipe = Recipe.of(functools.partial(FlatEncoder, factor=0.5))
    assert recipe.as_dict() == {"class_path": PATH, "init_args": {"factor": 0.5}}
    assert recipe((2,)).factor == 0.5


def test_a_partial_of_a_partial():
    inner = functools.partial(FlatEncoder, factor=0.5)
    assert Recipe.of(functools.partial(inner, factor=2.0)).init_args == {"factor": 2.0}


def test_what_jsonargparse_passes():
    # It wraps the class in functions of its own: partial(call, instantiator, class, **arguments).
    part = functools.partial(functools.reduce, iter, FlatEncoder, factor=0.5)  # type: ignore[arg-type]
    assert Recipe.of(part).as_dict() == {"class_path": PATH, "init_args": {"factor": 0.5}}


def test_round_trips():
    recipe = Recipe.of(functools.partial(MLPEncoder, hidden_sizes=(3, 4)))
    assert Recipe.of(recipe) == recipe
    assert Recipe.of(recipe.as_dict()) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_as_dict_is_a_copy():
    recipe = Recipe.of(functools.partial(FlatEncoder, factor=0.5))
    recipe.as_dict()["init_args"]["factor"] = 7
    assert recipe((2,)).factor == 0.5


def local_class() -> type:
    class Local:
        pass

    return Local


@pytest.mark.parametrize(
    "part",
    [
        lambda shape: FlatEncoder(shape),
        local_class,
        local_class(),
        Outer.Inner,
        FlatEncoder((2,)),
        functools.partial(local_class),
        functools.partial(FlatEncoder, (2,)),  # positional arguments come at run time
        3,
        None,
    ],
)
def test_only_classes_that_can_be_found_again(part: Any):
    with pytest.raises(ConfigError, match=r"model\.encoder must be a class at the top level"):
        Recipe.of(part, "model.encoder")


@pytest.mark.parametrize(
    "argument", [Path("x"), Colour.RED, Point(1, 2), {1, 2}, print, torch.zeros(1), np.zeros(2)]
)
def test_arguments_that_a_safe_checkpoint_cannot_hold(argument: object):
    values: Any = {"deep": [argument]}
    part = functools.partial(FlatEncoder, factor=values)
    with pytest.raises(ConfigError, match=r"model\.encoder\.factor\.deep must hold numbers"):
        Recipe.of(part, "model.encoder")


@pytest.mark.parametrize(
    ("argument", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        ([1, (2.0, None)], [1, (2.0, None)]),
        (OrderedDict(a=True), {"a": True}),
        (Counter({2: 1}), {2: 1}),
    ],
)
def test_arguments_become_plain(argument: Any, plain: object, tmp_path: Path):
    recipe = Recipe.of(functools.partial(FlatEncoder, factor=argument))
    stored = recipe.init_args["factor"]
    assert stored == plain
    assert type(stored) is type(plain)
    torch.save(recipe.as_dict(), tmp_path / "recipe")
    assert torch.load(tmp_path / "recipe", weights_only=True) == recipe.as_dict()


def test_the_base_class_is_checked():
    assert Recipe.of(FlatEncoder, "model.encoder", Encoder).class_path == PATH
    message = r"model\.encoder must be a subclass of lrl\.networks\.encoders\.Encoder, got .*Linear"
    for part in (torch.nn.Linear, functools.partial(torch.nn.Linear, bias=False)):
        with pytest.raises(ConfigError, match=message):
            Recipe.of(part, "model.encoder", Encoder)
    with pytest.raises(ConfigError, match=message):
        Recipe.of(Recipe("torch.nn.Linear"), "model.encoder", Encoder)


def test_a_checkpoint_cannot_call_what_it_likes(tmp_path: Path):
    target = tmp_path / "written"
    for path, arguments in (
        ("os.system", {"command": f"touch {target}"}),
        ("subprocess.Popen", {"args": ["touch", str(target)]}),
        ("torch.hub.load", {"repo_or_dir": "x", "model": "y"}),
    ):
        with pytest.raises(ConfigError, match=r"model\.bootstrap must be a"):
            Recipe.of({"class_path": path, "init_args": arguments}, "model.bootstrap", Encoder)
    assert not target.exists()


def test_a_module_that_was_not_imported():
    with pytest.raises(
        ConfigError, match=r"import nowhere\.parts before .*: --modules nowhere\.parts\)"
    ):
        Recipe.of({"class_path": "nowhere.parts.Encoder"}, "model.encoder")


@pytest.mark.parametrize(
    "path", ["lrl.networks.NoSuchEncoder", "lrl.no_such_module.Encoder", "torch.nn.nope.Linear"]
)
def test_a_class_that_is_gone(path: str):
    with pytest.raises(ConfigError, match=r"model\.encoder is a .*cannot be imported"):
        Recipe.of({"class_path": path}, "model.encoder")


@pytest.mark.parametrize("mapping", [{}, {"class_path": ""}, {"init_args": {"factor": 1}}])
def test_a_mapping_without_a_class(mapping: dict):
    with pytest.raises(ConfigError, match=r"model\.encoder"):
        Recipe.of(mapping, "model.encoder")
