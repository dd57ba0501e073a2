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
_KEYS = {"budget", "checkpoint", "seeds", "settings", "tasks", "algorithms"}


@dataclass(frozen=True)
class Campaign:
    """Tasks, algorithms and seeds.

    A file has `budget` (in words), `checkpoint` ("best" or "last": which one is tested), `seeds`,
    `settings` (of all runs), `tasks` and `algorithms`. A task or an algorithm has `configs`
    (recipe and overlays in `configs/`, in order), `settings`, and a task may have a `bar`,
    `test_settings` and a list `algorithms` where it is not run with all. Settings are options of
    the command line without their dashes, and are given in the order all, task, algorithm.
    An algorithm may have `machines`: settings with which a machine trains the same in another way,
    by its name; they are no part of the recipe.

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
        ValueError: The file has keys that mean nothing.
    """
    content = yaml.safe_load((folder / f"{name}.yaml").read_text())
    if unknown := set(content) - _KEYS:
        raise ValueError(f"{name}.yaml: unknown keys {sorted(unknown)}: choose from {_KEYS}")
    algorithms = content.get("algorithms") or {"": {}}
    tasks = [
        _task(task_name, task, algorithm, algorithms[algorithm], content)
        for task_name, task in content["tasks"].items()
        for algorithm in task.get("algorithms", algorithms)
    ]
    return Campaign(name, content["budget"], tuple(content["seeds"]), tuple(tasks))


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
