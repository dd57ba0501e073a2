"""The commands of `lrl`: what they are called, and what they do in a line.

Nothing heavy is imported here: the list answers before Lightning could be loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from lrl.cli import recipes


@dataclass(frozen=True)
class Command:
    """A line of help and, unless LightningCLI or `answer` knows the command, a module for it.

    The module has a function of the command's name, which takes what it needs by name; `ckpt_path`,
    a path or a sequence of paths, may be `best` or `last`. Its docstring is the command's help.
    Sequences of strings take any number of words, without an option if there is no default.
    """

    summary: str
    module: str | None = None


COMMANDS = {
    "fit": Command("train an agent"),
    "validate": Command("play the evaluation episodes of training"),
    "test": Command("play episodes of other seeds, and print the score"),
    "evaluate": Command("score checkpoints, with statistics and files", "lrl.report.evaluate"),
    "report": Command("compare runs on a page", "lrl.report.page"),
    "inspect": Command("tell what a checkpoint holds", "lrl.report.contents"),
    "play": Command("film the agent of a checkpoint", "lrl.video.play"),
    "export": Command("write an agent for programs without lrl", "lrl.deploy.export"),
    "push": Command("push an agent to the Hugging Face Hub", "lrl.deploy.push"),
    "dataset": Command("write experience as a Minari dataset", "lrl.offline.dataset"),
    "recipes": Command("list, show or copy the recipes that come with lrl"),
    "doctor": Command("tell what suits this machine, or an agent on a GPU", "lrl.doctor.command"),
    "bench": Command("measure training on this machine", "lrl.bench.training"),
    "completion": Command("complete commands and settings in a shell", "lrl.cli.completion"),
}
_HABITS = {  # names that other libraries have
    "train": "fit",
    "learn": "fit",
    "run": "fit",
    "resume": "fit",
    "eval": "evaluate",
    "score": "evaluate",
    "predict": "evaluate",
    "enjoy": "play",
    "info": "inspect",
    "compare": "report",
    "plot": "report",
    "show": "inspect",
    "render": "play",
    "watch": "play",
    "onnx": "export",
    "convert": "export",
    "minari": "dataset",
    "record": "dataset",
    "upload": "push",
    "publish": "push",
    "hub": "push",
    "configs": "recipes",
    "benchmark": "bench",
    "check": "doctor",
}
GLOBAL_OPTIONS = {  # of `lrl` itself
    "--help": "show this, or the settings of a command",
    "--version": "show the version",
    "--safe": "allow only code from a few packages to be named (docs/security.md)",
    "--debug": "show the traceback of whatever goes wrong",
}


def own_commands() -> dict[str, str]:
    """Return the modules of the commands that have one."""
    return {name: command.module for name, command in COMMANDS.items() if command.module}


def answer(arguments: Sequence[str]) -> tuple[str, int] | None:
    """Return what to print and the exit code, if the lists here and of recipes are enough.

    Args:
        arguments: Of the command line, without the program's name.
    """
    words = [argument for argument in arguments if argument not in ("--safe", "--debug")]
    if not words or words[0] in ("-h", "--help", "help"):
        return overview(), 0
    if words[0] == "recipes":
        return recipes.answer(words[1:])
    if words[0].startswith("-") or words[0] in COMMANDS:
        return None
    near = [_HABITS.get(words[0]), *difflib.get_close_matches(words[0], COMMANDS, 1, 0.5)]
    meant = next((f": did you mean {name!r}?" for name in near if name), "")
    return f"lrl: error: there is no command {words[0]!r}{meant}\n\n{_commands()}", 2


def overview() -> str:
    """Return the help of `lrl` itself."""
    lines = [f"  {name:<10}  {summary}" for name, summary in GLOBAL_OPTIONS.items()]
    return "\n".join(
        [
            "usage: lrl COMMAND [options]",
            "",
            "Train and evaluate value-based agents.",
            "",
            _commands(),
            "",
            "options:",
            *lines,
            "",
            "lrl COMMAND --help lists the settings of a command. To begin with:",
            "  lrl fit --config recipe:cartpole",
        ]
    )


def _commands() -> str:
    return "\n".join(["commands:", *(f"  {name:<10}  {c.summary}" for name, c in COMMANDS.items())])
