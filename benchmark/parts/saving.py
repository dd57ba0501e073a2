"""Benchmark of saving the replay: how long learning pauses, how long writing and loading take.

Run `python -m benchmark.parts.saving --folder FOLDER`, which needs the replay's size in memory
twice and on the disk once. Atari frames (84x84 uint8, stack of 4) of 8 streams; after a first save
of everything a second one follows 40 000 rows later, with batches drawn meanwhile. The extra memory
is the process's peak above what it held before (Linux).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmark.arguments import count
from benchmark.parts.replay import (
    CHUNK_ROWS,
    NUM_STREAMS,
    make_chunks,
    with_frame_side,
)
from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.saved_replay import load_replay
from lrl.replay import PrioritizedSampler, RankSampler, Replay, UniformSampler
from lrl.types import EnvSpec, Rows

SAMPLERS = {"uniform": UniformSampler, "prioritized": PrioritizedSampler, "rank": RankSampler}


def measure(
    folder: Path, rows: int, new_rows: int, sampler: str, spec: EnvSpec
) -> dict[str, float]:
    """Fill a buffer, save it twice and load it; return figures by name."""
    buffer = Replay(spec, rows, NUM_STREAMS, sampler=SAMPLERS[sampler]())
    chunks = make_chunks(spec)
    _append(buffer, chunks, rows + CHUNK_ROWS)
    saver = ReplaySaver(folder, buffer, {})
    figures = {"batches_per_second": _batches_per_second(buffer, saver, 0.5)}
    for step, name in ((1, "first"), (2, "next")):
        before = _reset_peak()
        started = time.perf_counter()
        saver.take(step, f"id{step}", {"replay": buffer.state(with_rows=True)})
        saver.start()
        pause = time.perf_counter() - started
        while_saving = _batches_per_second(buffer, saver, 0.0)
        saver.finish()
        figures[f"{name}_save_pause_ms"] = 1e3 * pause
        figures[f"{name}_save_seconds"] = time.perf_counter() - started
        figures[f"{name}_save_extra_mib"] = (_peak() - before) / 2**20
        figures[f"{name}_save_batches_per_second"] = while_saving
        if step == 1:
            figures["megabytes_on_disk"] = sum(p.stat().st_size for p in folder.iterdir()) / 1e6
            _append(buffer, chunks, new_rows)
    loaded = Replay(spec, rows, NUM_STREAMS, sampler=SAMPLERS[sampler]())
    started = time.perf_counter()
    loaded.restore(load_replay(folder, loaded, {}, 2, "id2")["replay"])
    figures["load_seconds"] = time.perf_counter() - started
    return figures


def _append(buffer: Replay, chunks: list[Rows], rows: int) -> None:
    for number in range(rows // CHUNK_ROWS):
        buffer.add(chunks[number % len(chunks)])


def _batches_per_second(buffer: Replay, saver: ReplaySaver, least_seconds: float) -> float:
    """Draw batches of 32 for that long, or else while a save is written."""
    started, batches = time.perf_counter(), 0
    while saver.is_writing or time.perf_counter() - started < least_seconds:
        buffer.sample(32)
        batches += 1
    return batches / (time.perf_counter() - started)


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say how much memory a process took")


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.saving", description=__doc__)
    parser.add_argument("--rows", type=count, default=1_000_000, help="capacity in rows")
    parser.add_argument("--new_rows", type=count, default=40_000, help="rows between the two saves")
    parser.add_argument("--frame_side", type=count, default=84, help="height and width of a frame")
    parser.add_argument("--sampler", choices=sorted(SAMPLERS), default="prioritized")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    options = parser.parse_args(arguments)
    spec = with_frame_side(options.frame_side)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder), options.rows, options.new_rows, options.sampler, spec)
    for name, value in figures.items():
        print(f"{name:32s} {value:12,.2f}")


if __name__ == "__main__":
    main()
