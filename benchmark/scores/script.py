"""Scores of `examples/cartpole.py`, which is the README's script, by where it is run and by seed.

Run `python -m benchmark.scores.script` from the root of the repository: from a file, from standard
input and as a notebook's cell does, whose main module has no file. Seconds are those of the whole
process, imports and the test included.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmark.scores.records import append_row, read_rows
from lrl.preflight.cores import available_cores

EXAMPLE = Path("examples/cartpole.py")
BAR, SECONDS = 475.0, 60.0
"""Least score, and most seconds."""
WAYS = ("file", "standard input", "notebook")
_CELL = """
import sys, types
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(sys.stdin.read(), vars(main))
"""


@dataclass(frozen=True)
class Row:
    """One run."""

    way: str
    seed: int
    score: float
    seconds: float
    cores: int = field(default_factory=available_cores)


def run(way: str, seed: int, example: Path = EXAMPLE) -> Row:
    """Run the example in a process and a folder of its own.

    Args:
        way: One of `WAYS`.
        seed: Takes the place of the example's seed 0.
        example: The script.

    Raises:
        RuntimeError: It failed; the message holds its output.
    """
    script = example.read_text()
    for zero in ("seed_everything(0)", "seed=0"):
        assert zero in script, zero
        script = script.replace(zero, zero.replace("0", str(seed)))
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script)
        command = {"file": [str(path)], "standard input": ["-"], "notebook": ["-c", _CELL]}[way]
        started = time.perf_counter()
        result = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
            input="" if way == "file" else script,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - started
    score = re.search(r"mean return of 100 episodes: (-?[\d.]+)", result.stdout)
    if score is None:
        raise RuntimeError(f"the script failed:\n{result.stdout}{result.stderr}")
    return Row(way, seed, float(score[1]), round(seconds, 1))


def table(rows: Sequence[Row]) -> str:
    """Return the runs as a Markdown table, one line for each way."""
    lines = [
        "| run from | scores by seed | reached | seconds (median) |",
        "| --- | --- | --- | --- |",
    ]
    for way in WAYS:
        runs = sorted((row for row in rows if row.way == way), key=lambda row: row.seed)
        if not runs:
            continue
        reached = sum(row.score >= BAR and row.seconds <= SECONDS for row in runs)
        lines.append(
            f"| {way} | {', '.join(f'{row.score:.1f}' for row in runs)} | {reached} of {len(runs)} "
            f"| {median(row.seconds for row in runs):.0f} |"
        )
    return "\n".join(lines)


def read(path: Path) -> list[Row]:
    """Return the runs of a CSV file, the last of each way and seed; none if there is no file."""
    rows = [
        Row(r["way"], int(r["seed"]), float(r["score"]), float(r["seconds"]), int(r["cores"]))
        for r in read_rows(path)
    ]
    return list({(row.way, row.seed): row for row in rows}.values())


def main() -> None:
    """Run the script from everywhere, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="Where to run it.")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), help="Training seeds.")
    parser.add_argument("--csv", type=Path, help="File of rows, kept beside those of other ways.")
    arguments = parser.parse_args()
    rows: list[Row] = read(arguments.csv) if arguments.csv else []
    for way in arguments.ways:
        for seed in arguments.seeds:
            row = run(way, seed)
            print(row, flush=True)
            rows = [r for r in rows if (r.way, r.seed) != (way, seed)] + [row]
            if arguments.csv:
                append_row(arguments.csv, asdict(row))
    print(table(rows))


if __name__ == "__main__":
    main()
