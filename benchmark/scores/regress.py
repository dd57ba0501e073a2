"""Whether recipes still reach what they reached: `python -m benchmark.scores.regress`, 20 minutes.

Each task is trained with a seed that no recorded run has, and tested; its score is compared with
the recorded ones of the same recipe, in `docs/scores.csv` and `docs/campaigns/classic.csv`. Ends
with 1 if one is below them, if one could not be run, or if there are none to compare with, since
the recipe changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benchmark.scores import runs
from benchmark.scores.records import HOME, read_rows
from benchmark.scores.tasks import TASKS, Task

NAMES = (
    "dials", "cartpole_sync", "cartpole", "cartpole_central", "cartpole_rainbow", "cartpole_iqn",
    "cartpole_pqn", "recall", "cartpole_masked", "mountaincar", "minatar_pqn_breakout",
    "lunarlander",
)  # fmt: skip
SEED = 20
"""Not among the seeds that were recorded."""
_DEVIATIONS = 4.0


@dataclass(frozen=True)
class Verdict:
    """A task's score and what it is compared with.

    Attributes:
        task: Name of the task.
        score: Its score; none if it could not be run.
        least: What it has to reach; none if there is nothing recorded to compare with.
        recorded: How many scores were recorded.
        seconds: How long it took.
    """

    task: str
    score: float | None
    least: float | None
    recorded: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the score is as good as the recorded ones."""
        return self.score is not None and self.least is not None and self.score >= self.least


def least_score(task: Task, scores: Sequence[float]) -> float | None:
    """Return the least score that says nothing against a recipe; none without two to compare with.

    The lowest recorded one, or four standard deviations below their mean, or the task's bar: what
    is lowest of them.
    """
    if len(scores) < 2:
        return None
    return min(task.bar, min(scores), mean(scores) - _DEVIATIONS * stdev(scores))


def recorded_scores(task: Task) -> list[float]:
    """Return the scores that were recorded of a task with its present recipe."""
    rows = [*read_rows(Path("docs/scores.csv")), *read_rows(HOME / "classic.csv")]
    of_task = [row for row in rows if (row["task"], row["digest"]) == (task.name, task.digest)]
    return [float(row["score"]) for row in of_task if row["score"]]


def judge(task: Task, seed: int) -> Verdict:
    """Train and test a task, and compare its score."""
    scores = recorded_scores(task)
    started = time.perf_counter()
    try:
        score = float(str(runs.run(task, seed)["score"]))
    except runs.Failed as error:
        print(f"{task.name}: {error}", file=sys.stderr)
        score = None
    seconds = time.perf_counter() - started
    return Verdict(task.name, score, least_score(task, scores), len(scores), seconds)


def line(verdict: Verdict) -> str:
    """Return a verdict as a line of the table."""
    score = "failed" if verdict.score is None else f"{verdict.score:.1f}"
    least = "nothing recorded" if verdict.least is None else f"at least {verdict.least:.2f}"
    said = "" if verdict.holds else "  <- REGRESSION"
    return (
        f"{verdict.task:22} {score:>8}  {least} ({verdict.recorded}), {verdict.seconds:.0f} s{said}"
    )


def main() -> None:
    """Run the tasks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="Tasks to run; a set if none.")
    parser.add_argument("--seed", type=int, default=SEED, help="Training seed.")
    arguments = parser.parse_args()
    by_name = {task.name: task for task in TASKS}
    if unknown := sorted(set(arguments.tasks) - set(by_name)):
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {', '.join(by_name)}")
    verdicts = []
    for name in arguments.tasks or NAMES:
        verdicts.append(judge(by_name[name], arguments.seed))
        print(line(verdicts[-1]), flush=True)
    if not all(verdict.holds for verdict in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()
