"""How fast rows and weights travel: `python -m benchmark.parts.transport`.

Run it on a quiet machine: on a shared one, compare only figures of one run with each other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from benchmark.arguments import count, output
from benchmark.parts.replay import ATARI
from lrl.bench.measure import machine
from lrl.replay import Replay
from lrl.transport import ActorEnd, Channel, ChunkLayout, ChunkQueue, WeightStore
from lrl.types import RowKind, Rows

NATURE_PARAMETERS = 1_687_206  # with six actions
_CHUNKS = 16
_KEPT_ROWS = 4096


@dataclass(frozen=True)
class Result:
    """One line of the table: a rate in units per second, and the bytes they stand for."""

    name: str
    unit: str
    per_second: float
    bytes_per_second: float


def measure_rows(
    name: str, num_rows: int, chunk_rows: int, rows_per_put: int, sink: Callable[[Rows], object]
) -> Result:
    """Let one actor process send Atari rows into a sink; start-up is not counted.

    Args:
        name: Where the rows go.
        num_rows: Rows to send, rounded down to whole chunks.
        chunk_rows: Rows in a chunk.
        rows_per_put: Rows in one call of `put`.
        sink: Takes the rows of every chunk; must copy them.
    """
    num_rows = max(2, num_rows // chunk_rows) * chunk_rows
    context = multiprocessing.get_context("spawn")
    channel = Channel(ChunkLayout(ATARI, chunk_rows, _CHUNKS), 0, 0)
    process = context.Process(
        target=_send, args=(channel.actor_end, num_rows, rows_per_put), daemon=True
    )
    process.start()
    channel.started()
    chunk_queue = ChunkQueue()
    chunk_queue.add(channel)
    with chunk_queue.get(timeout=60) as chunk:
        sink(chunk.rows)
    began = time.perf_counter()
    received, row_bytes = 0, ATARI.observation[""].nbytes + 23
    while received < num_rows - chunk_rows:
        with chunk_queue.get(timeout=60) as chunk:
            sink(chunk.rows)
            received += len(chunk)
    seconds = time.perf_counter() - began
    process.join()
    chunk_queue.close()
    name = f"to {name}, chunks of {chunk_rows}, {rows_per_put} a put"
    return Result(name, "rows", received / seconds, received * row_bytes / seconds)


def measure_weights() -> list[Result]:
    """Publish and read the vector of a Nature network in this process."""
    store = WeightStore(NATURE_PARAMETERS)
    vector = np.random.default_rng(0).random(NATURE_PARAMETERS, dtype=np.float32)
    out = np.empty_like(vector)
    spent = {"publish weights": 0.0, "read weights": 0.0}
    version, deadline = 0, time.perf_counter() + 1.0
    while time.perf_counter() < deadline:
        before = time.perf_counter()
        store.publish(vector, version)
        between = time.perf_counter()
        store.read(out)
        spent["publish weights"] += between - before
        spent["read weights"] += time.perf_counter() - between
        version += 1
    return [
        Result(name, "versions", version / total, version * vector.nbytes / total)
        for name, total in spent.items()
    ]


def _send(end: ActorEnd, num_rows: int, rows_per_put: int) -> None:
    writer = end.open(max_age_seconds=float("inf"))
    rows = _rows(rows_per_put)
    for _ in range(num_rows // rows_per_put):
        writer.put(rows)
    writer.close()


def _rows(count: int) -> Rows:
    zeros = np.zeros(count)
    return Rows(
        stream=np.arange(count, dtype=np.int32) % 8,
        kind=np.full(count, RowKind.STEP, dtype=np.uint8),
        frame=np.random.default_rng(0).integers(0, 256, (count, 84, 84)).astype(np.uint8),
        action=zeros.astype(np.int32),
        reward=zeros.astype(np.float32),
        terminated=zeros.astype(np.bool_),
        truncated=zeros.astype(np.bool_),
        policy_version=zeros.astype(np.int64),
    )


def _copy_into_array() -> Callable[[Rows], None]:
    """Return a sink that copies frames into a ring of rows."""
    kept = np.zeros((_KEPT_ROWS, *ATARI.observation[""].shape), dtype=np.uint8)
    position = 0

    def take(rows: Rows) -> None:
        nonlocal position
        kept[position : position + len(rows)] = rows.frame
        position = (position + len(rows)) % (_KEPT_ROWS // 2)

    return take


def run(num_rows: int) -> list[Result]:
    """Measure everything.

    Args:
        num_rows: Rows of each measurement.
    """
    replay = Replay(ATARI, 8 * _KEPT_ROWS, num_streams=8)
    for _ in range(16 * _KEPT_ROWS // 256):  # memory is handed out at its first use: fill it before
        replay.add(_rows(256))
    array = _copy_into_array()
    return [
        measure_rows("array", num_rows, 64, 64, array),
        measure_rows("array", num_rows, 64, 8, array),
        measure_rows("replay", num_rows, 64, 64, replay.add),
        measure_rows("array", num_rows, 256, 64, array),
        measure_rows("replay", num_rows, 256, 64, replay.add),
        *measure_weights(),
    ]


def main() -> None:
    """Print a table, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Measure the transport of rows and weights.")
    parser.add_argument("--rows", type=count, default=400_000, help="rows to send")
    parser.add_argument("--json", type=output, help="also write the results to this file")
    arguments = parser.parse_args()
    results = run(arguments.rows)
    print(f"{'what':42} {'per second':>12} {'unit':9} {'GB/s':>6}")
    for result in results:
        gigabytes = result.bytes_per_second / 1e9
        print(f"{result.name:42} {result.per_second:12,.0f} {result.unit:9} {gigabytes:6.2f}")
    if arguments.json is not None:
        found = {
            "machine": machine(),
            "rows": arguments.rows,
            "results": list(map(asdict, results)),
        }
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
