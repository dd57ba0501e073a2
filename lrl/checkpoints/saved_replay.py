"""Reading a saved replay, and the records in which its rows are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from lrl.checkpoints.compatibility import differing_settings
from lrl.checkpoints.plain_state import decode, read_arrays
from lrl.checkpoints.replay_manifest import (
    Manifest,
    SavedReplayError,
    manifest_name,
    read_manifest,
    verify,
)
from lrl.envs.config import without_unused
from lrl.replay.replay import Replay
from lrl.replay.streams import IndexArray, Streams


def load_replay(
    folder: Path,
    replay: Replay,
    settings: dict[str, Any],
    learner_step: int,
    saved_id: str,
) -> dict[str, Any]:
    """Bring the rows of a saved replay back, after all its files were verified.

    The learner step and the saved replay's name are those that the checkpoint gives. Where an error
    is raised, the buffer is as empty as it was.

    Returns:
        The state that was saved with the rows; `"replay"` in it is for the buffer to restore.

    Raises:
        SavedReplayError: The replay is missing, damaged, of another checkpoint or of other
            settings.
        OSError: A file could not be read.
    """
    manifest = read_manifest(folder / manifest_name(learner_step))
    if manifest.saved_id != saved_id:
        raise SavedReplayError(f"{folder / manifest.name} belongs to another checkpoint")
    now = json.loads(json.dumps({**replay.settings(), **settings}))
    saved = dict(manifest.settings)
    if "env" in saved:
        saved["env"] = without_unused(saved["env"])
    if different := differing_settings(saved, now):
        said = "; ".join(f"{name} was {a} and is {b}" for name, (a, b) in different.items())
        raise SavedReplayError(f"it was saved with other settings: {said}")
    for file in (*manifest.segments, manifest.state):
        verify(folder, file)
    state, counts = _read_state(folder, manifest)
    try:
        _read_rows(folder, manifest, replay.streams, counts)
    except BaseException:
        replay.streams.clear()
        raise
    return state


def write_record(file: Any, streams: Streams, start: IndexArray, stop: IndexArray) -> None:
    """Write rows `start[s]` to `stop[s] - 1` of every stream s, column by column."""
    file.write(np.stack((start, stop)).astype("<i8").tobytes())
    for column in streams.columns.values():
        for span in streams.spans(start, stop):
            file.write(bytes_of(column[span].cpu()))


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor on the CPU, as a view."""
    return tensor.numpy().reshape(-1).view(np.uint8)


def _read_state(folder: Path, manifest: Manifest) -> tuple[dict[str, Any], IndexArray]:
    """Return the state, and of it how many rows were ever appended to each stream."""
    path = folder / manifest.state.name
    try:
        with path.open("rb") as file:
            state = decode(manifest.tree, read_arrays(file, manifest.state.num_bytes))
        return state, state["replay"]["counts"]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SavedReplayError(f"{path} does not hold what {manifest.name} says") from error


def _read_rows(folder: Path, manifest: Manifest, streams: Streams, counts: IndexArray) -> None:
    """Read all rows to their places; rows that later ones overwrote come first."""
    covered = np.maximum(counts - streams.rows_per_stream, 0)
    for segment in manifest.segments:
        with (folder / segment.name).open("rb") as file:
            while file.tell() < segment.num_bytes:
                start, stop = _read_record(file, streams)
                covered = np.where(start <= covered, np.maximum(covered, stop), covered)
    if not np.array_equal(covered, counts):
        raise SavedReplayError(f"{folder / manifest.name} does not name all rows")
    streams.restore(counts)


def _read_record(file: BinaryIO, streams: Streams) -> tuple[IndexArray, IndexArray]:
    header = np.empty((2, streams.num_streams), "<i8")
    _read_into(file, header.reshape(-1).view(np.uint8))
    start, stop = header.astype(np.int64)
    for column in streams.columns.values():
        for span in streams.spans(start, stop):
            part = column[span]
            host = part if part.device.type == "cpu" else torch.empty_like(part, device="cpu")
            _read_into(file, bytes_of(host))
            if host is not part:
                part.copy_(host)
    return start, stop


def _read_into(file: Any, array: npt.NDArray[np.uint8]) -> None:
    if file.readinto(array) != array.nbytes:
        raise SavedReplayError(f"{file.name} ends too early")
