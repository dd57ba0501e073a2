"""Commands beside LightningCLI's: a function each, no Trainer of their own."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser

from lrl.checkpoints.runs import resolve_checkpoint, runs_folder
from lrl.cli import failure
from lrl.cli.command_list import own_commands
from lrl.cli.messages import check_variables, has_variables, sentence
from lrl.deploy.hub import fetched
from lrl.parts import safety
from lrl.processes import outputs
from lrl.processes.ending import ending
from lrl.types import ConfigError

CONFIG_ERROR = 2
"""Exit code of all commands; those of signals are `lrl.processes.ending`'s."""


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a command of `own_commands` and return the exit code."""
    configure_logging()
    try:
        function = getattr(import_module(own_commands()[name]), name)
        settings = read_arguments(name, function, arguments)
        outputs.tell()
        with ending.raising():
            function(**settings)
    except BaseException as error:
        if ending.number is not None or isinstance(error, KeyboardInterrupt):
            return ending.report(signal.SIGINT)  # whatever an import made of the signal
        if isinstance(error, (ArgumentError, ConfigError)):
            return report_mistake(error)
        if isinstance(error, Exception):
            return failure.report_error(error)
        raise
    return 0


def read_arguments(
    name: str, function: Callable[..., object], arguments: Sequence[str]
) -> dict[str, Any]:
    """Return a command's arguments by name, with `best` and `last` turned into paths.

    Raises:
        ConfigError: There is no such checkpoint, a module cannot be imported, or a variable of the
            environment names no argument.
        ArgumentError: An argument is wrong.
    """
    settings = _parse(arguments_of(name, function), name, arguments)
    if not _reads_checkpoints(function):
        return settings
    given, runs, run_name = (settings.pop(key) for key in ("ckpt_path", "runs", "name"))
    _import(settings.pop("modules"))
    is_many = isinstance(given, list)
    paths = [
        resolve_checkpoint(str(fetched(path)), runs_folder(runs), run_name)
        for path in (given if is_many else [given])
    ]
    return {"ckpt_path": paths if is_many else paths[0], **settings}


def arguments_of(name: str, function: Callable[..., object]) -> ArgumentParser:
    """Return what reads a command's arguments; mistakes are raised."""
    description = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
    parser = ArgumentParser(
        prog=f"lrl {name}",
        description=description,
        exit_on_error=False,
        env_prefix=f"LRL_{name.upper()}_",  # and one more for each dot, of which there is none
        default_env=has_variables(),
    )
    if not _reads_checkpoints(function):
        parser.add_function_arguments(
            function, skip=_add_lists(parser, function), as_group=False, as_positional=True
        )
        return parser
    is_many = get_origin(get_type_hints(function)["ckpt_path"]) is not None
    parser.add_argument(
        "--ckpt_path",
        nargs="+" if is_many else None,
        metavar="PATH",
        required=True,
        help="Checkpoint of lrl's, best or last of the newest run of that name, or hub:owner/name"
        + (" (any number of them)." if is_many else "."),
    )
    parser.add_argument("--name", type=str, default="dqn", help="Run that best and last are of.")
    parser.add_argument("--runs", type=str, default="runs", help="Folder of all runs.")
    parser.add_argument(
        "--modules",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="Modules to import first: those of your own parts, which a checkpoint only names.",
    )
    parser.add_function_arguments(function, skip={"ckpt_path"}, as_group=False)
    return parser


def _reads_checkpoints(function: Callable[..., object]) -> bool:
    return "ckpt_path" in inspect.signature(function).parameters


def _add_lists(parser: ArgumentParser, function: Callable[..., object]) -> set[str | int]:
    """Add the arguments that are any number of paths, which jsonargparse takes as one word only."""
    texts = {p.arg_name: p.description for p in docstring_parser.parse_from_object(function).params}
    hints, added = get_type_hints(function), set[str | int]()
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] == Sequence[str | Path]:
            about = {"nargs": "+", "help": texts[name]}
            if parameter.default is parameter.empty:
                parser.add_argument(name, metavar=name.upper(), **about)
            else:
                default = list(parameter.default)
                parser.add_argument(f"--{name}", metavar="PATH", default=default, **about)
            added.add(name)
    return added


def _parse(parser: ArgumentParser, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    check_variables(name, [action.dest for action in parser._actions])
    return _at_home(parser.parse_args(list(arguments)).as_dict())


def _at_home(value: Any) -> Any:
    """Return arguments with a leading `~` replaced, which shells leave in `--output=~/x`."""
    if isinstance(value, dict):
        return {name: _at_home(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_at_home(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (str, Path)):
        return type(value)(os.path.expanduser(value))  # noqa: PTH111 - leaves names of nobody alone
    return value


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        safety.check_path(module, "--modules")
    try:
        for module in modules:
            import_module(module)
            safety.trust(module)
    except ImportError as error:
        raise ConfigError(f"--modules {' '.join(modules)}: {error}") from error


def configure_logging() -> None:
    """Show warnings, and what lrl itself has to say."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("lrl").setLevel(logging.INFO)


def report_mistake(error: Exception, known: Iterable[str] = ()) -> int:
    """Say in one line what is wrong with the settings; return the exit code.

    Args:
        error: What was raised.
        known: The names of all settings, of which one may have been meant.
    """
    text = "".join(traceback.format_exception(error))
    failure.show(text)
    place = None if isinstance(error, ConfigError) else failure.own_place(text)
    where = f" ({place})" if place else ""  # of a part of yours that refuses its settings
    print(f"lrl: error: {sentence(error, known)}{where}", file=sys.stderr)
    return CONFIG_ERROR
