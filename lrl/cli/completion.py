"""`lrl completion`: a script that completes commands, settings, recipes and files in a shell.

Everything is in the script, since to ask lrl at each key would take seconds.
"""

from __future__ import annotations

import contextlib
from argparse import Action
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lrl.cli.command_list import COMMANDS, GLOBAL_OPTIONS, own_commands
from lrl.cli.commands import arguments_of
from lrl.cli.exit_status import Outcome
from lrl.cli.main import LrlCLI
from lrl.cli.recipes import PREFIX, recipes
from lrl.cli.shells import FILES, SCRIPTS, Command


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes lrl's commands and settings, recipes and files.

    It knows the commands and settings of the installed version: write it again after an update.

    Args:
        shell: Which shell is to read it.
    """
    print(SCRIPTS[shell](all_commands(), GLOBAL_OPTIONS), end="")


def all_commands() -> dict[str, Command]:
    """Return what each command is, and what may follow it."""
    parsers: dict[str, ArgumentParser] = {**_trained_parsers()}
    for name, module in own_commands().items():
        parsers[name] = arguments_of(name, getattr(import_module(module), name))
    options = {name: dict(_options(parser)) for name, parser in parsers.items()}
    options["recipes"] = {"--help": (), "--copy": ()}
    first = {"recipes": tuple(recipes()), "completion": tuple(SCRIPTS)}
    return {
        name: Command(known.summary, options[name], first.get(name, ()))
        for name, known in COMMANDS.items()
    }


class _Built(BaseException):
    """The parsers are there, which is all that is wanted."""


class _Parsers(LrlCLI):
    """Ends where arguments would be parsed."""

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> NoReturn:
        raise _Built


def _trained_parsers() -> dict[str, LightningArgumentParser]:
    """Return the parsers of LightningCLI's commands."""
    cli = _Parsers.__new__(_Parsers)
    with contextlib.suppress(_Built):
        cli.__init__(Outcome())
    return cli._subcommand_parsers


def _options(parser: ArgumentParser) -> Iterator[tuple[str, tuple[str, ...]]]:
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        for option in action.option_strings:
            if " " in option:  # what jsonargparse calls a link
                continue
            yield option, _values(action, hint)
            if option == f"--{action.dest}" and not option.endswith(".help"):
                yield from _inner(option, hint)
                yield from ((f"{option}.{key}", ()) for key in _default_keys(action.default))


def _inner(option: str, hint: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the settings of a section that may be left out."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and is_dataclass(kind):
            hints = get_type_hints(kind)
            for setting in fields(kind):
                yield f"{option}.{setting.name}", tuple(_choices(hints[setting.name]))


def _default_keys(default: Any) -> Iterator[str]:
    """Yield the arguments of the class that is taken where none is named."""
    init_args = default.get("init_args", {}) if hasattr(default, "get") else {}
    yield from (f"init_args.{key}" for key in dict(init_args))


def _values(action: Action, hint: Any) -> tuple[str, ...]:
    if action.dest == "config":
        return (*(f"{PREFIX}{recipe}" for recipe in recipes()), FILES)
    if action.dest == "ckpt_path":
        return ("best", "last", FILES)
    return tuple(map(str, action.choices or ())) or tuple(_choices(hint))


def _choices(hint: Any) -> Iterator[str]:
    """Yield the values of a setting, where they are few."""
    if hint is bool:
        yield from ("true", "false")
    elif get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    else:
        for kind in get_args(hint):
            if kind is bool or get_origin(kind) is Literal:
                yield from _choices(kind)
