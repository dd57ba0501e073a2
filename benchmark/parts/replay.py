"""Benchmark of the replay buffer: rows appended and batches sampled a second, bytes a step.

Run `python -m benchmark.parts.replay`; `--json PATH` also writes the figures. Timings are medians
over repetitions, on Atari frames (84x84 uint8, stack of 4) of 8 interleaved streams. Uniform and
prioritised sampling are timed in turns; the latter includes updating the batch's priorities.
`--rows 1000000 --frame_side 8` compares them at full size where memory is scarce. With several
numbers of rows, buffers of these sizes take turns instead, one sampler after the other, in sampling
alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmark.arguments import count, output
from lrl.bench.measure import Measurement, compared, table, write
from lrl.replay import PrioritizedSampler, Replay, Sampler, UniformSampler
from lrl.types import Column, EnvSpec, RowKind, Rows, whole_of

ATARI = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4, frame_skip=4)
NUM_STREAMS = 8
CHUNK_ROWS = 64
REPETITIONS = 7
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": UniformSampler,
    "prioritised": PrioritizedSampler,
}
EPISODE_ROWS = 500
"""Rows of an episode with its prefix and boundary rows; roughly a short Atari episode."""


def make_chunk(rng: np.random.Generator, first_row: int, spec: EnvSpec = ATARI) -> Rows:
    """Make a chunk of rows, one row per stream and vector step, as actors send them."""
    steps = CHUNK_ROWS // NUM_STREAMS
    # Streams are at different points of their episodes.
    phase = np.arange(NUM_STREAMS) * (EPISODE_ROWS // NUM_STREAMS)
    position = (first_row + np.arange(steps)[:, None] + phase).reshape(-1) % EPISODE_ROWS
    kind = np.full(CHUNK_ROWS, RowKind.STEP, np.uint8)
    kind[position < spec.frame_stack - 1] = RowKind.PREFIX
    kind[position == EPISODE_ROWS - 1] = RowKind.BOUNDARY
    frames = {
        name: rng.integers(0, 256, (CHUNK_ROWS, *column.shape), dtype=np.uint8)
        for name, column in spec.observation.items()
    }
    return Rows(
        stream=np.tile(np.arange(NUM_STREAMS, dtype=np.int32), steps),
        kind=kind,
        frame=whole_of(frames),
        action=rng.integers(0, spec.num_actions, CHUNK_ROWS, dtype=np.int32),
        reward=rng.standard_normal(CHUNK_ROWS, dtype=np.float32),
        terminated=position == EPISODE_ROWS - 2,
        truncated=np.zeros(CHUNK_ROWS, bool),
        policy_version=np.zeros(CHUNK_ROWS, np.int64),
    )


def with_frame_side(frame_side: int) -> EnvSpec:
    """Return Atari's specification with frames of another size."""
    return replace(ATARI, observation={"": Column("uint8", (frame_side, frame_side), stack=4)})


def seconds_per_call(call: Callable[[int], object], calls: int, first: int = 0) -> float:
    """Return the mean time of a call that takes its running number."""
    start = time.perf_counter()
    for number in range(first, first + calls):
        call(number)
    return (time.perf_counter() - start) / calls


def compare(named: dict[str, Callable[[int], object]], calls: int) -> dict[str, list[float]]:
    """Time several calls alternately, so that a machine's drift meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for repetition in range(REPETITIONS):
        for name, call in named.items():
            seconds[name].append(seconds_per_call(call, calls, repetition * calls))
    return seconds


def sample_and_update(buffer: Replay, batch_size: int) -> None:
    """Draw a batch and give its rows priorities, where the buffer takes any."""
    batch = buffer.sample(batch_size)
    buffer.learnt(batch.keys, batch.reward.abs())


def measure(rows: int, calls: int, device: str = "cpu", spec: EnvSpec = ATARI) -> list[Measurement]:
    """Fill buffers of `rows` rows, overwrite some of them, and sample.

    Args:
        rows: Capacity of a buffer.
        calls: Calls in one repetition; fewer with large batches.
        device: Where the rows are stored.
        spec: Of the rows.
    """
    buffers = {
        kind: Replay(spec, rows, NUM_STREAMS, sampler=sampler(), device=device)
        for kind, sampler in SAMPLERS.items()
    }
    chunks = make_chunks(spec)
    appends: dict[str, Callable[[int], object]] = {
        name: lambda number, buffer=buffer: buffer.add(chunks[number % len(chunks)])
        for name, buffer in buffers.items()
    }
    fill_calls = rows // CHUNK_ROWS + 1
    filling = [CHUNK_ROWS / seconds_per_call(append, fill_calls) for append in appends.values()]
    what = f"replay of {rows:,}"
    found = [Measurement(f"{what}: append, first fill", "uniform", "rows/s", (filling[0],))]
    found += _rates(f"{what}: append", "rows/s", CHUNK_ROWS, compare(appends, calls))
    for n_step in (1, 3):
        for buffer in buffers.values():
            buffer.n_step = n_step
        found += _sampling(what, f"{n_step}-step", buffers, calls)
    buffer = buffers["uniform"]
    for name, rows in (("a row", buffer.capacity), ("a step", len(buffer))):
        found.append(Measurement(f"{what}: memory", name, "bytes", (buffer.nbytes / rows,)))
    return found


def measure_growth(
    sizes: Sequence[int], calls: int, device: str = "cpu", spec: EnvSpec = ATARI
) -> list[Measurement]:
    """Fill buffers of several sizes, and compare sampling with the first of them.

    Beside it numpy alone copies as many frames of random places, which nobody could do without.

    Args:
        sizes: Rows of each buffer.
        calls: Calls in one repetition; fewer with large batches.
        device: Where the rows are stored.
        spec: Of the rows.
    """
    chunks = make_chunks(spec)
    found: list[Measurement] = []
    for kind, sampler in SAMPLERS.items():  # one after the other: a million frames take 7 GB
        buffers: dict[str, Replay] = {}
        for rows in sizes:
            buffer = Replay(spec, rows, NUM_STREAMS, sampler=sampler(), device=device)
            _fill(buffer, chunks)
            buffers[f"{rows:,} rows"] = buffer
        if kind == "uniform" and device == "cpu":
            found += _copying(buffers, spec, calls)
        for n_step in (1, 3):
            for buffer in buffers.values():
                buffer.n_step = n_step
            found += _sampling("growth", f"{n_step}-step, {kind}", buffers, calls)
    return found


def _copying(buffers: dict[str, Replay], spec: EnvSpec, calls: int) -> list[Measurement]:
    """Time how numpy copies the frames of as many transitions of one step, from the same memory."""
    rng = np.random.default_rng(0)
    window = np.arange(spec.frame_stack + 1)
    found: list[Measurement] = []
    for batch_size in (32, 256):
        copies: dict[str, Callable[[int], object]] = {}
        for name, buffer in buffers.items():
            frames = next(iter(buffer.streams.columns.values())).numpy()
            starts = rng.integers(0, len(frames) - len(window), (1000, batch_size, 1))
            copies[name] = lambda number, frames=frames, starts=starts: frames.take(
                (starts[number % len(starts)] + window).reshape(-1), axis=0
            )
        seconds = compare(copies, max(1, calls * 32 // batch_size))
        found += _rates(f"growth: numpy copies {batch_size}", "batches/s", 1, seconds)
    return found


def compare_specs(specs: dict[str, EnvSpec], rows: int) -> list[Measurement]:
    """Fill a buffer of each specification, and compare with the first by turns.

    Args:
        specs: Of the rows, by name.
        rows: Capacity of each buffer.
    """
    calls, found = 300, list[Measurement]()
    for kind, sampler in SAMPLERS.items():
        buffers: dict[str, Replay] = {}
        appends: dict[str, Callable[[int], object]] = {}
        for name, spec in specs.items():
            buffer, chunks = Replay(spec, rows, NUM_STREAMS, sampler=sampler()), make_chunks(spec)
            _fill(buffer, chunks)
            buffers[name] = buffer
            appends[name] = lambda number, buffer=buffer, chunks=chunks: buffer.add(
                chunks[number % len(chunks)]
            )
        found += _rates(f"append, {kind}", "rows/s", CHUNK_ROWS, compare(appends, calls))
        found += _sampling("replay", kind, buffers, calls)
    return found


def _fill(buffer: Replay, chunks: Sequence[Rows]) -> None:
    for number in range(buffer.capacity // CHUNK_ROWS + 1):
        buffer.add(chunks[number % len(chunks)])


def make_chunks(spec: EnvSpec) -> list[Rows]:
    """Make the chunks of two episodes: to repeat them continues each stream correctly."""
    rng = np.random.default_rng(0)
    firsts = range(0, 2 * EPISODE_ROWS, CHUNK_ROWS // NUM_STREAMS)
    return [make_chunk(rng, first, spec) for first in firsts]


def _rates(
    section: str, unit: str, units: int, seconds: dict[str, list[float]]
) -> list[Measurement]:
    rates = {name: [units / one for one in times] for name, times in seconds.items()}
    return compared(section, unit, rates, next(iter(rates)))


def _sampling(what: str, setting: str, buffers: dict[str, Replay], calls: int) -> list[Measurement]:
    """Time batches of 32 and 256 from buffers that take turns."""
    found: list[Measurement] = []
    for batch_size in (32, 256):
        samples: dict[str, Callable[[int], object]] = {
            name: lambda _, buffer=buffer, size=batch_size: sample_and_update(buffer, size)
            for name, buffer in buffers.items()
        }
        seconds = compare(samples, max(1, calls * 32 // batch_size))
        found += _rates(f"{what}: sample {batch_size}, {setting}", "batches/s", 1, seconds)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the table and, where asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.replay", description=__doc__)
    parser.add_argument(
        "--rows",
        type=count,
        nargs="+",
        default=[100_000],
        help="capacity of a buffer in rows; several are compared with the first, in sampling alone",
    )
    parser.add_argument("--frame_side", type=count, default=84, help="height and width of a frame")
    parser.add_argument("--calls", type=count, default=300, help="calls in one repetition")
    parser.add_argument("--device", default="cpu", help="where the rows are stored")
    parser.add_argument("--json", type=output, default=None, help="also write the figures here")
    options = parser.parse_args(arguments)
    spec = with_frame_side(options.frame_side)
    if len(options.rows) == 1:
        found = measure(options.rows[0], options.calls, options.device, spec)
    else:
        found = measure_growth(options.rows, options.calls, options.device, spec)
    print(table(found))
    if options.json is not None:
        asked = {"calls": options.calls, "frame_side": options.frame_side, "device": options.device}
        write(options.json, found, asked)


if __name__ == "__main__":
    main()
