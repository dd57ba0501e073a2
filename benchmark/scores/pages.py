"""Tables of campaigns in the docs, from their CSV files: `python -m benchmark.scores.pages`.

It writes what lies between `<!-- campaign NAME -->` and `<!-- end of campaign -->` in
`docs/benchmarks.md`: a line for each task, a column for each algorithm, and the published scores of
`docs/published/NAME.csv` beside them; human-normalised statistics of the tasks that have runs; and
pictures, in `docs/images`, of these and of the learning curves. The README's answer on papers is
written, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill

from benchmark.pages import put_between
from benchmark.scores import pictures, plan
from benchmark.scores.records import HOME, Row, read_rows, recorded_rows
from lrl.report.comparison import Panel

PAGE = Path("docs/benchmarks.md")
README = Path("README.md")
PUBLISHED = Path("docs/published")
IMAGES = Path("docs/images")
_AUTHORS = "dqn_1m_frames"
_BEGIN, _END = re.compile(r"<!-- campaign (\w+) -->"), "<!-- end of campaign -->"


def section(campaign: plan.Campaign, rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Return the scores of a campaign as a Markdown table.

    Args:
        campaign: The campaign.
        rows: Its finished runs.
        published: Scores by `task` and `algorithm`.
    """
    done = sum(row["outcome"] == "done" for row in rows)
    failed = len(rows) - done
    planned = len(campaign.tasks) * len(campaign.seeds)
    algorithms = list(dict.fromkeys(task.algorithm for task in campaign.tasks))
    columns = list(dict.fromkeys(_column(row) for row in published))
    heads = ["task", *(algorithm or "score" for algorithm in algorithms), *columns]
    has_bar = any(task.bar > float("-inf") for task in campaign.tasks)
    heads += ["bar", "reached"] if has_bar else []
    state = f"{done} of {planned} runs are done" + (f", {failed} failed" if failed else "")
    reasons = "".join(
        f"\n- `{' '.join(part for part in (row['task'], row['algorithm']) if part)}` seed "
        f"{row['seed']} failed, and is in no figure: {row['reason']}"
        for row in rows
        if row["outcome"] != "done"
    )
    lines = [
        f"{state}. {_seeds(campaign.seeds)}{_on_gpus(rows)}",
        *([reasons] if reasons else []),
        "",
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
    ]
    for name in dict.fromkeys(task.name for task in campaign.tasks):
        of_task = [row for row in rows if row["task"] == name]
        cells = [f"`{name}`"]
        cells += [_scores([r for r in of_task if r["algorithm"] == a]) for a in algorithms]
        known = {_column(row): row["score"] for row in published if row["task"] == name}
        cells += [known.get(column, "") for column in columns]
        if has_bar:
            cells += _reached(next(t.bar for t in campaign.tasks if t.name == name), of_task)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seeds(seeds: Sequence[int]) -> str:
    """Return the training seeds as a sentence."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"Training seeds {seeds[0]} to {seeds[-1]}."
    return f"Training seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."


def _reached(bar: float, rows: Sequence[Row]) -> list[str]:
    """Return the cells of a bar and of how many runs reach it; empty ones where there is none."""
    if bar == float("-inf"):
        return ["", ""]
    reached = sum(row["outcome"] == "done" and float(row["score"]) >= bar for row in rows)
    return [f"{bar:g}", f"{reached} of {len(rows)}" if rows else ""]


def _on_gpus(rows: Sequence[Row]) -> str:
    """Return how many runs trained on which GPUs, and how fast the others were, as sentences."""
    gpus = Counter(row["gpu"] for row in rows if row.get("gpu"))
    rates = [
        float(row["learner_steps"]) / float(row["cpu_seconds"])
        for row in rows
        if row["outcome"] == "done" and not row.get("gpu") and row.get("cpu_seconds")
    ]
    said = "".join(f" {n} trained on {gpu}." for gpu, n in sorted(gpus.items()))
    if gpus and rates:
        slowest, fastest = f"{min(rates):.0f}", f"{max(rates):.0f}"
        said += (
            f" The CPU time of {len(rates)} other{'s' * (len(rates) > 1)} is known: "
            f"{slowest}{f' to {fastest}' * (fastest != slowest)} learner steps in a second of it "
            "(`learner_steps` by `cpu_seconds`)."
        )
    return said


def _column(published: Row) -> str:
    return f"{published['algorithm'].replace('_', ' ')}, published"


def _scores(rows: Sequence[Row]) -> str:
    """Return the mean score of some runs, the lowest and the highest of several, and how many."""
    scores = [float(row["score"]) for row in rows if row["outcome"] == "done"]
    if not scores:
        return ""
    ends = f"{min(scores):.1f} to {max(scores):.1f}; " if len(scores) > 1 else ""
    return f"{mean(scores):.1f} ({ends}{len(scores)})"


def evidence(
    campaign: plan.Campaign, curves: Sequence[Row], home: Path = HOME
) -> tuple[str, dict[str, bytes]]:
    """Return what follows the table of a campaign, and its pictures by name.

    Args:
        campaign: The campaign.
        curves: The evaluations of its runs.
        home: Folder of its CSV file.
    """
    text, found = "", {}
    tasks = len({task.name for task in campaign.tasks})
    published = PUBLISHED / f"{campaign.name}.csv"
    if panel := pictures.panel_of(home / f"{campaign.name}.csv", published):
        table, found = pictures.statistics_of(panel)
        done = len(panel.tasks)
        of_some = f"\nOver the {done} of {tasks} tasks that have runs:\n" if done < tasks else ""
        text = f"{of_some}\n{table}{_few_runs(panel)}"
    if curves:
        found |= pictures.curves_pictures(curves)
        text += _few_seeds(curves)
    named = {f"campaign_{campaign.name}_{what}.png": data for what, data in found.items()}
    text += "".join(
        f"\n![{_CAPTIONS[what]}](images/{name})\n" for what, name in zip(found, named, strict=True)
    )
    return text, named


def answered(readme: str) -> str:
    """Return the README with what the runs say of the published scores.

    Raises:
        ValueError: Some rows are of other recipes or tests than the present ones.
    """
    minatar = plan.load("minatar")
    said = " ".join(
        [
            f"{_of_atari()} ([game by game](docs/benchmarks.md#atari-100k)).",
            beside_authors(recorded_rows(minatar)[0], read_rows(PUBLISHED / "minatar.csv")),
        ]
    )
    said = fill(said, 110, break_long_words=False, break_on_hyphens=False)
    return put_between(readme, "<!-- papers -->", "<!-- end of papers -->", f"\n{said}")


def _of_atari() -> str:
    campaign = plan.load("atari100k")
    recorded_rows(campaign)
    panel = pictures.panel_of(HOME / "atari100k.csv", PUBLISHED / "atari100k.csv")
    assert panel is not None, "docs/campaigns/atari100k.csv has no rows"
    found = panel.aggregates()
    ours, published = found[f"der{pictures.OF_MEANS}"], found["der_van_hasselt_2019"]
    figures = [
        f"{called} {ours[name].value:.3f} (published {published[name].value:.3f})"
        for name, called in _STATISTICS.items()
    ]
    runs = [len(scores) for scores in panel.scores["der"]]
    iqm = found["der"]["IQM"]
    few = f", too narrow with {min(runs)} runs a game" * (min(runs) < _MANY_RUNS)
    interval = "" if iqm.low is None else f" (95 % interval {iqm.low:.3f} to {iqm.high:.3f}{few})"
    return (
        "Data-efficient Rainbow on Atari-100k, human-normalised, "
        f"{len(panel.tasks)} of {len(campaign.tasks)} games. From the mean of each game, which is "
        f"what was published: {', '.join(figures[:-1])} and {figures[-1]}. From our {sum(runs)} "
        f"single runs: interquartile mean {iqm.value:.3f}{interval}"
    )


def beside_authors(rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Return how DQN scores on MinAtar beside what its authors published.

    Args:
        rows: Runs of the campaign `minatar`.
        published: Scores by `task` and `algorithm`.
    """
    dqn = [row for row in rows if row["algorithm"] == "dqn" and row["outcome"] == "done"]
    theirs = {row["task"]: row["score"] for row in published if row["algorithm"] == _AUTHORS}
    scores = {task: [float(row["score"]) for row in dqn if row["task"] == task] for task in theirs}
    said = [
        f"{task} {mean(ours):.1f} ({_counted(ours)}; published {theirs[task]})"
        for task, ours in scores.items()
        if ours
    ]
    return (
        "DQN on MinAtar, with its authors' settings, eight environments in turn and a million "
        f"frames: {', '.join(said)} ([all algorithms](docs/benchmarks.md#minatar-a-million-frames);"
        " theirs are training episodes with epsilon 0.1)."
    )


def _counted(runs: Sequence[float]) -> str:
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def _few_seeds(curves: Sequence[Row]) -> str:
    """Return what to know of bands around curves of few seeds, as a paragraph."""
    seeds = {(row["task"], row["algorithm"], row["seed"]) for row in curves}
    counts = Counter((task, algorithm) for task, algorithm, _ in seeds)
    fewest = min((count for count in counts.values() if count > 1), default=_MANY_RUNS)
    if fewest >= _MANY_RUNS:
        return ""
    return (
        f"\nWith {fewest} seeds, bands hardly reach beyond the seeds' own curves (with two they "
        "are the lower and the higher one), and so are narrower than true 95 % intervals.\n"
    )


def _few_runs(panel: Panel) -> str:
    """Return what to know of intervals of few runs, as a paragraph."""
    sizes = [len(scores) for group in panel.varied for scores in panel.scores[group]]
    if not sizes or min(sizes) >= _MANY_RUNS:
        return ""
    return (
        f"\nWith {min(sizes)} runs a task these intervals are too narrow for 95 %: a bootstrap "
        "draws from these runs alone.\n"
    )


_STATISTICS = {
    "IQM": "interquartile mean", "median": "median", "mean": "mean",
    "optimality gap": "optimality gap",
}  # fmt: skip
_MANY_RUNS = 5
_CAPTIONS = {
    "scores": "Statistics over the tasks, with 95 % intervals where each has several runs",
    "profile": "Performance profiles: the share of runs above each score",
    "curves": "Returns in evaluation: interquartile mean of the seeds, 95 % intervals of several",
    "long_curves": "Returns in evaluation of the algorithms with more frames",
}


def written(page: str) -> tuple[str, dict[str, bytes]]:
    """Return a page with its campaigns as the CSV files have them, and its pictures by name."""
    images: dict[str, bytes] = {}
    for begin in list(_BEGIN.finditer(page)):
        campaign = plan.load(begin[1])
        published = read_rows(PUBLISHED / f"{campaign.name}.csv")
        rows, curves = recorded_rows(campaign)
        text, found = evidence(campaign, curves)
        block = section(campaign, rows, published) + text
        page, images = put_between(page, begin[0], _END, f"\n{block}"), images | found
    return page, images


def main() -> None:
    """Write the tables into the page, the pictures beside it, and the answer into the README."""
    page, images = written(PAGE.read_text())
    PAGE.write_text(page)
    README.write_text(answered(README.read_text()))
    for name, data in images.items():
        (IMAGES / name).write_bytes(data)


if __name__ == "__main__":
    main()
