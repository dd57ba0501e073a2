"""Benchmark of the replay buffer: rows appended and batches sampled a second, bytes a step.

Run `python -m lrl.benchmark.replay`; `--json PATH` also writes the figures. Timings are medians
over repetitions, on Atari frames (84x84 uint8, stack of 4) of 8 interleaved streams.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from lrl.replay import ReplayBuffer
from lrl.types import EnvSpec, RowKind, Rows

ATARI = EnvSpec((4, 84, 84), "uint8", num_actions=6, frame_stack=4, frame_skip=4)
NUM_STREAMS = 8
CHUNK_ROWS = 64
EPISODE_ROWS = 500
"""Rows of an episode with its prefix and boundary rows; roughly a short Atari episode."""


def make_chunk(rng: np.random.Generator, first_row: int) -> Rows:
    """Make a chunk of rows, one row per stream and vector step, as actors send them."""
    steps = CHUNK_ROWS // NUM_STREAMS
    # Streams are at different points of their episodes.
    phase = np.arange(NUM_STREAMS) * (EPISODE_ROWS // NUM_STREAMS)
    position = (first_row + np.arange(steps)[:, None] + phase).reshape(-1) % EPISODE_ROWS
    kind = np.full(CHUNK_ROWS, RowKind.STEP, np.uint8)
    kind[position < ATARI.frame_stack - 1] = RowKind.PREFIX
    kind[position == EPISODE_ROWS - 1] = RowKind.BOUNDARY
    return Rows(
        stream=np.tile(np.arange(NUM_STREAMS, dtype=np.int32), steps),
        kind=kind,
        frame=rng.integers(0, 256, (CHUNK_ROWS, *ATARI.frame_shape), dtype=np.uint8),
        action=rng.integers(0, ATARI.num_actions, CHUNK_ROWS, dtype=np.int32),
        reward=rng.standard_normal(CHUNK_ROWS, dtype=np.float32),
        terminated=position == EPISODE_ROWS - 2,
        truncated=np.zeros(CHUNK_ROWS, bool),
        policy_version=np.zeros(CHUNK_ROWS, np.int64),
    )


def calls_per_second(call: Callable[[int], object], calls: int, repetitions: int = 7) -> float:
    """Return the median rate of a call that takes its running number."""
    rates = []
    for repetition in range(repetitions):
        start = time.perf_counter()
        for number in range(calls):
            call(repetition * calls + number)
        rates.append(calls / (time.perf_counter() - start))
    return median(rates)


def measure(rows: int, calls: int, device: str = "cpu") -> dict[str, float]:
    """Fill a buffer of `rows` rows, overwrite some of it, and sample; return figures by name."""
    buffer = ReplayBuffer(ATARI, rows, NUM_STREAMS, device=device)
    rng = np.random.default_rng(0)
    # Two episodes: repeating these chunks continues each stream correctly.
    firsts = range(0, 2 * EPISODE_ROWS, CHUNK_ROWS // NUM_STREAMS)
    chunks = [make_chunk(rng, first) for first in firsts]

    def append(number: int) -> None:
        buffer.append(chunks[number % len(chunks)])

    figures: dict[str, float] = {}
    fill_calls = rows // CHUNK_ROWS + 1
    figures["append_fill_rows_per_second"] = CHUNK_ROWS * calls_per_second(append, fill_calls, 1)
    figures["append_full_rows_per_second"] = CHUNK_ROWS * calls_per_second(append, calls)
    for n_step in (1, 3):
        buffer.n_step = n_step
        for batch_size in (32, 256):
            # Fewer calls with large batches, so that every measurement takes about as long.
            name = f"sample_n{n_step}_batch{batch_size}_per_second"
            figures[name] = calls_per_second(
                lambda _, size=batch_size: buffer.sample(size), max(1, calls * 32 // batch_size)
            )
    figures["bytes_per_row"] = buffer.nbytes / buffer.capacity
    figures["bytes_per_step"] = buffer.nbytes / len(buffer)
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Print the table and, where asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="lrl.benchmark.replay", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="capacity of the buffer in rows")
    parser.add_argument("--calls", type=int, default=300, help="calls in one repetition")
    parser.add_argument("--device", default="cpu", help="where the rows are stored")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures here")
    options = parser.parse_args(arguments)
    figures = measure(options.rows, options.calls, options.device)
    for name, value in figures.items():
        print(f"{name:32s} {value:12,.0f}")
    if options.json is not None:
        settings = {
            "rows": options.rows,
            "calls": options.calls,
            "device": options.device,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "machine": platform.machine(),
        }
        options.json.write_text(json.dumps({"settings": settings, "figures": figures}, indent=2))


if __name__ == "__main__":
    main()
