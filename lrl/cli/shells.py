"""Scripts for bash, zsh and fish that complete the words of a command line from lists."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

FILES = "FILES"
"""Stands for any file among the values of an option."""


@dataclass(frozen=True)
class Command:
    """What a command is, and what may follow it.

    Attributes:
        summary: What it does.
        options: Each option with its values; without any, files are offered.
        first: Words that may come first, in place of an option.
    """

    summary: str
    options: Mapping[str, tuple[str, ...]]
    first: tuple[str, ...] = ()


_TABLE = """\
_lrl_words() {{
  case $1 in
{table}
  esac
}}
"""
_BASH = """\
_lrl() {
  local line=${COMP_LINE:0:COMP_POINT} word command='' option='' key list
  local current=${line##*[[:space:]]}
  local -a words
  read -ra words <<< "${line%"$current"}"
  for word in "${words[@]:1}"; do
    if [[ $command ]]; then option=$word; elif [[ $word != -* ]]; then command=$word; fi
  done
  # readline replaces only what comes after the last of these
  local kept=${current%"${current##*[:=]}"}
  if [[ $current == --*=* ]]; then
    kept=${kept#"${current%%=*}="} key="$command ${current%%=*}" current=${current#*=}
  elif [[ $current == -* ]]; then key="$command -"
  elif [[ $option == -* ]]; then key="$command $option"
  else key=$command; fi
  list=$(_lrl_words "$key")
  COMPREPLY=($(compgen -W "${list/FILES/}" -- "$current"))
  if [[ ! $list || $list == *FILES ]]; then
    compopt -o filenames 2>/dev/null
    local IFS=$'\\n'
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
  COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}
complete -F _lrl lrl
"""
_ZSH = """\
_lrl() {
  local word command='' option='' key current=$PREFIX
  for word in "${(@)words[2,CURRENT-1]}"; do
    if [[ -n $command ]]; then option=$word; elif [[ $word != -* ]]; then command=$word; fi
  done
  if [[ $current == --*=* ]]; then key="$command ${current%%=*}"; compset -P '*='
  elif [[ $current == -* ]]; then key="$command -"
  elif [[ $option == -* ]]; then key="$command $option"
  else key=$command; fi
  local -a list=(${=$(_lrl_words "$key")})
  compadd -- ${list:#FILES}
  [[ $#list == 0 || $list[-1] == FILES ]] && _files
}
if [[ $funcstack[1] == _lrl ]]; then _lrl "$@"; else compdef _lrl lrl; fi
"""


def bash(commands: Mapping[str, Command], options: Mapping[str, str]) -> str:
    """Return a script for bash 4 and newer.

    Args:
        commands: What may be asked for.
        options: What may stand before a command, with summaries.
    """
    return f"# Written by `lrl completion bash`.\n{_table(commands, options)}{_BASH}"


def zsh(commands: Mapping[str, Command], options: Mapping[str, str]) -> str:
    """Return a script for zsh, as a file `_lrl` of `fpath` or to be sourced; as of `bash`."""
    return f"#compdef lrl\n# Written by `lrl completion zsh`.\n{_table(commands, options)}{_ZSH}"


def fish(commands: Mapping[str, Command], options: Mapping[str, str]) -> str:
    """Return a script for fish; as of `bash`."""
    lines = ["# Written by `lrl completion fish`.", "complete -c lrl -n __fish_use_subcommand -f"]
    for option, summary in options.items():
        lines.append(f"complete -c lrl -l {option[2:]} -d {shlex.quote(summary)}")
    for name, command in commands.items():
        summary = shlex.quote(command.summary)
        lines.append(f"complete -c lrl -n __fish_use_subcommand -a {name} -d {summary}")
        seen = f"complete -c lrl -n '__fish_seen_subcommand_from {name}'"
        if command.first:
            lines.append(f"{seen} -f -a {shlex.quote(' '.join(command.first))}")
        for option, values in command.options.items():
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            offered = shlex.quote(" ".join(value for value in values if value != FILES))
            files = "" if not values or FILES in values else " -f"
            lines.append(f"{seen} {flag} -r{files}" + (f" -a {offered}" if values else ""))
    return "\n".join(lines) + "\n"


def _table(commands: Mapping[str, Command], options: Mapping[str, str]) -> str:
    lines = [
        f"    {shlex.quote(key)}) echo {shlex.quote(' '.join(words))};;"
        for key, words in _rows(commands, options)
        if words
    ]
    return _TABLE.format(table="\n".join(lines))


def _rows(
    commands: Mapping[str, Command], options: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what may follow: on nothing, a command, a command and `-`, a command and an option."""
    yield "", tuple(commands)
    yield " -", tuple(options)
    for name, command in commands.items():
        yield name, command.first
        yield f"{name} -", tuple(command.options)
        for option, values in command.options.items():
            yield f"{name} {option}", values


SCRIPTS: dict[str, Callable[[Mapping[str, Command], Mapping[str, str]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
