"""A long run under attack, watched from outside: does anything grow, and does it keep its pace?

Memory, descriptors and threads are read in /proc (Linux).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmark.chaos.run import COMMAND
from benchmark.leftovers import descendants

_CALIBRATION_SECONDS = 0.2
_MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """What a run takes at one moment.

    Attributes:
        time: `time.monotonic()`.
        learner_bytes: Memory of the learner, with its share of what it shares. Files are left out:
            its share of those depends on what else runs on the machine.
        actors_bytes: That of all actors together.
        actors: Number of actors.
        descriptors: Open files of the learner.
        threads: Threads of the learner.
        calibration: How often a fixed piece of work was done in a second meanwhile.
    """

    time: float
    learner_bytes: int
    actors_bytes: int
    actors: int
    descriptors: int
    threads: int
    calibration: float


def soak(
    folder: Path, seconds: float, every: float = 10.0, actors: int = 4, timeout: float = 2.0
) -> dict[str, Any]:
    """Train while actors are killed and stopped in turn, and measure what the run takes.

    Samples are taken half-way between two attacks. The first quarter of the time, at most five
    minutes, is warm-up: it counts for nothing but the throughput of the beginning.

    Args:
        folder: Takes the run's files.
        seconds: Length.
        every: Seconds between two attacks.
        actors: Number of actors.
        timeout: Seconds after which a stopped actor counts as hung.

    Returns:
        The counts of `train_under_attack`; `learner_slope` and `actors_slope` in MiB a minute;
        `descriptors` and `threads`, the medians of the first and of the last samples;
        `throughput`, that of the last five minutes (or third) as a share of the first, and
        `calibrated`, the same with each divided by the calibration of its time.
    """
    run = {
        "folder": str(folder), "seconds": seconds, "every": every, "actors": actors,
        "signals": ["SIGKILL", "SIGSTOP"], "timeout_seconds": timeout,
    }  # fmt: skip
    progress = folder / "progress.txt"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, json.dumps(run)], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            samples = _watch(process, progress, every, time.monotonic() + 2 * seconds + 600)
            output, _ = process.communicate()
        finally:
            process.kill()  # of a run that came to its end nothing is left to kill
    if process.returncode:
        said = (folder / "log").read_text()[-4000:]
        raise RuntimeError(f"the run ended with {process.returncode}\n{said}")
    counts = json.loads(output.splitlines()[-1])
    lines = [line.split() for line in progress.read_text().splitlines()]
    steps = np.array(lines, np.float64)[:, :2]
    return {**counts, **evaluate_samples(samples, steps)}


def evaluate_samples(samples: list[Sample], steps: np.ndarray) -> dict[str, Any]:
    """Return slopes, constancy and throughput.

    Args:
        samples: In the order of their times.
        steps: Times and environment steps, `[lines, 2]`.

    Example:
        >>> samples = [Sample(t, t * _MIB, 0, 4, 30, 5, 2.0) for t in range(120)]
        >>> steps = np.stack([np.arange(120), 50 * np.arange(120)], axis=1)
        >>> result = evaluate_samples(samples, steps)
        >>> round(result["learner_slope"]), result["descriptors"], round(result["calibrated"], 2)
        (60, [30.0, 30.0], 1.0)
    """
    begin, end = steps[0, 0], steps[-1, 0]
    warm = [s for s in samples if s.time >= begin + min(300.0, (end - begin) / 4)]
    window = min(300.0, (end - begin) / 3)
    first, last = ((begin, begin + window), (end - window, end))
    full = max(sample.actors for sample in warm)
    whole = [sample for sample in warm if sample.actors == full]
    throughput = _rate(steps, *last) / _rate(steps, *first)
    drift = _calibration(samples, *last) / _calibration(samples, *first)
    return {
        "learner_slope": _slope(warm, "learner_bytes"),
        "actors_slope": _slope(whole, "actors_bytes"),
        "descriptors": _ends(warm, "descriptors"),
        "threads": _ends(warm, "threads"),
        "throughput": throughput,
        "calibrated": throughput / drift,
    }


def _watch(
    process: subprocess.Popen[str], progress: Path, every: float, deadline: float
) -> list[Sample]:
    """Take samples until the run ends, which at the deadline is made to."""
    while process.poll() is None and not progress.exists():
        time.sleep(0.05)
    samples: list[Sample] = []
    due = time.monotonic() + every / 2
    while process.poll() is None:
        time.sleep(min(0.2, max(0.0, due - time.monotonic())))
        if time.monotonic() > deadline:
            process.kill()
        if time.monotonic() >= due:
            due += every
            with contextlib.suppress(OSError, ValueError):  # it may just have ended
                samples.append(_sample(process.pid))
    return samples


def _sample(pid: int) -> Sample:
    # The fork server is a child of the learner; actors are its children.
    family = descendants(pid)
    actors = [child for child in family if _parent(child) != pid]
    sizes = [_memory_bytes(actor) for actor in actors]
    status = Path(f"/proc/{pid}/status").read_text()
    return Sample(
        time.monotonic(),
        _memory_bytes(pid),
        sum(sizes),
        len(actors),
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        int(status.partition("Threads:")[2].split()[0]),
        _calibrate(),
    )


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _memory_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = [rollup.partition(f"\n{name}:")[2].split()[0] for name in ("Pss_Anon", "Pss_Shmem")]
    return 1024 * sum(int(size) for size in sizes)


def _calibrate() -> float:
    began, done = time.perf_counter(), 0
    matrix = np.arange(4096.0).reshape(64, 64)
    while time.perf_counter() < began + _CALIBRATION_SECONDS:
        sum(range(1000))
        np.sort(matrix * 1.5, axis=0)
        done += 1
    return done / (time.perf_counter() - began)


def _rate(steps: np.ndarray, start: float, stop: float) -> float:
    inside = steps[(steps[:, 0] >= start) & (steps[:, 0] <= stop)]
    return float((inside[-1, 1] - inside[0, 1]) / (inside[-1, 0] - inside[0, 0]))


def _calibration(samples: list[Sample], start: float, stop: float) -> float:
    return mean(sample.calibration for sample in samples if start <= sample.time <= stop)


def _slope(samples: list[Sample], name: str) -> float:
    minutes = [sample.time / 60 for sample in samples]
    return float(np.polyfit(minutes, [getattr(s, name) / _MIB for s in samples], 1)[0])


def _ends(samples: list[Sample], name: str) -> list[float]:
    values = [getattr(sample, name) for sample in samples]
    few = max(1, len(values) // 5)
    return [median(values[:few]), median(values[-few:])]
