"""Whether the diagnosis names runs that were made to fail, and says nothing of good ones.

Run `python -m benchmark.diagnosis --runs FOLDER` from the root of the repository: runs that the
folder holds already are not made again. `docs/diagnosis.json` then has what was found, and
`docs/diagnosis.md` a table of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import yaml

from benchmark.pages import put_between
from benchmark.scores.runs import newest_version
from benchmark.scores.tasks import TASKS
from lrl.diagnosis import diagnose

_BEGIN, _END = "<!-- runs -->", "<!-- end of runs -->"
_ONE_THREAD = ("--data.learner_threads", "1")


class ScaleReward(gymnasium.RewardWrapper):
    """Multiply every reward, for `env.wrappers`."""

    def __init__(self, env: gymnasium.Env, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> float:
        """Return the reward times the scale."""
        return float(reward) * self.scale


@dataclass(frozen=True)
class Trial:
    """A run.

    Attributes:
        name: Its name, and that of its folder.
        recipe: Its recipe.
        settings: Further arguments of `lrl fit`.
        seed: Its seed.
        named: Findings of which one has to be said; none may be of a good run.
        what: What is wrong with it, in words.
        bar: What a good run reaches; None is the bar of its recipe's scores.
    """

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    seed: int = 0
    named: tuple[str, ...] = ()
    what: str = ""
    bar: float | None = None


def _failing(name: str, what: str, named: Sequence[str], *settings: str) -> Trial:
    steps = ("--trainer.max_steps", "800", *_ONE_THREAD)
    return Trial(name, "cartpole_sync", (*steps, *settings), 0, tuple(named), what)


def _scaled(scale: float) -> tuple[str, str]:
    wrapper = {"path": "benchmark.diagnosis.ScaleReward", "kwargs": {"scale": scale}}
    return "--data.env.wrappers", json.dumps([wrapper])


FAILING = (
    _failing(
        "learning_rate", "learning rate 1", ["dead_units", "values_diverge"],
        "--model.optimizer.init_args.lr", "1.0",
    ),
    _failing("rewards_zero", "all rewards 0", ["no_reward"], *_scaled(0.0)),
    _failing(
        "epsilon", "epsilon stuck at 1", ["exploration_stuck"],
        "--data.exploration.init_args.schedule",
        json.dumps({"class_path": "lrl.schedules.Constant", "init_args": {"value": 1.0}}),
    ),
    _failing(
        "replay", "replay of 100 rows", ["replay_small"],
        "--data.replay.capacity", "100", "--data.replay.batch_size", "32",
        "--data.rate.warm_up_env_steps", "100", "--data.rate.samples_per_insert", "0.5",
        "--data.actors.envs_per_actor", "4",
    ),
    _failing(
        "target", "target network never updated", ["target_still"],
        "--model.target_update_period_learner_steps", "1000000",
    ),
    _failing("reward_scale", "rewards times 10,000", ["reward_scale"], *_scaled(10_000.0)),
)  # fmt: skip
"""Runs of the recipe `cartpole_sync` with one setting that makes them fail."""

_SHORT = (*_ONE_THREAD, "--trainer.max_steps", "2000")


def _toy(name: str, env: str, *settings: str) -> Trial:
    """Return a run of the recipe `dials` on a toy, as `tests/learning/test_toys.py` learns it."""
    falling = {"start": 1.0, "end": 0.1, "duration": 3000}
    schedule = {"class_path": "lrl.schedules.Linear", "init_args": falling}
    settings = (
        "--data.env.id", env, "--model.optimizer.init_args.lr", "3e-3",
        "--data.exploration.init_args.schedule", json.dumps(schedule),
        "--data.replay.batch_size", "64", "--data.replay.gamma", "0.95", *settings,
    )  # fmt: skip
    return Trial(name, "dials", settings, bar={"lrl/Catch-v0": 1.0, "lrl/Chain-v0": 0.6}[env])


GOOD = (
    Trial("cartpole", "cartpole", _ONE_THREAD),
    Trial("cartpole_sync", "cartpole_sync", _SHORT),
    Trial("cartpole_rainbow", "cartpole_rainbow", _ONE_THREAD),
    Trial("cartpole_iqn", "cartpole_iqn", _ONE_THREAD),
    Trial("cartpole_pqn", "cartpole_pqn", _ONE_THREAD),
    Trial("cartpole_masked", "cartpole_masked", _ONE_THREAD),
    Trial("recall", "recall", _ONE_THREAD),
    Trial("dials", "dials"),
    Trial("dials_1", "dials", seed=1),
    _toy(
        "catch_c51", "lrl/Catch-v0",
        "--model.head", json.dumps({
            "class_path": "lrl.networks.CategoricalHead",
            "init_args": {"num_atoms": 51, "v_min": -5.0, "v_max": 1.5},
        }),
    ),
    _toy(
        "catch_quantile", "lrl/Catch-v0",
        "--model.head", json.dumps({
            "class_path": "lrl.networks.QuantileHead", "init_args": {"num_quantiles": 16}
        }),
        "--data.replay.sampler", "lrl.replay.PrioritizedSampler",
    ),
    _toy(
        "chain_munchausen", "lrl/Chain-v0",
        "--model.bootstrap", "lrl.learner.MunchausenBootstrap",
    ),
    _toy(
        "chain_implicit", "lrl/Chain-v0",
        "--model.head", json.dumps({
            "class_path": "lrl.networks.ImplicitQuantileHead",
            "init_args": {"num_quantiles": 8, "num_target_quantiles": 8},
        }),
    ),
)  # fmt: skip
"""Recipes and toys that are learnt, with a learner of one thread; CartPole in fewer steps."""


def is_made(trial: Trial, runs: Path) -> bool:
    """Return whether a folder of runs holds one that was trained to its end."""
    if not (runs / trial.name).exists():
        return False
    summary = newest_version(runs / trial.name) / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["outcome"] == "finished"


def make(trial: Trial, runs: Path) -> Path:
    """Train, unless it was done before; return the run's folder."""
    folder = runs / trial.name
    if is_made(trial, runs):
        return newest_version(folder)
    command = [
        sys.executable, "-m", "lrl", "fit", "--config", f"configs/{trial.recipe}.yaml",
        "--runs", str(folder), "--seed_everything", str(trial.seed),
        "--trainer.enable_progress_bar", "false", *trial.settings,
    ]  # fmt: skip
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / f"{trial.name}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return newest_version(folder)


def judge(trial: Trial, folder: Path) -> dict[str, Any]:
    """Return what was found on a run, as plain data."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    summary = json.loads((folder / "summary.json").read_text())
    findings = diagnose(rows, yaml.safe_load((folder / "config.yaml").read_text()))
    return {
        "run": trial.name,
        "recipe": trial.recipe,
        "seed": trial.seed,
        "what": trial.what,
        "named_by": list(trial.named),
        "learner_steps": summary["learner_steps"],
        "bar": _bar(trial),
        "best_return_mean": round(summary["best_return_mean"], 2),
        "findings": [finding._asdict() for finding in findings],
    }


def _bar(trial: Trial) -> float | None:
    """Return what a good run has to reach, None of one that was made to fail."""
    if trial.named:
        return None
    if trial.bar is not None:
        return trial.bar
    return next(task.bar for task in TASKS if task.name == trial.recipe)


def is_as_it_should(result: Mapping[str, Any]) -> bool:
    """Return whether a failing run was named, or a good one that reached its bar was not."""
    found = {finding["name"] for finding in result["findings"]}
    if result["named_by"]:
        return bool(found & set(result["named_by"]))
    return not found and result["best_return_mean"] >= result["bar"]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as two tables of Markdown."""
    lines = ["| made to fail by | best return | findings |", "| --- | --- | --- |"]
    for result in (each for each in results if each["named_by"]):
        said = "; ".join(f"`{f['name']}`: {f['sentence']}" for f in result["findings"])
        lines.append(f"| {result['what']} | {result['best_return_mean']:g} | {said or 'none'} |")
    lines += [
        "",
        "| good run | seed | bar | best return | findings |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in (each for each in results if not each["named_by"]):
        said = ", ".join(f"`{finding['name']}`" for finding in result["findings"]) or "none"
        figures = f"{result['seed']} | {result['bar']:g} | {result['best_return_mean']:g}"
        lines.append(f"| `{result['run']}` | {figures} | {said} |")
    return "\n".join(lines)


def written(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with the tables of these results."""
    return put_between(page, _BEGIN, _END, f"\n\n{table(results)}\n\n")


def main() -> None:
    """Make the runs, and write the file and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="Folder of the runs.")
    parser.add_argument("--made", action="store_true", help="Train none: judge those made before.")
    arguments = parser.parse_args()
    results = []
    for trial in (*FAILING, *GOOD):
        if arguments.made and not is_made(trial, arguments.runs):
            continue
        results.append(judge(trial, make(trial, arguments.runs)))
        found = [finding["name"] for finding in results[-1]["findings"]]
        print(trial.name, results[-1]["best_return_mean"], found, flush=True)
    Path("docs/diagnosis.json").write_text(json.dumps(results, indent=1) + "\n")
    page = Path("docs/diagnosis.md")
    page.write_text(written(page.read_text(), results))
    sys.exit(0 if all(map(is_as_it_should, results)) else 1)


if __name__ == "__main__":
    main()
