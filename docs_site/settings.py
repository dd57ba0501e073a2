"""The page of all settings, made of the parser of `lrl fit`."""

from __future__ import annotations

import collections.abc
import dataclasses
import re
import sys
import types
import typing
from argparse import SUPPRESS
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser, set_parsing_settings

from lrl.cli.exit_status import Outcome
from lrl.cli.main import LrlCLI

INTRODUCTION = """# Settings

Every key of `lrl fit`, made of the code when this site is built. In YAML each part of a name is a
level: `--data.replay.n_step 3` is `data: {replay: {n_step: 3}}`. As a variable of the environment
it is `LRL_FIT__DATA__REPLAY__N_STEP=3`. Where the type is a part (an encoder, a head, a sampler),
the value is `{class_path: ..., init_args: {...}}`; the arguments of lrl's parts are in the
reference of [lrl.networks](api/lrl.networks.md), [lrl.learner](api/lrl.learner.md),
[lrl.replay](api/lrl.replay.md), [lrl.actors.exploration](api/lrl.actors.exploration.md) and
[lrl.schedules](api/lrl.schedules.md). `trainer` is the whole Trainer of Lightning.
"""
SECTIONS = {
    "": "The run",
    "model": "The agent",
    "data": "Where rows come from",
    "data.env": "The environment",
    "data.env.wrappers[]": "Each wrapper",
    "data.env.atari": "Atari, where `data.env.id` is a game of it",
    "data.actors": "Actors in the background",
    "data.inference": "Central inference",
    "data.cluster": "Actors on a cluster",
    "data.replay": "The replay",
    "data.replay.sequences": "Sequences, for agents that remember",
    "data.rate": "The ratio of learning to acting",
    "data.evaluation": "Evaluation",
    "actor_learner": "What happens how often",
    "progress": "The progress bar",
    "trainer": "Lightning's Trainer",
}
"""Sections in the order of the page; one that is not listed comes last, by its own name."""

REPLACED = {"ckpt_path": "Checkpoint to go on from: a path, or `best` or `last` of the newest run."}
"""Sentences in place of Lightning's, where lrl takes something else."""


class Setting(NamedTuple):
    """A key, what it takes, what it is if nobody says so, and its sentence."""

    key: str
    kind: str
    default: str
    text: str


class _ParserOnly(LrlCLI):
    """The command line as far as its parser; nothing runs."""

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


def command_line(*options: str) -> LrlCLI:
    """Return the command line of `lrl fit`, with its parser and the sentences of the sources."""
    arguments = sys.argv
    sys.argv = ["lrl", "fit", *options]
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    try:
        return _ParserOnly(Outcome())
    finally:
        sys.argv = arguments
        set_parsing_settings(docstring_parse_attribute_docstrings=False)


def all_settings() -> list[Setting]:
    """Return every key of `lrl fit`, those of sections that are null by default included."""
    return list(keys_of(command_line()._parser("fit")))


def keys_of(parser: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a parser, those of sections that are null by default included."""
    for action in parser._actions:
        kind = getattr(action, "_typehint", None) or action.type
        if action.default is SUPPRESS or kind is None:
            continue  # help, or what another key decides
        key = prefix + action.dest
        default = "required" if action.required else _default(action.default)
        text = REPLACED.get(key) or _sentence(action.help)
        yield Setting(key, _name(kind), default, text)
        for section in typing.get_args(kind):
            if isinstance(section, type) and dataclasses.is_dataclass(section):
                inner = ArgumentParser(exit_on_error=False)
                inner.add_class_arguments(section)
                yield from keys_of(inner, f"{key}{'[]' * _name(kind).startswith('list')}.")


def _name(kind: Any) -> str:
    """Return a type as one would write it; of what makes a part, the part."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(part) for part in inner)
    if origin is typing.Literal:
        return " or ".join(repr(choice) for choice in inner)
    if origin is collections.abc.Callable:
        return _name(inner[-1])
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_name(part) for part in inner)}]"
    return "None" if kind is type(None) else getattr(kind, "__name__", "...")


def _default(value: Any) -> str:
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict) and "class_path" in value:
        name = value["class_path"].rpartition(".")[2]
        given = ", ".join(f"{key}={_default(x)}" for key, x in value.get("init_args", {}).items())
        return f"{name}({given})" if given else name
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _sentence(text: str | None) -> str:
    text = re.sub(r" Default: ``.*?``\.", "", " ".join((text or "").split()))
    text = re.sub(r":(?:\w+:)?\w+:`[~.]*([^`]+)`", r"`\1`", text)  # roles of Sphinx
    return text.replace("``", "`").replace("|", "\\|")


def page() -> str:
    """Return the page, as Markdown."""
    lines = [INTRODUCTION]
    found = sorted(all_settings(), key=lambda setting: _place(_section(setting.key)))
    for section, group in groupby(found, key=lambda setting: _section(setting.key)):
        title = SECTIONS.get(section, "")
        name = f"`{section}`" if section else ""
        lines += [f"\n## {': '.join(filter(None, [name, title]))}\n"]
        lines += ["| key | type | default | what it is |", "| --- | --- | --- | --- |"]
        for key, kind, default, text in group:
            lines.append(f"| `{key}` | `{kind}` | `{default}` | {text} |")
    return "\n".join([*lines, ""])


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _place(section: str) -> tuple[int, str]:
    names = list(SECTIONS)
    return (names.index(section) if section in names else len(names), section)
