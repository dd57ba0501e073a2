"""Runs of one configuration are one group; what differs between groups names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrl.report.runs import Run

_NO_DIFFERENCE = (
    "seed_everything", "data.seed", "name", "runs", "ckpt_path", "progress", "data.env.id",
    "trainer.logger", "trainer.default_root_dir", "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
)  # fmt: skip
"""Settings, with all below them, that may differ between runs of a group: they change no result, or
are the seed and the task."""
_LONGEST_LABEL = 44


@dataclass(frozen=True)
class Group:
    """Runs whose configuration is equal but for seed, task and names.

    Attributes:
        label: Short and unlike that of any other group.
        settings: What they have in common, by dotted names.
        runs: At least one.
    """

    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the groups of runs, in the order of their first ones."""
    found: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        settings = _compared(run.settings)
        found.setdefault(tuple((k, repr(settings[k])) for k in sorted(settings)), []).append(run)
    members = list(found.values())
    settings = [_compared(group[0].settings) for group in members]
    names = [_names(group) for group in members]
    return [
        Group(label, one, tuple(group))
        for label, one, group in zip(labels(settings, names), settings, members, strict=True)
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that are not the same in all, sorted.

    Example:
        >>> differing([{"lr": 0.1, "n_step": 1}, {"lr": 0.2, "n_step": 1, "beta": 0.4}])
        ['beta', 'lr']
    """
    names = sorted({name for each in settings for name in each})
    return [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]


def labels(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a label for each group: its values of what differs, or its name if that is shorter.

    Args:
        settings: Of each group, by dotted names.
        names: What each group's runs are called.

    Example:
        >>> one, two = {"model.optimizer.init_args.lr": 0.1}, {"model.optimizer.init_args.lr": 0.2}
        >>> labels([one, two], ["a", "b"])
        ['lr 0.1', 'lr 0.2']
        >>> labels([one], ["a"])
        ['a']
    """
    changed = differing(settings)
    classes = [name.removesuffix("class_path") for name in changed if name.endswith("class_path")]
    # Which arguments a class has follows from the class.
    told = [
        name
        for name in changed
        if not any(name.startswith(f"{prefix}init_args") for prefix in classes)
    ]
    shorts = _short_names(told)
    made = [
        ", ".join(
            f"{short} {said(each.get(name))}" for name, short in zip(told, shorts, strict=True)
        )
        for each in settings
    ]
    is_usable = told and max(map(len, made)) <= _LONGEST_LABEL and len(set(made)) == len(made)
    if is_usable:
        return made
    counts, labelled = Counter(names), []
    for index, name in enumerate(names):
        number = names[: index + 1].count(name)
        labelled.append(name if counts[name] == 1 else f"{name} ({number})")
    return labelled


def said(value: Any) -> str:
    """Return a setting's value as a person would write it.

    Example:
        >>> [said(value) for value in (None, True, 0.0001, "lrl.networks.ScalarHead")]
        ['null', 'true', '0.0001', 'ScalarHead']
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    is_path = text.replace(".", "").replace("_", "").isalnum() and not text[:1].isdigit()
    return text.rpartition(".")[2] if is_path else text


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if not any(name == left or name.startswith(f"{left}.") for left in _NO_DIFFERENCE)
    }


def _names(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run.folder.resolve().parent.name for run in runs))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the shortest ends of dotted names that tell them apart."""
    parts = [
        [part for part in name.split(".") if part not in ("init_args", "class_path")]
        for name in names
    ]
    found = []
    for own in parts:
        length = 1
        while length < len(own) and sum(p[-length:] == own[-length:] for p in parts) > 1:
            length += 1
        found.append(".".join(own[-length:]))
    return found
