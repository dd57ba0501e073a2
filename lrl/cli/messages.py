"""Wrong settings in words: what jsonargparse lets through, and what it could say better."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import get_args

import yaml
from jsonargparse import ArgumentParser, Namespace

from lrl.cli.command_list import COMMANDS
from lrl.cli.recipes import PREFIX, recipes
from lrl.parts import safety
from lrl.parts.renamed import RENAMED, new_name
from lrl.types import ConfigError

_UNKNOWN_OPTION = (
    re.compile(r"unrecognized arguments: --([\w.]+)"),
    re.compile(r"does not accept option '([\w.]+)'"),
    re.compile(r"Option '([\w.]+)' is not accepted"),
    re.compile(r"Key \"([\w.]+)\" is not"),
)
_LOOSE_CHECKPOINT = re.compile(r"unrecognized arguments: (best|last|hub:\S+|\S+\.ckpt)$")
_UNKNOWN_NAME = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_OF_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")
_NOT_INSTALLED = re.compile(r"Requirement '(wandb|mlflow)[^']*' not met")  # Lightning's loggers
_NOT_ALLOWED = re.compile(r"Importing '([\w.]+)' is not allowed")
_NO_FILE = re.compile(r"Parser key \"config\": (File does not exist|Path is not a file): '(.*)'$")
_VARIABLE = re.compile(r"LRL_([A-Z]+)__")  # LRL_FIT__TRAINER__MAX_STEPS
_NO_SECTION = re.compile(r"Parser key \"([\w.]+)\": Unable to load config ('.*?')")
_SEED = re.compile(r"(-?\d+) is not in bounds, numpy accepts from 0 to (\d+)")
_BESIDE = re.compile(r"\.class_path is no setting$")
_REQUIRED = re.compile(r"the following arguments are required: ([\w, ]+?)(?:\. | - |$)")
_TOO_LARGE = 2**63  # for a counter
_OF_CLASS_PROBLEM = re.compile(r"Problem with given class_path '(?:\w+\.)*(\w+)'")
_KEY = re.compile(r"Parser key \"([\w.]+)\":? ?")
_PART = re.compile(
    r"(?:Problem with given class_path '[\w.]+'|expects a function or a callable class): "
)
_NO_PATH = re.compile(r"^- Expected a path but .*? either not accessible or invalid - ")
_TYPE = (
    r"Expected a (<class '[\w.]+'>|typing\.Literal\[.*?\]|dot import path string"
    r"|tuple with \d+ elements)"
)
_ONE_TYPE = re.compile(rf"{_TYPE}(?:\. Got value)?: (.*?)(?: - Expected a |\. Got value: |$)")
_TYPES = re.compile(r"Errors: (.*?) Given value type: .*? Given value: (.*?)(?: - |\. Got value|$)")
_NESTED = re.compile(r"NestedArg\(key='([^']*)', val=(.*)\)$")  # of --bounds.CartPole-v1 VALUE
_NO_CLASS = re.compile(r"- (?:unhashable type|Not a valid subclass)")
_OWN_WORDS = re.compile(
    rf"Union subtypes .*? Errors: (?!- Expected a |- Problem |{_NO_CLASS.pattern})- (.*?)"
    " - Expected a "
)
_NO_SUBCLASS = re.compile(r"Expected '([\w.]+)' to be a subclass of <class '([\w.]+)'>")
_NOT_FOUND = re.compile(r"(No module named '\S+'|module '\S+' has no attribute '\w+')")
_WORDS = {
    "<class 'bool'>": "true or false",
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'str'>": "text",
    "<class 'NoneType'>": "null",
    "<class 'dict'>": "a mapping",
    "<class 'list'>": "a list",
    "<class 'tuple'>": "a list",
    "<class 'collections.abc.Iterable'>": "a list",
    "<class 'collections.abc.Sequence'>": "a list, such as '[a, b]'",
    "dot import path string": "the path of a class",
}


def check_settings(parser: ArgumentParser, config: Namespace) -> None:
    """Refuse what jsonargparse lets through: null for any setting, numbers that are too large.

    Args:
        parser: Of the subcommand; knows the settings' types.
        config: The settings.

    Raises:
        ConfigError: A setting is null and may not be, or too large.
    """
    for action in parser._actions:
        name, hint = action.dest, getattr(action, "_typehint", None)
        value = config.get(name)
        counts = hint is int or int in get_args(hint)  # which YAML may have read as a float
        if counts and isinstance(value, (int, float)) and abs(value) >= _TOO_LARGE:
            raise ConfigError(f"{name} is {value}, but must be below 2**63")
        needs_value = hint is not None and NoneType not in get_args(hint) and name in config
        if needs_value and value is None and action.default is not None:
            raise ConfigError(
                f"{name} is null, but must have a value: leave it out for its default, "
                f"{action.default!r:.100}"
            )


def check_sections(parser: ArgumentParser, content: str, name: str) -> None:
    """Refuse sections that are no mappings; jsonargparse would take the defaults of all in them.

    Args:
        parser: Of the subcommand; knows the sections.
        content: YAML of a configuration.
        name: What it is called.

    Raises:
        ConfigError: A section is null, a number or a list.
    """
    settings = yaml.safe_load(content)
    for action in parser._actions:
        if type(action).__name__ != "_ActionConfigLoad":
            continue
        section, found = action.dest, settings
        for key in section.split("."):
            found = found.get(key, {}) if isinstance(found, dict) else {}
        if not isinstance(found, (dict, str)):  # text is the path of a file with the section
            raise ConfigError(
                f"{section} is {'null' if found is None else repr(found):.100} in {name}, but must "
                f"hold settings, such as {_example(parser, section)}"
            )


def _example(parser: ArgumentParser, section: str) -> str:
    return next(
        action.dest
        for action in parser._actions
        if action.dest.startswith(f"{section}.") and not action.dest.endswith(".help")
    )


def sentence(error: Exception, known: Iterable[str] = ()) -> str:
    """Return an error's message in one line, with what could have been meant.

    Args:
        error: Of jsonargparse, of Lightning or of lrl.
        known: The names of all settings.
    """
    text = " ".join(str(error).split())
    if safety.is_enabled() and (denied := _NOT_ALLOWED.search(text)):
        key = _KEY.search(text)
        return str(safety.refusal(key[1] if key else "the configuration", denied[1]))
    if missing := _NOT_INSTALLED.search(text):
        return f"trainer.logger: {missing[1]} is not installed: pip install 'lrl[{missing[1]}]'"
    if loose := _LOOSE_CHECKPOINT.search(text):
        return f"{text}: did you mean '--ckpt_path {loose[1]}'?"
    if lost := _NO_FILE.search(text):
        return _no_configuration(Path(lost[2]))
    text = text.replace('Parser key "config": --config', "--config", 1)  # on the command line
    if section := _NO_SECTION.match(text):
        example = next((name for name in known if name.startswith(f"{section[1]}.")), "of its own")
        return f"{section[1]} is {section[2]}, but must hold settings, such as {example}"
    if seed := _SEED.match(text):
        return f"seed_everything is {seed[1]}, but must be from 0 to {seed[2]}"
    option = next(filter(None, (pattern.search(text) for pattern in _UNKNOWN_OPTION)), None)
    if option and (renamed := _renamed(text, option[1])):
        return renamed
    plain = _in_plain_words(text).removesuffix(".")
    if option and option[1] == "class_path" and _BESIDE.search(plain):
        return _BESIDE.sub(": what is set beside class_path goes under init_args", plain)
    meant = _meant(text, option, known)
    return f"{plain}: did you mean {meant!r}?" if meant else plain


def _no_configuration(path: Path) -> str:
    """Say that a file is missing; a recipe that lrl brings has no file here but a name."""
    names = ["/".join(path.with_suffix("").parts[-count:]) for count in (2, 1)]
    recipe = next((name for name in names if name in recipes()), None)
    said = f"--config {path}: there is no such file"
    return f"{said}: did you mean '{PREFIX}{recipe}'?" if recipe else said


def _renamed(text: str, option: str) -> str | None:
    """Say what an old setting is called now."""
    section = _KEY.match(text)
    key = f"{section[1]}.{option}" if section else option
    new = new_name(key) if "." in key else None
    new = new or RENAMED.get(option)
    return f"{key} is called {new} now" if new else None


def _in_plain_words(text: str) -> str:
    """Return what jsonargparse says of a value as a sentence: key, value and what is accepted."""
    if own := _OWN_WORDS.search(text):  # of a constructor
        return own[1].partition(" - Not a valid subclass of ")[0]
    if not (found := _KEY.match(text)):
        return text
    key, rest = found[1], text[found.end() :]
    # What is said of a class that was named counts, not that it is no number either.
    find = _PART.search
    while part := find(rest):
        rest, find = rest[part.end() :], _PART.match
        if inner := _KEY.match(rest):
            key, rest, find = f"{key}.{inner[1]}", rest[inner.end() :], _PART.search
    rest = _NO_PATH.sub("", rest)
    if of_class := _of_class(key, text, rest):
        return of_class
    if types := _TYPES.search(rest):
        if entry := _NESTED.match(types[2]):
            kinds = [kind for kind in re.findall(_TYPE, types[1]) if "NoneType" not in kind]
            return _must_be(f"{key}.{entry[1]}", entry[2], kinds)
        of_class = ["dot import path string"] if _NO_CLASS.search(types[1]) else []
        return _must_be(key, types[2], [*of_class, *re.findall(_TYPE, types[1])])
    if one := _ONE_TYPE.match(rest):
        return _must_be(key, one[2], [one[1]])
    if other := _NO_SUBCLASS.search(rest):
        return f"{key} is {other[1]}, but must be a subclass of {other[2]}"
    missing = _NOT_FOUND.search(rest)
    return f"{key}: {missing[1]}" if missing else text


def _of_class(key: str, text: str, rest: str) -> str | None:
    """Say what a class that was named does not take, or cannot do without."""
    if option := re.match(r"Option '([\w.]+)' is not accepted", rest):
        return f"{key}.{option[1]} is no setting"
    if required := _REQUIRED.match(rest):
        return f"{key}: {_OF_CLASS_PROBLEM.findall(text)[-1]} needs {required[1]} under init_args"
    return None


def _must_be(key: str, value: str, types: Iterable[str]) -> str:
    def words(kind: str) -> str:
        if kind.startswith("tuple with "):
            return f"a list of {kind.split()[2]} values"
        values = kind.removeprefix("typing.Literal[").removesuffix("]")
        return _WORDS.get(kind) or " or ".join(values.split(", "))

    accepted = " or ".join(dict.fromkeys(map(words, types)))
    return f"{key} is {value:.100}, but must be {accepted}" if accepted else f"{key}: {value}"


def _meant(text: str, option: re.Match[str] | None, known: Iterable[str]) -> str | None:
    """Return the nearest name that would have been right."""
    if name := _UNKNOWN_NAME.search(text):
        return _nearest(name[2], dir(sys.modules.get(name[1])))
    if option is None:
        return None
    before, after = text[: option.start()], text[option.end() :]
    owners = _OF_CLASS.findall(before)[-1:] or _OF_CLASS.findall(after)[:1]
    if not owners:
        return _nearest_path(option[1], list(known))
    return _nearest(option[1].partition(".")[0], _parameters(owners[0]))


def _parameters(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):  # such as C's
        signature = inspect.signature(getattr(sys.modules[module], name))
        return [*signature.parameters, "class_path", "init_args"]
    return []


def _nearest_path(path: str, known: list[str]) -> str | None:
    """Return a known name that a path begins with if its first unknown part is put right."""
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        beginning = ".".join(parts[:count])
        if not any(f"{name}.".startswith(f"{beginning}.") for name in known):
            candidates = {".".join(name.split(".")[:count]) for name in known}
            return _nearest(beginning, sorted(candidates))
    return None


def has_variables() -> bool:
    """Return whether a variable of the environment is a setting: `--help` then names them all."""
    return any(_VARIABLE.match(name) for name in os.environ)


def check_variables(command: str, known: Iterable[str]) -> None:
    """Refuse variables of the environment that look like settings and are none.

    Args:
        command: The subcommand that is run.
        known: Its settings, by their dotted names.

    Raises:
        ConfigError: There is one; the message says what it may have been meant to be.
    """
    start = f"LRL_{command.upper()}__"
    keys = [key for key in known if not key.endswith(".help")]
    names = {start + key.replace(".", "__").upper() for key in keys}
    for variable in sorted(os.environ):
        if (found := _VARIABLE.match(variable)) and found[1].lower() not in COMMANDS:
            raise ConfigError(f"the variable {variable} is of no command of lrl: unset it")
        if not variable.startswith(start) or variable in names:
            continue
        whole = max(
            (name for name in names if variable.startswith(f"{name}__")), default="", key=len
        )
        near = _nearest(variable, sorted(names))
        fix = f"; did you mean {near}?" if near else ": unset it"
        if whole and not any(name.startswith(f"{whole}__") for name in names):
            fix = f": {whole} takes all of its settings at once, as a mapping such as '{{a: 1}}'"
        raise ConfigError(f"the variable {variable} is no setting of lrl {command}{fix}")


def _nearest(word: str, candidates: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None
