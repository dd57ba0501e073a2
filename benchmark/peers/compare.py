"""lrl and other libraries on the same work, by turns: `python -m benchmark.peers.compare TASK`.

Every round starts each side anew, as a process of its own, and counts from the first updates on.
The others need `pip install -e '.[bench]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.arguments import count, duration, output
from benchmark.peers.installed import check_installed
from benchmark.peers.workloads import TASKS
from lrl.bench.measure import compared, table, write

_ROOT = Path(__file__).parents[2]
_SYNCHRONOUS = ["--config", str(_ROOT / "configs" / "system" / "synchronous.yaml")]
SIDES: dict[str, list[str]] = {
    "lrl": [],
    "lrl, bf16": ["--trainer.precision", "bf16-mixed"],
    "lrl, synchronous": _SYNCHRONOUS,
    "lrl, synchronous, bf16": [*_SYNCHRONOUS, "--trainer.precision", "bf16-mixed"],
    "cleanrl": [],
    "cleanrl, 1 thread": ["--threads", "1"],
    "sb3": [],
    "sb3, 1 thread": ["--threads", "1"],
    "tianshou": [],
    "tianshou, 1 thread": ["--threads", "1"],
}  # fmt: skip
"""Each with what is added to its command; torch's own number of threads is that of the cores."""


def command(side: str, task: str, path: Path, seconds: float) -> list[str]:
    """Return the command that measures a side and writes its pace to a file."""
    if not side.startswith("lrl"):
        return [
            sys.executable, "-m", "benchmark.peers.side", side.partition(",")[0], task, str(path),
            "--seconds", str(seconds), *SIDES[side],
        ]  # fmt: skip
    window = {
        "class_path": "benchmark.peers.callback.WindowCallback",
        "init_args": {
            "path": str(path),
            "first_env_step": TASKS[task].first_env_step,
            "seconds": seconds,
        },
    }
    return [
        sys.executable, "-m", "lrl", "fit",
        "--config", str(Path(__file__).with_name("configs") / f"{task}.yaml"),
        "--runs", str(path.parent / "runs"), "--trainer.callbacks", json.dumps([window]),
        *SIDES[side],
    ]  # fmt: skip


def measure(side: str, task: str, seconds: float) -> dict[str, Any]:
    """Run a side once and return its pace.

    Raises:
        RuntimeError: It ended without one; what it said is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pace.json")
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        ended = subprocess.run(
            command(side, task, path, seconds),
            env=environment, cwd=_ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if not path.exists():
            raise RuntimeError(f"{side} gave no figure:\n{ended.stdout[-4000:]}")
        return json.loads(path.read_text())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and, where asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.peers.compare", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=count, default=5, help="runs of each side")
    parser.add_argument("--seconds", type=duration, default=30.0, help="length of a window")
    parser.add_argument("--json", type=output, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    check_installed(parser, options.sides)
    paces: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    for number in range(options.rounds):
        for side in options.sides:
            pace = measure(side, options.task, options.seconds)
            paces[side].append(pace)
            rate = pace["env_steps_per_second"]
            print(f"round {number + 1}: {side}: {rate:,.0f} env steps/s", flush=True)
    figures = []
    for name, unit, scale in (
        ("env_steps_per_second", "env steps/s", 1.0),
        ("updates_per_second", "updates/s", 1.0),
        ("peak_bytes", "MB at most", 1e-6),
    ):
        values = {side: [scale * pace[name] for pace in runs] for side, runs in paces.items()}
        figures += compared(options.task, unit, values, options.sides[0])
    print(table(figures))
    if options.json is not None:
        write(options.json, figures)


if __name__ == "__main__":
    main()
