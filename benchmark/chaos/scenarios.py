"""Attacks on everything that is promised: `python -m benchmark.chaos` (or `make chaos`).

Its figures are printed, kept in a file, and written as a table into the page on reliability. Run it
on an idle machine: about two hours in all, one of which is the soak. Scenarios can be
run one by one, which leaves the others' figures alone, and small: `--scenario kills --seconds 6`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmark.arguments import count, duration, output
from benchmark.chaos import limits as too_little
from benchmark.chaos.actors import kills, long_soak, stops
from benchmark.chaos.busy import busy
from benchmark.chaos.checkpoints import damage_files, kill_writers
from benchmark.chaos.cluster import cluster, head
from benchmark.chaos.configs import GOOD, survey
from benchmark.chaos.figures import FAULTS, Figure, Sizes, counted, faults, keep, table
from benchmark.chaos.helpers import helpers
from benchmark.chaos.messages import change_messages
from benchmark.chaos.signals import Target, end_runs
from benchmark.chaos.streams import hangups, outputs, starts
from benchmark.chaos.transport import kill_in_transport


def transport(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Kill actors that do nothing but send."""
    counts = kill_in_transport(sizes.count, folder)
    sound = not any(counts[name] for name in ("stalls", "dropped_chunks", *FAULTS))
    yield Figure(
        f"{counts['kills']} kills inside the transport, chunks of 200 B to 300 kB",
        "0 stalls; 0 corrupt, duplicated or missing rows; at most one chunk lost by a kill",
        f"{counts['stalls']} stalls; {faults(counts)} of {counts['rows']:,} rows; "
        f"at most {counts['lost_chunks']} chunk lost",
        sound and counts["rows"] == counts["received"] and counts["lost_chunks"] <= 1,
    )


def messages(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Change what an actor says of its chunks."""
    counts = change_messages(sizes.count)
    yield Figure(
        f"{counts['sent']:,} changed messages of an actor",
        "none is accepted, none crashes the learner",
        f"{counts['accepted']} accepted, {counts['crashed']} crashes",
        counts["accepted"] == counts["crashed"] == 0,
    )


def saves(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Kill what saves."""
    counts = kill_writers(sizes.count, folder)
    yield Figure(
        f"{counts['kills']} kills of a process that saves `last.ckpt` without pause",
        "each time `--ckpt_path last` finds a whole one, no older than the last complete save, and "
        "half-written files are removed",
        f"{counts['resumed']} times; {counts['in_the_middle']} kills left a half-written file, "
        f"{counts['left_over']} of them stayed",
        counts["resumed"] == counts["kills"]
        and counts["in_the_middle"] > 0
        and counts["left_over"] == 0,
    )


def damages(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Damage what was saved."""
    counts = damage_files(sizes.count, folder)
    yield Figure(
        f"{counts['damaged']} corrupted or truncated checkpoints",
        "each is refused with a sentence that names it",
        f"{counts['refused']} refused, {counts['silent']} loaded, {counts['crashed']} crashes",
        counts["refused"] == counts["damaged"],
    )


def signals(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """End `lrl fit` by signals in all of its phases."""
    attacks: tuple[tuple[signal.Signals, Target, str, float], ...] = (
        (signal.SIGINT, "group", "Ctrl-C (SIGINT to the group)", 5.0),
        (signal.SIGTERM, "learner", "SIGTERM to the learner", 5.0),
        (signal.SIGKILL, "learner", "SIGKILL to the learner", 1.0),
        (signal.SIGKILL, "group", "SIGKILL to the group", 1.0),
    )
    for number, target, attack, limit in attacks:
        ended = end_runs(number, target, sizes.count)
        for problem in ended.left + ended.wrong:
            print(problem, file=sys.stderr)
        yield Figure(
            f"{attack} at {ended.runs} random moments of start, warm-up, training, evaluation "
            "and saving",
            f"all gone within {limit:g} s; right exit codes; what was saved can be read, and after "
            "a SIGKILL resumed, with its replay where that was saved in whole",
            f"gone within {ended.seconds:.2f} s, {counted(ended.left, 'thing')} left; "
            f"{counted(ended.wrong, 'wrong end')}; {ended.checkpoints} checkpoints read, "
            f"{ended.resumed} resumed with their replay, {ended.refilled} without",
            ended.seconds <= limit and not ended.left and not ended.wrong,
        )


def limits(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Train with too little shared memory, memory and disk."""
    if not too_little.can_mount():
        yield Figure(
            "`/dev/shm` and disks of 8 MiB", "as promised", "nothing can be mounted here", met=False
        )
        return
    small = too_little.with_small_shared_memory(folder)
    yield Figure(
        "`/dev/shm` of 8 MiB", "trains: nothing of lrl lies there",
        f"exit code {small['code']}", _holds(small["code"] == 0, small["said"]),
    )  # fmt: skip
    ring = too_little.with_too_little_memory(folder)
    yield Figure(
        "a ring of chunks larger than the memory",
        "exit code 2 with the bytes needed and free",
        f"exit code {ring['code']}, names {' and '.join(ring['names'])}",
        _holds(ring["code"] == 2 and len(ring["names"]) == 2, ring["said"]),
    )
    saved = too_little.save_on_full_disk(folder)
    said = saved["said"].replace(f"{folder}/", "")
    yield Figure(
        "a save on a disk of 8 MiB that is full",
        "the old checkpoint stays byte for byte, the message names the bytes",
        f"{'identical' if saved['identical'] else 'changed'}: {said}",
        saved["identical"] and saved["names_bytes"] and saved["saved_later"],
    )
    run = too_little.with_full_disk(folder)
    survived = run["failed_saves"] > 1 and run["came_to_its_end"] and run["learner_step"] > 0
    yield Figure(
        "a run of 200 learner steps whose disk of 8 MiB fills up",
        "it says so at every save and trains to its end; a checkpoint can be read; exit code 1",
        f"exit code {run['code']}, {run['failed_saves']} saves failed, training "
        f"{'came to its end' if run['came_to_its_end'] else 'ended early'}, checkpoint of step "
        f"{run['learner_step']}",
        _holds(run["code"] == 1 and survived, run["said"]),
    )


def configs(sizes: Sizes, folder: Path) -> Iterator[Figure]:
    """Change one thing in the recipes of the current folder's `configs`."""
    verdicts: Counter[str] = Counter()
    for mutant, outcome in survey(sorted(Path("configs").resolve().glob("*.yaml")), sizes.count):
        verdicts[outcome.verdict] += 1
        if outcome.verdict not in GOOD:
            said = f"{mutant.recipe.name}: {mutant.change}: {outcome.message}"
            print(f"{outcome.verdict}: {said}", file=sys.stderr)
    good = [f"{verdicts[verdict]} {verdict}" for verdict in GOOD]
    yield Figure(
        f"{sizes.count} configurations with one thing changed",
        "exit code 2 and a sentence that names the setting, or, where it may be meant, nothing "
        "wrong up to the first batch; no traceback, no hang, no process left",
        f"{', '.join(good)}, {sizes.count - sum(verdicts[v] for v in GOOD)} otherwise",
        set(verdicts) <= set(GOOD),
    )


SCENARIOS: dict[str, tuple[Callable[[Sizes, Path], Iterator[Figure]], Sizes]] = {
    "kills": (kills, Sizes()),
    "stops": (stops, Sizes()),
    "transport": (transport, Sizes(200)),
    "messages": (messages, Sizes(100_000)),
    "saves": (saves, Sizes(100)),
    "damages": (damages, Sizes(500)),
    "signals": (signals, Sizes(20)),
    "hangups": (hangups, Sizes(20)),
    "starts": (starts, Sizes(50)),
    "outputs": (outputs, Sizes(3)),
    "limits": (limits, Sizes()),
    "configs": (configs, Sizes(200)),
    "helpers": (helpers, Sizes(8)),
    "busy": (busy, Sizes(20, timeout=5.0)),
    "cluster": (cluster, Sizes(3, every=5.0)),
    "head": (head, Sizes()),
    "soak": (long_soak, Sizes(seconds=3600.0, every=10.0)),
}
"""Each with the sizes of the published figures."""


def _holds(holds: bool, said: str) -> bool:
    """Show what was said if something does not hold."""
    if not holds:
        print(said, file=sys.stderr)
    return holds


def _run(
    name: str, scenario: Callable[[Sizes, Path], Iterator[Figure]], sizes: Sizes
) -> list[Figure]:
    """Run a scenario; one that fails leaves a figure that says so, and the next ones run."""
    figures: list[Figure] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures.extend(scenario(sizes, Path(folder)))
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        figures.append(Figure(f"scenario {name}", "comes to its end", reason, met=False))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Run scenarios, print their figures and keep them; exit with 1 if one is not met."""
    parser = argparse.ArgumentParser(prog="benchmark.chaos.scenarios", description=__doc__)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    for name, value in asdict(Sizes()).items():
        kind = count if isinstance(value, int) else duration
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS)
    parser.add_argument("--json", type=output, help="keep the figures in this file")
    parser.add_argument("--page", type=output, help="and in this page")
    given = vars(parser.parse_args(arguments))
    names, path, page = (given.pop(name) for name in ("scenario", "json", "page"))
    if page is not None and path is None:
        parser.error("--page shows what --json keeps: give both")
    met = True
    for name in names:
        scenario, sizes = SCENARIOS[name]
        figures = _run(name, scenario, replace(sizes, **given))
        print(table(figures), flush=True)
        met &= all(figure.met for figure in figures)
        if path is not None:
            keep(name, figures, list(SCENARIOS), path, page)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
