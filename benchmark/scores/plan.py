"""Campaigns as files: which runs there are, and in which order they are done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmark.scores.tasks import Task

FOLDER = Path(__file__).parent / "campaigns"
_KEYS = {
    "": ("budget", "checkpoint", "seeds", "settings", "tasks", "algorithms"),
    "tasks": ("configs", "settings", "bar", "test_settings", "algorithms"),
    "algorithms": ("configs", "settings", "machines"),
}
_CHECKPOINTS = ("best", "last")


@dataclass(frozen=True)
class Campaign:
    """Tasks, algorithms and seeds.

    A file has `budget` (in words), `checkpoint` ("best" or "last": which one is tested), `seeds`,
    `settings` (of all runs), `tasks` and `algorithms`. A task or an algorithm has `configs`
    (recipe and overlays in `configs/`, in order), `settings`, and a task may have a `bar`,
    `test_settings` and a list `algorithms` where it is not run with all. Settings are options of
    the command line without their dashes, and are given in the order all, task, algorithm.
    An algorithm may have `machines`: by a machine's name, settings that train the same recipe
    differently there; the digest ignores them.

    Attributes:
        name: Name of the file in `benchmark/scores/campaigns/`.
        budget: What it may cost, in words.
        seeds: Training seeds.
        tasks: What is run with each seed, in this order.
    """

    name: str
    budget: str
    seeds: tuple[int, ...]
    tasks: tuple[Task, ...]

    def runs(self) -> Iterator[tuple[Task, int]]:
        """Yield the runs in order: seed by seed, so that a part of a campaign is balanced."""
        for seed in self.seeds:
            for task in self.tasks:
                yield task, seed


def names() -> list[str]:
    """Return the names of the campaigns that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str, folder: Path = FOLDER) -> Campaign:
    """Read a campaign.

    Raises:
        ValueError: The file has keys that mean nothing, a seed twice, a checkpoint that is never
            tested, or a task with an algorithm that there is not, or without a recipe.
    """
    content = yaml.safe_load((folder / f"{name}.yaml").read_text())
    _check(f"{name}.yaml", content)
    algorithms = content.get("algorithms") or {"": {}}
    tasks = [
        _task(task_name, task, algorithm, algorithms[algorithm], content)
        for task_name, task in content["tasks"].items()
        for algorithm in task.get("algorithms", algorithms)
    ]
    return Campaign(name, content["budget"], tuple(content["seeds"]), tuple(tasks))


def _check(file: str, content: Mapping[str, Any]) -> None:
    _check_keys(file, "", content)
    algorithms = content.get("algorithms") or {"": {}}
    for part, entries in (("tasks", content["tasks"]), ("algorithms", algorithms)):
        for name, entry in entries.items():
            _check_keys(f"{file}, {part}.{name}", part, entry)
    if (checkpoint := content["checkpoint"]) not in _CHECKPOINTS:
        choices = " or ".join(_CHECKPOINTS)
        raise ValueError(f"{file}: checkpoint is {checkpoint!r}, but must be {choices}")
    if len(set(content["seeds"])) < len(content["seeds"]):
        raise ValueError(f"{file}: seeds {content['seeds']} repeat: a run is trained once")
    for name, task in content["tasks"].items():
        of_task = task.get("algorithms", algorithms)
        if unknown := [algorithm for algorithm in of_task if algorithm not in algorithms]:
            raise ValueError(
                f"{file}, tasks.{name}: no algorithms {unknown}: choose from {sorted(algorithms)}"
            )
        without = [one for one in of_task if not algorithms[one].get("configs")]
        if without and not task.get("configs"):
            raise ValueError(
                f"{file}, tasks.{name}: no recipe: give it configs, or its algorithms {without}"
            )


def _check_keys(where: str, part: str, entry: Mapping[str, Any]) -> None:
    if unknown := [key for key in entry if key not in _KEYS[part]]:
        raise ValueError(
            f"{where}: unknown keys {', '.join(unknown)}: choose from {', '.join(_KEYS[part])}"
        )


def _task(
    name: str,
    task: Mapping[str, Any],
    algorithm: str,
    of_algorithm: Mapping[str, Any],
    campaign: Mapping[str, Any],
) -> Task:
    recipe, *overlays = [*task.get("configs", []), *of_algorithm.get("configs", [])]
    settings = [a for overlay in overlays for a in ("--config", f"configs/{overlay}.yaml")]
    for part in (campaign, task, of_algorithm):
        settings += options(part.get("settings", {}))
    return Task(
        name,
        recipe,
        bar=task.get("bar", float("-inf")),
        seconds=float("inf"),
        settings=tuple(settings),
        algorithm=algorithm,
        checkpoint=campaign["checkpoint"],
        test_settings=tuple(options(task.get("test_settings", {}))),
        machines={
            name: tuple(options(settings))
            for name, settings in of_algorithm.get("machines", {}).items()
        },
    )


def options(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as options of the command line.

    Example:
        >>> options({"data.env.id": "CartPole-v1", "trainer.devices": 2, "model.core": None})
        ['--data.env.id=CartPole-v1', '--trainer.devices=2', '--model.core=null']
    """
    return [
        f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in settings.items()
    ]
