"""What `benchmark/gpu/run.sh` found, for the docs: `python -m benchmark.gpu.results OUT`."""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmark.pages import put_between

_GOAL = 18.0
_BEGIN, _END = "<!-- gpu -->", "<!-- end of gpu -->"
_WAITS = "The one wait is for the NaN check of two learner steps earlier, which has long arrived."
_UNITS = {"ms": "ms an update", "launches": "launches", "waits": "waits"}


def collect(folder: Path) -> dict[str, Any]:
    """Return the figures of the files that a run of the script left; None where there are none."""
    gpu, *_, torch = (folder / "machine.txt").read_text().splitlines()
    found: dict[str, Any] = {"gpu": gpu.split(",")[0], "torch": torch}
    tests = folder / "tests.txt"
    said = tests.read_text() if tests.exists() else ""
    of = folder / "tests_of.txt"
    found["tests_of"] = of.read_text().split() if of.exists() else []
    found["tests"] = next(
        iter(re.findall(r"\d+ (?:passed|failed|skipped|error).* in .*s", said)), None
    )
    for name in ("ladder", "speed"):
        path = folder / f"{name}.json"
        found[name] = json.loads(path.read_text()) if path.exists() else None
    metrics, summary = folder / "metrics.csv", folder / "summary.json"
    found["pong"] = _pong(metrics, summary) if metrics.exists() and summary.exists() else None
    return found


def _pong(metrics: Path, summary: Path) -> dict[str, Any] | None:
    with metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    seconds, before, at = 0.0, 0.0, {0: 0.0}
    for row in rows:
        if speed := row.get("speed/learner_steps_per_second"):
            step = float(row["step"])
            seconds += (step - before) / float(speed)
            before, at[int(step)] = step, seconds
    whole = json.loads(summary.read_text())
    logged = [row for row in rows if row.get("speed/learner_steps_per_second")]
    if not logged:
        return None
    logged = logged[len(logged) // 2 :]
    return {
        "evaluations": [
            {
                "learner_step": int(row["step"]),
                "seconds": round(float(np.interp(int(row["step"]), [*at], [*at.values()])), 1),
                "return": float(row["eval/return_mean"]),
            }
            for row in rows
            if row.get("eval/return_mean")
        ],
        "learner_steps_per_second": median(
            float(r["speed/learner_steps_per_second"]) for r in logged
        ),
        "frames_per_second": 4 * median(float(r["speed/env_steps_per_second"]) for r in logged),
        "learner_steps": whole["learner_steps"],
        "training_seconds": round(seconds, 1),
        "seconds": round(whole["seconds"], 1),
        "best": whole["best_return_mean"],
        "outcome": whole["outcome"],
    }


def section(found: dict[str, Any]) -> str:
    """Return the figures as the section of docs/benchmarks.md."""
    machine = next((found[name]["machine"] for name in ("ladder", "speed") if found[name]), None)
    cores = f", {machine['cores']} cores of an {machine['processor']}" if machine else ""
    lines = [
        f"Machine: one {found['gpu']}{cores}, torch {found['torch']}. `benchmark/gpu/run.sh OUT`,",
        "then `python -m benchmark.gpu.results OUT`:",
        "",
    ]
    if found["tests"]:
        of = ", ".join(f"`{name}`" for name in found["tests_of"]) or "all that are marked `gpu`"
        lines += [f"Tests ({of}): {found['tests']}.", ""]
    if found["ladder"]:
        lines += [*_ladder(found["ladder"]["measurements"]), "", _WAITS, ""]
    if found["pong"]:
        lines += [*_of_pong(found["pong"]), ""]
    return "\n".join(lines)


def _ladder(measurements: Sequence[dict[str, Any]]) -> list[str]:
    table: dict[tuple[str, str], dict[str, str]] = {}
    for one in measurements:
        row = table.setdefault((one["section"], one["name"]), {})
        value = median(one["values"])
        row[one["unit"]] = f"{value:.2f}" if one["unit"] == "ms" else f"{value:.0f}"
        if one["unit"] == "ms":
            row["ratio"] = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
    head = ["network", "updates", *_UNITS.values(), "time / first row"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for (network, side), row in table.items():
        cells = [network, side, *(row.get(unit, "") for unit in _UNITS), row.get("ratio", "")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _of_pong(pong: dict[str, Any]) -> list[str]:
    evaluations = pong["evaluations"]
    first = next((each for each in evaluations if each["return"] >= _GOAL), None)
    if not evaluations:
        return ["No evaluation of Pong ended."]
    curve = ", ".join(f"{e['return']:.1f} ({e['seconds']:.0f} s)" for e in evaluations)
    reached = (
        f"the first of {_GOAL:.0f} or more was {first['return']:.1f}, after "
        f"{first['seconds']:.0f} s of learning"
        if first
        else f"none reached {_GOAL:.0f}"
    )
    steps, frames = pong["learner_steps_per_second"], pong["frames_per_second"]
    return [
        "Pong from pixels, one seed: `pong_laptop` without its early stopping, with",
        "`system/gpu_16_cores`, `system/captured`, four updates a step and `replay.index: device`:",
        f"{pong['learner_steps']:,} learner steps in",
        f"{pong['training_seconds']:.0f} s of training (the run: {pong['seconds']:.0f} s), in the",
        f"median {steps:,.0f} learner steps and {frames:,.0f} frames a second, prioritised.",
        f"Mean returns of ten games, and how long the weights had learnt: {curve}; {reached}.",
    ]


def written(text: str, found: dict[str, Any]) -> str:
    """Return docs/benchmarks.md with these figures."""
    return put_between(text, _BEGIN, _END, f"\n{section(found)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the figures, and the section with them."""
    parser = argparse.ArgumentParser(prog="benchmark.gpu.results", description=__doc__)
    parser.add_argument("folder", type=Path, help="what run.sh was given")
    parser.add_argument("--json", type=Path, default=Path("docs/gpu.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"))
    options = parser.parse_args(arguments)
    found = collect(options.folder)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    options.page.write_text(written(options.page.read_text(), found))


if __name__ == "__main__":
    main()
