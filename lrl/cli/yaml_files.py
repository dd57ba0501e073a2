"""Mistakes in a YAML file of settings that would be read as something else, or as nothing."""

from __future__ import annotations

from typing import Any

import yaml

from lrl.types import ConfigError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"


def check_yaml(content: str, name: str) -> None:
    """Check that a text of YAML holds settings, each of them once.

    Args:
        content: The text.
        name: What it is called.

    Raises:
        ConfigError: It is no YAML or no mapping, has a key twice or holds itself.
    """
    try:
        root = yaml.compose(content, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        context = f"{error.context}, " if error.context else ""
        raise ConfigError(f"{name}{where}: this is no YAML: {context}{error.problem}") from error
    except yaml.YAMLError as error:  # of a character
        raise ConfigError(f"{name}: this is no YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        found = "is empty" if root is None else "is no mapping"
        raise ConfigError(
            f"{name} {found}, but must hold settings, such as trainer: {{max_steps: 1000}}"
        )
    _check_node(root, name, "it", set(), set())


def _check_node(node: yaml.Node, name: str, key: str, around: set[int], done: set[int]) -> None:
    """Check a node and all within, once each: `around` it are those that it is part of."""
    if id(node) in around:
        line = node.start_mark.line + 1
        raise ConfigError(f"{name}, line {line}: {key} holds itself, by its alias: leave that out")
    if id(node) in done:
        return
    done.add(id(node))
    around = around | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _check_node(part, name, key, around, done)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for setting, value in node.value:
        if not isinstance(setting, yaml.ScalarNode):
            continue
        line = setting.start_mark.line + 1
        if setting.value in lines and setting.tag != _MERGE:
            raise ConfigError(
                f"{name}, line {line}: {setting.value} is there already, in line "
                f"{lines[setting.value]}, and only one of them would count: leave one out"
            )
        lines[setting.value] = line
        _check_node(value, name, setting.value, around, done)
