"""Wrong configurations: each is answered with one sentence that names the setting, or is right.

One thing is changed in every recipe of a folder, again and again, and `lrl fit` run on it in this
process up to where the actors would start.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import yaml

from lrl.__main__ import main as lrl_main
from lrl.learner.dataset import ReplayDataset

Verdict = Literal[
    "accepted", "refused", "overlooked", "unclear", "crashed", "hung", "left a process"
]
GOOD: tuple[Verdict, ...] = ("accepted", "refused")

_MOST_SECONDS = 120.0  # of a machine that does much else; one takes 2
_ACCEPTED = (0, 130)  # 130: the first batch is where `_stop` raises KeyboardInterrupt
Config = dict[str, Any]
Place = tuple[Any, ...]  # keys and indices from the root to a value

_CONTRADICTIONS: tuple[tuple[str, str], ...] = (  # words of which one is named, and YAML
    ("samples_per_insert", "data: {actors: {num_actors: 0}, rate: {samples_per_insert: null}}"),
    ("batch_size capacity", "data: {replay: {batch_size: 64, capacity: 32}}"),
    ("warm_up_env_steps", "data: {replay: {capacity: 5000}, rate: {warm_up_env_steps: 6000}}"),
    ("num_actors", "data: {actors: {num_actors: 0}, inference: {num_servers: 1}}"),
    ("groups_per_actor", "data: {inference: {groups_per_actor: 99}}"),
    (
        "envs_per_actor groups",
        "data: {actors: {num_actors: 1, envs_per_actor: 3}, inference: {groups_per_actor: 2}}",
    ),
    (
        "evaluation eval_period_learner_steps",
        "actor_learner: {evaluation: background, eval_period_learner_steps: 0}",
    ),
    ("image_width", "data: {env: {atari: {image_width: 0}}}"),
    ("image_height", "data: {env: {atari: {image_height: 999}}}"),
    ("noop_max", "data: {env: {atari: {noop_max: 1}}}"),
    ("num_servers", "data: {inference: {batch_size: 4, num_servers: 0}}"),
    ("n_step capacity", "data: {replay: {capacity: 600, n_step: 700, batch_size: 8}}"),
)


@dataclass(frozen=True)
class Mutant:
    """A recipe with something changed.

    Attributes:
        recipe: Its file.
        change: What was changed, for people.
        names: Words of which a refusal has to hold at least one.
        config: The changed configuration.
        is_wrong: Whether it cannot be meant; a zero or a huge number may be.
    """

    recipe: Path
    change: str
    names: tuple[str, ...]
    config: Config
    is_wrong: bool


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the verdict, and what was said."""

    verdict: Verdict
    message: str


def mutants(recipes: Sequence[Path], count: int, seed: int = 0) -> Iterator[Mutant]:
    """Yield changed recipes: each recipe with all kinds of changes before the next one."""
    rng = random.Random(seed)
    for index in range(count):
        turn, kind = divmod(index, len(_KINDS))
        recipe = recipes[turn % len(recipes)]
        config = yaml.safe_load(recipe.read_text())
        yield _changed(recipe, config, _KINDS[kind], rng)


def try_configuration(
    config: Config,
    names: Sequence[str],
    main: Callable[[], object] = lrl_main,
    is_wrong: bool = False,
) -> Outcome:
    """Run `lrl fit` on a configuration, up to the first batch.

    Args:
        config: The configuration.
        names: Words of which a refusal has to hold at least one.
        main: The command line's entry point, which reads `sys.argv`.
        is_wrong: Whether it has to be refused.
    """
    errors, code = io.StringIO(), None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.yaml"
        path.write_text(yaml.safe_dump({**config, "runs": str(Path(folder) / "runs")}))
        with contextlib.ExitStack() as undo:
            undo.enter_context(mock.patch.object(sys, "argv", ["lrl", "fit", "-c", str(path)]))
            undo.enter_context(mock.patch.object(sys, "path", [*sys.path]))
            undo.enter_context(mock.patch.object(ReplayDataset, "start", _stop))
            undo.enter_context(mock.patch.dict(os.environ))
            undo.callback(os.chdir, Path.cwd())  # what a callback may write goes here, too
            os.chdir(folder)
            undo.enter_context(contextlib.redirect_stdout(io.StringIO()))
            undo.enter_context(contextlib.redirect_stderr(errors))
            undo.enter_context(_alarm(_MOST_SECONDS))
            try:
                code = main() or 0
            except SystemExit as error:
                code = error.code
            except _TooLongError:
                code = "hung"
            except BaseException:  # whatever it is, it is what we look for
                code = traceback.format_exc()
    verdict, message = _judge(code, errors.getvalue(), names)
    return Outcome("overlooked" if is_wrong and verdict == "accepted" else verdict, message)


def survey(recipes: Sequence[Path], count: int, seed: int = 0) -> Iterator[tuple[Mutant, Outcome]]:
    """Try as many mutants."""
    for mutant in mutants(recipes, count, seed):
        yield mutant, try_configuration(mutant.config, mutant.names, is_wrong=mutant.is_wrong)


def _stop(dataset: ReplayDataset) -> None:
    raise KeyboardInterrupt


class _TooLongError(BaseException):
    """No `Exception`, which might be taken for a mistake in the settings."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _judge(code: object, errors: str, names: Sequence[str]) -> tuple[Verdict, str]:
    sentences = [line for line in errors.splitlines() if line.startswith("lrl: error: ")]
    if multiprocessing.active_children():
        return "left a process", errors
    if code == "hung":
        return "hung", errors
    if "Traceback" in errors or code not in (2, *_ACCEPTED):
        return "crashed", f"{code}\n{errors}"
    if code in _ACCEPTED:
        return "accepted", ""
    is_clear = len(sentences) == 1 and any(
        re.search(rf"\b{re.escape(name)}\b", sentences[0]) for name in names
    )
    return ("refused" if is_clear else "unclear"), "\n".join(sentences) or errors


def _changed(recipe: Path, config: Config, kind: str, rng: random.Random) -> Mutant:
    if kind == "contradiction":
        names, patch = rng.choice(_CONTRADICTIONS)
        _merge(config, yaml.safe_load(patch))
        is_heard = "atari" not in patch or str(config["data"]["env"]["id"]).startswith("ALE/")
        return Mutant(recipe, f"{kind}: {patch}", tuple(names.split()), config, is_heard)
    places = [place for place in _places(config) if _suits(kind, place, _at(config, place))]
    place = rng.choice(places)
    parent, key = _at(config, place[:-1]), place[-1]
    old = parent[key]
    if kind == "unknown key":
        new = _misspelt(str(key), rng)
        parent[new] = parent.pop(key)
        # Without a class the arguments belong to nobody: the sentence then names the part.
        names = (new, str(key), *_words(place[:-1])[-1:])
    else:
        parent[key] = new = _value(kind, old, rng)
        names = tuple(_words(place)[-2:])
    where = ".".join(map(str, place))
    return Mutant(recipe, f"{kind}: {where}: {old!r} -> {new!r}", names, config, kind in _WRONG)


def _value(kind: str, old: Any, rng: random.Random) -> Any:
    if kind == "misspelt class_path":
        head, _, name = old.rpartition(".")
        return f"{head}.{_misspelt(name, rng)}"
    return {
        "text for a number": "many",
        "negative": -7,
        "zero": 0,
        "huge": 10 ** rng.choice((9, 12, 18, 30)),
        "not a number": rng.choice((float("nan"), float("inf"), float("-inf"))),
        "null": None,
        "list for a scalar": [old],
        "scalar for a mapping": 3,
        "mapping for a scalar": {"value": old},
    }[kind]


_KINDS = (
    "unknown key", "text for a number", "negative", "zero", "huge", "not a number", "null",
    "list for a scalar", "scalar for a mapping", "mapping for a scalar", "misspelt class_path",
    "contradiction",
)  # fmt: skip

_WRONG = ("unknown key", "text for a number", "scalar for a mapping", "misspelt class_path")


def _suits(kind: str, place: Place, value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "unknown key":
        return isinstance(place[-1], str) and "kwargs" not in place
    if kind == "misspelt class_path":
        return place[-1] == "class_path"
    if kind == "scalar for a mapping":
        return isinstance(value, dict)
    if kind in ("text for a number", "negative", "zero", "huge", "not a number"):
        return is_number
    return not isinstance(value, (dict, list))


def _places(value: Any, place: Place = ()) -> list[Place]:
    """List the paths of everything below the root."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    below = [found for key, item in items for found in _places(item, (*place, key))]
    return ([place] if place else []) + below


def _at(config: Any, place: Place) -> Any:
    for key in place:
        config = config[key]
    return config


def _words(place: Place) -> list[str]:
    """Return the names on a path that a person would know."""
    return [k for k in place if isinstance(k, str) and k not in ("init_args", "class_path")]


def _misspelt(word: str, rng: random.Random) -> str:
    index = rng.randrange(1, max(2, len(word)))
    return word[:index] + rng.choice("qxz") + word[index:]


def _merge(config: Config, patch: Config) -> None:
    for key, value in patch.items():
        is_part = isinstance(value, dict) and "class_path" not in value
        if is_part and isinstance(config.get(key), dict):
            _merge(config[key], value)
        else:
            config[key] = value
